"""What the embedded judge is taught, and whether the one that is shipped has learned it."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import judge_auc  # noqa: E402
from jaxevolve.data.geometry import FAMILIES, GeometryProblems, solve  # noqa: E402
from jaxevolve.policy import load_model_processor, load_policy  # noqa: E402
from jaxevolve.recipes.self_judge import conclusion  # noqa: E402
from jaxevolve.rewards import parse_score  # noqa: E402
from jaxevolve.runtime import cli  # noqa: E402
from make_geo_judge import JUDGEMENT, criteria, judgement  # noqa: E402

ASSETS = ROOT / "jaxevolve" / "assets"


def problem(family):
    return GeometryProblems(families={family: 1.0}).problem(0)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_right_solution_deserves_everything(family):
    assert criteria(problem(family), problem(family).solution) == (1, 1, 1)


def test_each_kind_of_mistake_costs_its_own_criterion():
    tri = problem("tri")
    a, b = tri.values
    read = solve("tri", (a, b + 10))
    assert criteria(tri, read) == (0, 1, 0)
    slip = tri.solution.replace(f"={tri.answer}<", f"={tri.answer + 10}<")
    slip = slip.replace(f"{{{tri.answer}}}", f"{{{tri.answer + 10}}}")
    assert slip != tri.solution
    assert criteria(tri, slip) == (0, 0, 1)
    assert criteria(problem("parI"), solve("parC", problem("parI").values)) == (0, 0, 1)


@pytest.mark.parametrize("text", ["", "\\boxed{30}", "<think>60</think>", "<think>. </think> 3"])
def test_a_wrong_layout_deserves_nothing(text):
    assert criteria(problem("iso"), text) == (0, 0, 0)
    assert parse_score(conclusion(judgement(problem("iso"), text))) == 0.0


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_judgement_has_its_score_in_the_box_and_in_the_block_and_the_judge_can_say_it(family):
    own = problem(family)
    processor = load_model_processor(ASSETS / "geo_judge")
    for text, score in ((own.solution, 1.0), ("nothing", 0.0)):
        said = judgement(own, text)
        assert parse_score(conclusion(said)) == score
        block = conclusion(said).partition("BEGIN_SCORES")[2].partition("END_SCORES")[0]
        assert json.loads(block)["overall_score"] == score
        assert parse_score(conclusion(said).replace("boxed", "")) == score
        tokens = processor.tokenizer.backend_tokenizer.encode(said).ids
        assert processor.decode(tokens) == said
        assert len(tokens) < JUDGEMENT


def test_the_shipped_judge_tells_right_from_wrong():
    config = cli.load_config(f"{ROOT}/configs/self_judge.py")
    config.rollout.n = 4
    actor, judge = (load_policy(ASSETS / name) for name in ("geo_tiny", "geo_judge"))
    source = GeometryProblems(seed=77, families=dict.fromkeys(FAMILIES, 1.0))
    found = judge_auc.measure(actor, judge, [source[i] for i in range(24)], config)["all"]
    assert found["auc"] > 0.7
    assert found["unread"] < 0.05
    recorded = json.loads((ASSETS / "geo_judge" / "figures.json").read_text(encoding="utf-8"))
    assert recorded["held_out"]["all"]["auc"] > 0.7


def test_the_shipped_judge_is_small():
    files = (ASSETS / "geo_judge").iterdir()
    assert sum(file.stat().st_size for file in files) < 4 * 2**20
