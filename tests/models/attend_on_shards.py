"""Runs the splash kernel on a mesh of four devices against plain attention: see test_attention."""

import os

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
)

import re

import jax
import jax.numpy as jnp
import numpy as np

from jaxevolve.models.attention import PLAIN, Kernel, attend, attend_images
from jaxevolve.runtime.mesh import batch_sharding, make_mesh

rng = np.random.default_rng(0)
mesh = make_mesh((1, 2, 2))
kernel = Kernel("splash", mesh, interpret=True)


def normal(*shape):
    return jnp.array(rng.standard_normal(shape), jnp.float32)


@jax.jit(static_argnums=0)
def streams(kernel, query, own, prefix, mask):
    return attend(query, own, None, prefix, mask, kernel)


@jax.jit(static_argnums=0)
def patches(kernel, query, segments):
    return attend_images(query, query, query, segments, kernel)


for prompts, heads, split in ((4, 2, True), (3, 1, False)):
    arrays = (
        normal(prompts, heads, 2, 3, 9, 8),
        (normal(prompts, heads, 2, 9, 8), normal(prompts, heads, 2, 9, 8)),
        (normal(prompts, heads, 7, 8), normal(prompts, heads, 7, 8)),
        jnp.arange(7) < jnp.arange(1, prompts + 1)[:, None],
    )
    image = (normal(prompts, 2, 4, 2, 8), jnp.ones((prompts, 2, 4), jnp.int32))
    for form, given in ((streams, arrays), (patches, image)):
        placed = jax.device_put(given, batch_sharding(mesh)) if split else given
        program = form.lower(kernel, *placed).compile()
        np.testing.assert_allclose(program(*placed), form(PLAIN, *given), atol=1e-5)
        assert not split or not re.search("all-gather|all-to-all", program.as_text())
