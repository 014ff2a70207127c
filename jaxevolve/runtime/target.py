"""Which kind of device is a program made for? The default backend's, or one that is not there."""

from contextlib import AbstractContextManager

import jax

_target = jax.make_user_context(None)


def target_platform() -> str:
    """The kind of device that is compiled for: "cpu", "gpu" or "tpu"."""
    return _target.value or jax.default_backend()


def compiling_for(platform: str) -> AbstractContextManager[None]:
    """A context in which `target_platform` is `platform`; jitted functions are traced anew."""
    return _target(platform)
