import dataclasses
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxevolve import plan
from jaxevolve.hf.config import parse_config
from jaxevolve.models.config import Config, VisionConfig
from jaxevolve.models.inputs import Prompts
from jaxevolve.models.logprobs import token_logprobs
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, head, init_params, unstacked
from jaxevolve.planning import compiled, memory, shapes, work
from jaxevolve.planning.chips import GIB, parse_topology
from jaxevolve.runtime import cli, mesh
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.target import compiling_for, target_platform

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = Path(__file__).parent / "hf" / "published"


def config(*overrides, scale="tiny"):
    argv = ["plan.py", f"--config={ROOT}/configs/csrs.py:{scale}"]
    return cli.parse(
        [*argv, *(f"--config.{o}" for o in overrides)], plan.define, config=True
    ).config


def counts(shape):
    return work.Counts(shape, jax.eval_shape(lambda: init_params(shape, jax.random.key(0))))


SEVEN = shapes.RELEASED["Qwen2.5-VL-7B-Instruct"]
LENGTHS = work.Lengths(512, 768)


# Topologies.


@pytest.mark.parametrize(
    ("text", "size", "groups", "egress"),
    [
        ("v5p:2x2x1", 4, 1, 2 * 100e9),
        ("v5p:4x4x4", 64, 1, 6 * 100e9),
        ("v5e:4x4", 16, 1, 2 * 50e9),
        ("v6e:16x16", 256, 1, 4 * 100e9),
        ("2xv5e:4x4", 32, 2, 2 * 50e9),
        ("h100:8", 8, 1, 450e9),
        ("h100:2x8", 16, 2, 450e9),
        ("v5e:1x1", 1, 1, math.inf),
    ],
)
def test_a_topology_is_read(text, size, groups, egress):
    topology = parse_topology(text)
    assert (topology.size, topology.groups, topology.egress) == (size, groups, egress)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("v5p", "cannot be read"),
        ("v5px:2x2x1", "unknown; did you mean v5p"),
        ("v5p:2x2", "takes 3 numbers"),
        ("v5e:4x4x4", "takes 2 numbers"),
        ("v5e:0x4", "at least 1"),
        ("2xh100:8", "hosts come after the colon"),
        ("cpu:2x2", "takes 1 numbers"),
    ],
)
def test_a_wrong_topology_is_refused_in_one_sentence(text, told):
    with pytest.raises(UserError, match=told) as caught:
        parse_topology(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("v5e:4x4", (2, 2)),
        ("2xv5e:4x4", (2, 2)),
        ("v5p:2x2x4", (2, 2, 1)),
        ("v5p:2x2x1", (2, 2, 1)),
        ("v6e:1x1", (1, 1)),
        ("h100:2x8", (8,)),
        ("cpu:2", (2,)),
    ],
)
def test_a_host_is_a_topology_of_its_own(text, shape):
    host = parse_topology(text).host
    assert (host.shape, host.groups, host.processes) == (shape, 1, 1)


@pytest.mark.parametrize(
    ("flag", "limit"),
    [("prompt_tokens", "data.max_prompt_tokens=256"), ("response_tokens", "rollout.max_tokens=64")],
)
def test_lengths_that_no_run_has_are_refused(flag, limit):
    argv = ["plan.py", f"--config={ROOT}/configs/csrs.py:smoke", "--topology=cpu:1"]
    values = cli.parse([*argv, f"--{flag}=257"], plan.define, config=True)
    with pytest.raises(UserError, match=rf"--{flag}=257 .* {limit}; "):
        plan.main(values)


def test_a_compiler_that_is_not_installed_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr("jaxevolve.planning.chips.find_spec", lambda name: None)
    for text in ("v5e:2x2", "h100:2"):
        with pytest.raises(UserError, match=r'not installed; run .*"\.\[plan\]"'):
            parse_topology(text).devices()


# Shapes.


@pytest.mark.parametrize("size", ["3b", "7b"])
def test_released_shapes_are_those_that_were_published(size):
    raw = json.loads((PUBLISHED / f"qwen2_5_vl_{size}.json").read_text())
    name = f"Qwen2.5-VL-{size.upper()}-Instruct"
    assert shapes.model_config(f"somewhere/{name}") == parse_config(raw)


