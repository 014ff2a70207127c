"""What is compared: recipes with overrides, and those of the tables of the CSRS paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Arm:
    """One line of a table: a way to train, run once a seed.

    Attributes:
        label: what tables and charts call it.
        recipe: NAME of configs/NAME.py, or the path of a config file.
        overrides: settings that it changes, such as "retrace.m=0".
        paper: the paper's figures for it, by the table's columns; empty where it has none.
    """

    label: str
    recipe: str
    overrides: tuple[str, ...] = ()
    paper: Mapping[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Name of its runs: what it is, so that tables with an arm in common share its runs."""
        return "+".join([Path(self.recipe).stem, *self.overrides]).replace("/", "_")

    def config(self, scale: str) -> str:
        """FILE:SCALE for --config."""
        path = Path(self.recipe)
        if path.suffix != ".py":
            path = ROOT / "configs" / f"{self.recipe}.py"
            if path.is_relative_to(Path.cwd()):
                path = path.relative_to(Path.cwd())
        return f"{path}:{scale}"


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper as arms.

    Attributes:
        title: of the table and its page.
        arms: its rows.
        note: what the paper's figures are, and what is read into a row that can be read two ways.
        start: the paper's figures before training; empty where it has none.
        baseline: label of the arm that the others are compared with.
    """

    title: str
    arms: tuple[Arm, ...]
    note: str
    start: Mapping[str, float] = field(default_factory=dict)
    baseline: str = "CSRS"


def parse(words: Sequence[str]) -> list[Arm]:
    """Arms of --recipes: NAME, or NAME+key=value+key=value."""
    return [Arm(word, *_split(word)) for word in words]


def _split(word: str) -> tuple[str, tuple[str, ...]]:
    recipe, *overrides = word.split("+")
    return recipe, tuple(overrides)


def _csrs(label: str, *overrides: str, **paper: float) -> Arm:
    return Arm(label, "csrs", overrides, {name.replace("_", " "): v for name, v in paper.items()})


def _four(vision: float, verse: float, vista: float, we_math: float) -> dict[str, float]:
    """The paper's benchmarks as the columns of its Tables 5 and 9."""
    return {"MathVision": vision, "MathVerse": verse, "MathVista": vista, "WeMath": we_math}


TABLES: dict[str, PaperTable] = {
    "2": PaperTable(
        "Strength and steepness of the softened reward (Table 2)",
        (
            _csrs("gamma 0.05", "reward.gamma=0.05", Acc=44.65),
            _csrs("gamma 0.1", "reward.gamma=0.1", Acc=45.12),
            _csrs("CSRS", Acc=46.01),
            _csrs("gamma 0.35", "reward.gamma=0.35", Acc=43.78),
            _csrs("beta 3.5", "reward.beta=3.5", Acc=45.16),
            _csrs("beta 6.5", "reward.beta=6.5", Acc=45.87),
            _csrs("beta 8", "reward.beta=8.0", Acc=45.72),
        ),
        "CSRS is gamma 0.2 and beta 5. The paper does not name the benchmark of its column; the "
        "value of its default is that of MathVerse.",
    ),
    "3": PaperTable(
        "Re-inferences an anchor (Table 3)",
        (
            _csrs("m = 4", "retrace.m=4", MathVista=66.45),
            _csrs("CSRS", MathVista=68.25),
            _csrs("m = 6", "retrace.m=6", MathVista=67.46),
            _csrs("m = 7", "retrace.m=7", MathVista=66.01),
            _csrs("m = 8", "retrace.m=8", MathVista=64.98),
        ),
        "CSRS is m = 5. The paper's value of its default is that of the model trained on GeoQA.",
    ),
    "4": PaperTable(
        "Part of a response that is kept (Table 4)",
        (
            _csrs("rate 0.1", "retrace.rate=0.1", MathVista=66.31),
            _csrs("rate 0.3", "retrace.rate=0.3", MathVista=67.01),
            _csrs("rate 0.5", "retrace.rate=0.5", MathVista=66.58),
            _csrs("CSRS", MathVista=68.25),
            _csrs("rate 0.9", "retrace.rate=0.9", MathVista=66.43),
        ),
        "CSRS is rate 0.7. The paper's value of its default is that of the model trained on GeoQA.",
    ),
    "5": PaperTable(
        "Parts of CSRS (Table 5)",
        (
            _csrs(
                "+SFR",
                "reward.kind=self_consistency",
                "retrace.m=0",
                **_four(26.52, 45.10, 67.15, 69.42),
            ),
            _csrs(
                "+RRM",
                "reward.kind=majority",
                "retrace.image_noise=0.0",
                **_four(26.85, 45.35, 67.38, 69.85),
            ),
            _csrs(
                "+VSP",
                "reward.kind=majority",
                "retrace.rate=0.0",
                **_four(25.55, 44.35, 66.55, 67.82),
            ),
            _csrs("+SFR+RRM", "retrace.image_noise=0.0", **_four(27.68, 45.85, 67.62, 71.30)),
            _csrs("+SFR+VSP", "retrace.rate=0.0", **_four(26.70, 45.22, 67.28, 69.65)),
            _csrs("+RRM+VSP", "reward.kind=majority", **_four(27.02, 45.48, 67.50, 70.12)),
            _csrs("CSRS", **_four(27.97, 46.01, 67.81, 71.77)),
        ),
        "The paper's first row, called MajorityVote, has the figures of its untrained model, and "
        "is taken for it. Softened rewards without re-inferences (+SFR) are the plain frequency "
        "among the maternal answers. Re-inferences without softened rewards (+RRM) reward the "
        "majority of all answers, without noise. Noise without re-inferences (+VSP) is not "
        "defined in the paper: here responses are sampled again from their start, with noise.",
        start=_four(25.40, 44.24, 66.42, 67.65),
    ),
    "9": PaperTable(
        "Fixed and random anchors (Table 9)",
        (
            _csrs("CSRS", **_four(27.97, 46.01, 67.81, 71.77)),
            _csrs("random anchors", "retrace.anchor=random", **_four(27.63, 46.35, 67.52, 72.01)),
        ),
        "CSRS cuts every response at the same fraction. A random fraction is drawn for each "
        "maternal response; the paper says at each step.",
    ),
    "10": PaperTable(
        "Cost of fixed and random anchors (Table 10)",
        (
            _csrs("CSRS", relative_time=1.0, Acc=27.97),
            _csrs("random anchors", "retrace.anchor=random", relative_time=1.13, Acc=27.63),
        ),
        "Relative time stands beside the accuracy of MathVision in the paper, and here in the "
        "columns of time.",
    ),
    "anchors": PaperTable(
        "Where a response is cut",
        (
            _csrs("CSRS"),
            _csrs("random anchors", "retrace.anchor=random"),
            _csrs("token anchors", "retrace.anchor=token"),
        ),
        "CSRS cuts at a fraction of the length that a response came to have, which favors the "
        "longer derivation; a fixed token position does not (docs/choices.md). Not in the paper.",
    ),
}
