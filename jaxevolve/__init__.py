"""jaxevolve: vision-language models that improve their reasoning with no labels."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Policy", "Samples", "load_policy"]


def __getattr__(name: str) -> Any:
    # Late, so that `import jaxevolve.answers` does not wait for jax.
    if name in __all__:
        from jaxevolve import policy

        return getattr(policy, name)
    raise AttributeError(f"module 'jaxevolve' has no attribute {name!r}")