def test_a_model_that_is_neither_there_nor_known_is_refused():
    with pytest.raises(UserError, match="is none of Qwen"):
        shapes.model_config("no/such-model")


def test_the_largest_shapes_of_the_papers_setting():
    found = shapes.sizes(config(scale="qwen2_5_vl_7b"), SEVEN.vision, 8)
    assert dataclasses.asdict(found) == {
        "prompt": 1024,
        "anchor": 3072,  # 1,024 + floor(0.7 * 1,536) = 2,099, rounded up
        "pool": 3072,  # 1,024 + 1,536, rounded up
        "windows": 96,  # 33 x 31 units take 9 x 8 = 72 windows of 4 x 4
        "response": 1536,
        "group": 8,
        "rows": 512,
        "seats": 8 * 39,  # 64 rows a device, three times what fill them five by five
        "read": 16,
        "width": 8,
    }


@given(tokens=st.integers(1, 400))
@settings(max_examples=30)
def test_no_image_of_moderate_shape_needs_more_windows(tokens):
    most = shapes.image_windows(tokens, SEVEN.vision)
    for short in range(1, tokens + 1):
        for long in range(short, 2 * short + 1):
            if short * long <= tokens:
                assert math.ceil(short / 4) * math.ceil(long / 4) <= most


# Work.


def small(**changes):
    vision = VisionConfig(
        depth=2,
        hidden_size=32,
        intermediate_size=48,
        num_heads=2,
        patch_size=14,
        temporal_patch_size=2,
        spatial_merge_size=2,
        window_size=112,
        fullatt_block_indexes=(1,),
        out_hidden_size=64,
    )
    shape = dict(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        mrope_section=(2, 3, 3),
        tie_word_embeddings=False,
        image_token_id=5,
        vision=vision,
    )
    return Config(**{**shape, **changes})


def prompts(count, tokens, windows, vision):
    zeros = lambda *shape, dtype=jnp.int32: jax.ShapeDtypeStruct((count, *shape), dtype)
    patches = vision.window_patches if vision else 1
    return Prompts(
        tokens=zeros(tokens),
        length=zeros(),
        positions=zeros(tokens, 3),
        next_position=zeros(),
        ids=zeros(dtype=jnp.uint32),
        image_token=zeros(tokens),
        pixels=zeros(windows, patches, 588, dtype=jnp.uint8),
        patch_hw=zeros(windows, patches, 2),
        segment=zeros(windows, patches),
    )


@pytest.mark.parametrize("windows", [0, 1])
def test_operations_are_what_xla_counts_when_no_loop_hides_them(windows):
    shape = small() if windows else small(vision=None, mrope_section=(8, 0, 0))
    model, tokens, group, length = Qwen2_5_VL(shape), 64, 4, 64

    def forward(params, prompts, responses):
        params = unstacked(params)
        hidden = model.apply({"params": params}, prompts, responses)
        return token_logprobs(hidden, head(params), responses)

    params = jax.eval_shape(lambda: init_params(shape, jax.random.key(0)))
    given_prompts = prompts(2, tokens, windows, shape.vision)
    responses = jax.ShapeDtypeStruct((2, group, length), jnp.int32)
    found = jax.jit(forward).lower(params, given_prompts, responses).cost_analysis()["flops"]
    c = counts(shape)
    counted = c.forward(2, tokens, windows, group, length) + 2 * c.head * 2 * group * length
    # XLA counts what is done elementwise too, softmax and norms.
    assert counted == pytest.approx(found, rel=0.15)


