"""Low-rank adapters: y = x W^T + (x A^T) B^T, W frozen (Hu et al., arXiv 2106.09685, section 4.1).

Adapters are a tree of their own that has {"a": [.., r, in], "b": [.., out, r]} in the place of an
adapted weight, so that the frozen parameters are the reference as they are, and the optimizer holds
the adapters alone.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxevolve.runtime.errors import UserError


def pairs(adapters: Any) -> dict[str, dict[str, jax.Array]]:
    """Adapters by the path of the weight that they adapt."""
    found: dict[str, dict[str, jax.Array]] = {}
    for path, leaf in flatten_dict(adapters, sep="/").items():
        weight, _, part = path.rpartition("/")
        found.setdefault(weight, {})[part] = leaf
    return found


def init_adapters(params: Any, rank: int, targets: str, key: jax.Array) -> Any:
    """Adapters that change nothing yet: A is random, B is zero.

    Args:
        params: the tree that they adapt, or its shapes.
        rank: r.
        targets: a regular expression that a weight's path, such as
            model/layers/self_attn/q_proj/weight, has to contain.
        key: of A.

    Raises:
        UserError: no weight has such a path.
    """
    adapters = {}
    for path, leaf in flatten_dict(params, sep="/").items():
        # Matrices only: [out, in], or stacked [layers, out, in].
        linear = re.search(r"(_proj|qkv|proj|mlp/[02])/weight$", path) and leaf.ndim in (2, 3)
        if linear and re.search(targets, path):
            *layers, out, width = leaf.shape
            key, own = jax.random.split(key)
            a = jax.random.normal(own, (*layers, rank, width), jnp.float32) / width**0.5
            adapters[f"{path}/a"] = a
            adapters[f"{path}/b"] = jnp.zeros((*layers, out, rank), jnp.float32)
    if not adapters:
        raise UserError(
            f"lora.targets={targets!r} names no weight; give a part of a path, such as "
            "'model/layers' or 'self_attn/[qv]_proj'"
        )
    return unflatten_dict(adapters, sep="/")


def attach(params: Any, adapters: Any, scale: float) -> Any:
    """Parameters with adapters beside their weights, as `Linear` reads them, in the same type.

    Args:
        params: the frozen tree.
        adapters: of `init_adapters`.
        scale: what the adapters' part is multiplied by (alpha / r).
    """
    flat = flatten_dict(params, sep="/")
    for path, pair in pairs(adapters).items():
        dtype, owner = flat[path].dtype, path.removesuffix("/weight")
        flat[f"{owner}/lora_a"] = pair["a"].astype(dtype)
        flat[f"{owner}/lora_b"] = (pair["b"] * scale).astype(dtype)
    return unflatten_dict(flat, sep="/")


def merge(params: Any, adapters: Any, scale: float) -> Any:
    """Parameters with the adapters added into their weights: W + scale B A."""
    flat = flatten_dict(params, sep="/")
    for path, pair in pairs(adapters).items():
        change = jnp.einsum("...or,...ri->...oi", pair["b"], pair["a"]) * scale
        flat[path] = (flat[path].astype(jnp.float32) + change).astype(flat[path].dtype)
    return unflatten_dict(flat, sep="/")
