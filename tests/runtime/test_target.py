from pathlib import Path

import jax
import pytest

from jaxevolve.runtime.target import compiling_for, keep_programs, target_platform


@pytest.fixture
def cache():
    """Sets JAX's folder of compiled programs, and what there was afterwards."""
    before = jax.config.jax_compilation_cache_dir
    yield lambda folder: jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize(
    ("platform", "given", "kept"),
    [
        ("tpu", None, "/runs/1/programs"),
        ("gpu", None, "/runs/1/programs"),
        ("cpu", None, None),
        ("tpu", "/mine", "/mine"),
        ("cpu", "/mine", "/mine"),
    ],
)
def test_programs_of_accelerators_are_kept_where_nobody_said_otherwise(
    cache, platform, given, kept
):
    cache(given)
    with compiling_for(platform):
        keep_programs(Path("/runs/1/programs"))
    assert jax.config.jax_compilation_cache_dir == kept


def test_what_is_compiled_for_is_the_backend_unless_said_otherwise():
    assert target_platform() == jax.default_backend()
    with compiling_for("tpu"):
        assert target_platform() == "tpu"
    assert target_platform() == jax.default_backend()