def test_a_step_of_the_papers_setting_by_hand():
    settings_7b = config(scale="qwen2_5_vl_7b")
    c = counts(SEVEN)
    assert c.all == pytest.approx(8.29e9, rel=1e-3)
    assert c.layers == 28 * (3584 * 3584 * 2 + 2 * 3584 * 512 + 3 * 3584 * 18944)
    assert c.cache == 57344
    works = work.step(settings_7b, c, parse_topology("h100:8"), (1, 8, 1), LENGTHS)
    # 256 x 8 responses of 768 tokens, two operations a weight.
    made = 256 * 8 * 768
    dense = 2 * made * (c.layers + c.head)
    # Half of the room for responses, 768 of 1,536, is read for each of 512 rows, and half of that
    # for prompts, 1,536 of 3,072 (an anchor goes to 512 + 538), for eight in each of 8 x 39 seats.
    steps = made / 512
    scores = 4 * steps * (512 * 768 + 8 * 39 * 8 * 1536) * 3584 * 28
    assert works["decode"].flops == pytest.approx(dense + scores)
    # Each of the 3,072 decode steps reads the weights on each of eight devices; the logits are
    # written and read.
    keys = 57344 * steps * (512 * 768 + 8 * 39 * 1536)
    read = steps * 8 * 2 * c.all
    assert works["decode"].bytes == pytest.approx(read + keys + 3 * 4 * made * 152064)
    assert works["decode"].sent == 0
    # Each of 32 pieces of the batch brings 7/8 of the weights to each device, for both models.
    assert works["score"].sent == pytest.approx(2 * 32 * 2 * c.all * 7)
    tokens = work.sampled_tokens(settings_7b, LENGTHS)
    assert tokens == pytest.approx(made * (1 + 5 * 0.3))


def test_a_phase_takes_as_long_as_its_slowest_limit():
    works = {"a": work.Work(8 * 989e12), "b": work.Work(8 * 989e12, 8 * 3350e9 * 3)}
    found = work.limits(works, parse_topology("h100:8"), (1, 8, 1))
    assert found["a"] == {"compute": pytest.approx(1.0), "memory": 0, "network": 0}
    assert found["b"]["memory"] == pytest.approx(3.0)
    assert work.step_seconds(found) == pytest.approx(1 + 3)
    assert work.step_seconds(found, overlap=False) == pytest.approx(1 + 1 + 3)


def test_what_crosses_slices_goes_at_their_networks_pace():
    works = {"a": work.Work(sent=32 * 100e9, summed=32 * 3.125e9)}
    slices = work.limits(works, parse_topology("2xv5e:4x4"), (2, 16, 1))
    assert slices["a"]["network"] == pytest.approx(1 + 1)
    hosts = work.limits({"a": work.Work(sent=16 * 50e9)}, parse_topology("h100:2x8"), (1, 16, 1))
    assert hosts["a"]["network"] == pytest.approx(1)


# Memory and advice.


def test_meshes_keep_to_heads_batch_and_slices():
    found = memory.candidates(
        config(scale="qwen2_5_vl_7b"), counts(SEVEN), parse_topology("2xv5e:4x4")
    )
    assert (2, 16, 1) in found
    assert all(data % 2 == 0 and 4 % tensor == 0 for data, _, tensor in found)
    assert all(math.prod(m) == 32 for m in found)


def test_advice_names_what_saves_enough():
    settings_7b = config("grpo.offload_reference=false", scale="qwen2_5_vl_7b")
    where = (settings_7b, counts(SEVEN), parse_topology("v5p:2x2x1"), (1, 4, 1))
    told = memory.advice(*where, {"update": 2 * GIB})
    enough = {flag: enough for flag, _, enough in told}
    assert enough["--config.lora.rank=16"]
    assert enough["--config.grpo.offload_reference=true"]
    assert not any(flag.startswith("--config.rollout") for flag in enough)
    assert memory.together(*where, {"update": 2 * GIB}) == ["--config.grpo.offload_reference=true"]


def test_flags_are_combined_where_none_is_enough():
    settings_7b = config(scale="qwen2_5_vl_7b")
    where = (settings_7b, counts(SEVEN), parse_topology("v6e:4x4"), (1, 16, 1))
    most = max(saved for _, saved, _ in memory.advice(*where, {"sampling": GIB}))
    over = {"sampling": most + GIB}
    assert not any(enough for _, _, enough in memory.advice(*where, over))
    flags = memory.together(*where, over)
    changed = config(*(f.removeprefix("--config.") for f in flags), scale="qwen2_5_vl_7b")
    before, after = (memory.estimate(c, *where[1:])["sampling"] for c in (where[0], changed))
    assert before - after >= over["sampling"]
    assert memory.together(*where, {"sampling": 1000 * GIB}) == []


