"""Which kind of device is a program made for, and where is it kept once it has been compiled?"""

from contextlib import AbstractContextManager
from pathlib import Path

import jax

_target = jax.make_user_context(None)


def target_platform() -> str:
    """The kind of device that is compiled for: "cpu", "gpu" or "tpu"."""
    return _target.value or jax.default_backend()


def compiling_for(platform: str) -> AbstractContextManager[None]:
    """A context in which `target_platform` is `platform`; jitted functions are traced anew."""
    return _target(platform)


def keep_programs(folder: Path) -> None:
    """Keeps compiled programs in a folder, so that a run that goes on need not compile them again.

    It has to be called before anything is compiled. A folder that JAX was given by its own flag
    (JAX_COMPILATION_CACHE_DIR) stays. On CPU nothing is kept unless it was: programs compile in
    seconds there, and XLA loads what was compiled for another processor (jax-ml/jax#38445).

    Args:
        folder: made where it does not exist; of several processes the first one writes.
    """
    if target_platform() != "cpu" and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
