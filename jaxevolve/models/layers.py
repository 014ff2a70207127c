"""The few layers that the towers share, and the attention of single tokens.

Weights keep the layout of the checkpoints, [out, in]: nothing is transposed on import or export.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxevolve.runtime.target import target_platform

NEGATIVE = -1e30  # a masked score; finite, so that a row of only masked scores has no NaN
FEW = 8  # layers: six take a seventh longer to compile unrolled, two a third less


class Linear(nn.Module):
    """x [..., in] -> [..., features], with the weight as [features, in]."""

    features: int
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the map over the last axis."""
        weight = self.param("weight", nn.initializers.normal(0.02), (self.features, x.shape[-1]))
        y = matmul(x, weight)
        if self.has_variable("params", "lora_a"):  # see `lora.attach`
            down, up = (self.get_variable("params", f"lora_{part}") for part in "ab")
            y = y + matmul(matmul(x, down), up)
        if self.use_bias:
            y = y + self.param("bias", nn.initializers.zeros, (self.features,))
        return y


class RMSNorm(nn.Module):
    """Root-mean-square normalization over the last axis, in float32 whatever the input is."""

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes and scales; the result has the input's type."""
        weight = self.param("weight", nn.initializers.ones, (x.shape[-1],))
        y = x.astype(jnp.float32)
        y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.epsilon)
        return weight * y.astype(x.dtype)


class GatedMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    hidden: int
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> [..., D]."""
        gate = Linear(self.hidden, self.use_bias, name="gate_proj")(x)
        up = Linear(self.hidden, self.use_bias, name="up_proj")(x)
        return Linear(x.shape[-1], self.use_bias, name="down_proj")(nn.silu(gate) * up)


def matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [..., in] times weight [out, in] -> [..., out].

    The leading axes are flattened first: on CPU that halves the time of the backward pass.
    """
    flat = lax.dot_general(x.reshape(-1, x.shape[-1]), weight, (((1,), (1,)), ((), ())))
    return flat.reshape(*x.shape[:-1], weight.shape[0])


def split_by_row(x: jax.Array, mesh: Mesh | None) -> jax.Array:
    """The same array [P, ...], each of a mesh's data and fsdp devices holding whole rows of it.

    Weights are split over the same devices. Where a table's width meets a batch's rows, nothing
    but this tells the compiler which of the two an activation is to follow: by itself it keeps the
    whole batch on every device, and sums partial products as large as that after every matrix.
    Nothing is done without a mesh, or where it does not divide P.
    """
    if mesh is None or x.shape[0] % (mesh.shape["data"] * mesh.shape["fsdp"]):
        return x
    return lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(("data", "fsdp"))))


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotary embedding: feature i and i + h/2 turn together.

    Args:
        x: [..., h].
        angles: f32[..., h/2], broadcast against x.
    """
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def run_layers(
    block: Callable[[Any, Any, Any], tuple[Any, Any]],
    layers: Any,
    carry: Any,
    inputs: Any = None,
    remat: str = "none",
) -> tuple[Any, Any]:
    """Runs equal layers one after another.

    Args:
        block: (parameters of a layer, carry, a layer's input) -> (carry, a layer's output).
        layers: parameters stacked on axis 0, for a scan, which on CPU is unrolled where there are
            few; or a tuple of one tree a layer (see `unstack`), for an unrolled one of any depth,
            which on CPU saves a copy of every weight and cache at every decode step.
        carry: what flows from layer to layer.
        inputs: one input a layer, stacked or as a tuple like `layers`.
        remat: what is kept of a layer for the backward pass: everything ("none"), its input alone
            ("layer"), or also what its weights were multiplied to ("dots"); the rest is recomputed.

    Returns:
        The last carry, and the outputs, stacked or as a tuple like `layers`.
    """

    flat = isinstance(layers, tuple) or few(layers)

    def body(carry: Any, both: Any) -> tuple[Any, Any]:
        return block(both[0], carry, both[1])

    if remat != "none":
        policies = jax.checkpoint_policies
        policy = {
            "layer": policies.nothing_saveable,
            "dots": policies.dots_with_no_batch_dims_saveable,
        }[remat]
        body = jax.checkpoint(body, policy=policy, prevent_cse=flat)
    if not isinstance(layers, tuple):
        return lax.scan(body, carry, (layers, inputs), unroll=flat)
    outputs = []
    for i, layer in enumerate(layers):
        carry, output = body(carry, (layer, None if inputs is None else inputs[i]))
        outputs.append(output)
    return carry, tuple(outputs)


def few(layers: Any) -> bool:
    """Whether stacked layers are so few that unrolled they compile about as fast as scanned.

    Scanned, what the backward pass needs of every layer is written to stacks and read from them: a
    kernel each, and a copy.
    """
    return target_platform() == "cpu" and len(jax.tree.leaves(layers)[0]) <= FEW


def unstack(tree: Any) -> tuple[Any, ...]:
    """Splits arrays stacked on axis 0 into a tuple of trees."""
    depth = jax.tree.leaves(tree)[0].shape[0]
    return tuple(jax.tree.map(lambda x, i=i: x[i], tree) for i in range(depth))


def stacked(module: nn.Module, name: str, block: nn.Module, depth: int, *example: Any) -> Any:
    """The parameters of `depth` blocks: made at init, afterwards whatever the caller gave.

    Read without Linen's shape check, since the caller may give them stacked or one tree a layer.
    """
    if module.has_variable("params", name):
        return module.get_variable("params", name)

    def init(key: jax.Array) -> Any:
        return jax.vmap(lambda k: block.init(k, *example)["params"])(jax.random.split(key, depth))

    return module.param(name, init)