def test_what_the_compiler_refuses_is_read_from_its_words():
    message = (
        "RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (400.50G) exceeds "
        "available HBM (15.75G)."
    )
    assert compiled._needed(message) == int(400.5 * GIB)


# Programs.


def test_a_program_can_be_traced_for_a_platform_that_is_not_there():
    seen = []
    traced = jax.jit(lambda x: seen.append(target_platform()) or x)
    here = jax.default_backend()
    traced(1.0)
    with compiling_for("tpu"):
        traced(1.0)
    traced(1.0)
    assert seen == [here, "tpu"]


def test_slices_lie_along_data():
    class Device:
        platform, device_kind = "tpu", "TPU v5 lite"

        def __init__(self, number):
            self.id, self.slice_index, self.process_index = number, number // 4, number // 4
            self.coords, self.core_on_chip = [number % 4 // 2, number % 2, 0], 0

    devices = [Device(i) for i in range(8)]
    with pytest.raises(UserError, match=r"--config\.mesh=2,-1,1"):
        mesh.make_mesh((1, 8, 1), devices)


def needs(text):
    """GiB in all by function, from the table."""
    table = text.split("Held between")[0]
    rows = re.findall(r"^\| ([a-z ]+?) +\|(.*)\|$", table, re.MULTILINE)
    return {name: float(cells.split("|")[3]) for name, cells in rows if name in FUNCTIONS}


FUNCTIONS = ("prefill", "anchor prefill", "decode", "score", "gradients", "optimizer")


@pytest.fixture(scope="module")
def small_plan(answering, tmp_path_factory):
    """Runs the command in this process, for a small model; returns what it prints and writes."""
    folder = tmp_path_factory.mktemp("plan")

    def run(capsys, topology, *overrides, code=None):
        argv = ["plan.py", f"--config={ROOT}/configs/csrs.py:smoke", f"--topology={topology}"]
        argv += [f"--out={folder}/plan.md", f"--cache={folder}/cache.json"]
        argv += [f"--config.{o}" for o in (f"model.path={answering}", "batch=4", *overrides)]
        values = cli.parse(argv, plan.define, config=True)
        if code is None:
            plan.main(values)
        else:
            with pytest.raises(SystemExit) as left:
                plan.main(values)
            assert left.value.code == code
        out, err = capsys.readouterr()
        assert (folder / "plan.md").read_text() == out
        return out, err

    return run


def test_a_plan_for_this_machine(small_plan, capsys):
    text, told = small_plan(capsys, "cpu:1")
    assert set(needs(text)) == set(FUNCTIONS)
    assert "It fits." in text
    assert "mesh 1,1,1 (data, fsdp, tensor)" in text
    assert told.count("compiling") == len(FUNCTIONS)
    again, told = small_plan(capsys, "cpu:1")
    assert "compiling" not in told
    assert again == text


def test_a_plan_that_does_not_fit_says_so_and_exits_with_1(small_plan, capsys, monkeypatch):
    few = dataclasses.replace(parse_topology("cpu:1").chip, memory=2**20)
    monkeypatch.setattr(
        plan, "parse_topology", lambda text: dataclasses.replace(parse_topology(text), chip=few)
    )
    text, _ = small_plan(capsys, "cpu:1", code=1)
    assert "It does not fit: sampling by" in text
    assert "`--config.lora.rank=16` saves" in text


def run_plan(tmp_path, *arguments, topology):
    out = tmp_path / "plan.md"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jaxevolve.plan",
            f"--config={ROOT}/configs/csrs.py:smoke",
            f"--topology={topology}",
            f"--out={out}",
            f"--cache={tmp_path / 'cache.json'}",
            *arguments,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "flags", "package"),
    [
        ("v5e:2x2", [], "libtpu"),
        # Two hosts, each of which samples from models that are split over its own chips.
        ("v5e:2x4", ["--config.rollout.tensor=2"], "libtpu"),
        ("h100:2", [], "jax_cuda12_plugin"),
    ],
)
def test_a_plan_for_accelerators_that_are_not_there(tmp_path, topology, flags, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; it comes with the extra plan")
    text = run_plan(tmp_path, *flags, topology=topology)
    assert set(needs(text)) == set(FUNCTIONS)
    assert "It fits." in text
