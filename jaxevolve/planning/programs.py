"""The programs of a run with shapes in the place of arrays, placed as training places them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from ml_collections import ConfigDict

from jaxevolve.learner import Experience, TrainState, assemble, cast
from jaxevolve.models.attention import choose
from jaxevolve.models.config import Config
from jaxevolve.models.inputs import Prompts
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, init_params
from jaxevolve.packing import Layout
from jaxevolve.planning.shapes import sizes
from jaxevolve.rollout import caches, decode
from jaxevolve.rollout.device import BRANCH_AT_ONCE
from jaxevolve.rollout.sampling import Sampling
from jaxevolve.runtime import mesh
from jaxevolve.runtime.buckets import bucket
from jaxevolve.runtime.target import compiling_for
from jaxevolve.training import fresh_state, lora_scale, make_functions, make_optimizer


class Programs:
    """The jitted functions of a run on a mesh.

    Args:
        config: the run's config.
        shape: the model's.
        devices: the mesh.
        host: devices of a process, which samples by itself; all do the same.

    Attributes:
        sizes: the largest shapes.
        state: the train state, abstract.
        policy: parameters in the type that is computed in, abstract, as they are scored with.
        sampler: the same as they are sampled with: whole on rollout.tensor devices.
        reference: of the KL term or what adapters are attached to, abstract, or None.
        pool: the prompts that have been read, abstract.
        decoding: the rows, abstract.
    """

    def __init__(
        self, config: ConfigDict, shape: Config, devices: Mesh, host: Sequence[jax.Device]
    ) -> None:
        self._config, self._devices = config, devices
        self._target = partial(compiling_for, devices.devices.flat[0].platform)
        mesh.check_processes(devices)
        self._sampling = mesh.sampling_mesh(mesh.make_mesh(devices=host), config.rollout.tensor)
        self._model, self._sampler = (
            Qwen2_5_VL(shape, choose(config.model.attention, those, config.model.dtype))
            for those in (devices, self._sampling)
        )
        self.sizes = sizes(config, shape.vision, self._sampling.shape["data"])
        self._micro = mesh.prompts_per_device(
            devices, config.batch, config.grpo.minibatches, config.grpo.micro_batch
        )
        started = jax.eval_shape(lambda: init_params(shape, jax.random.key(0)))
        self._optimizer, _ = make_optimizer(config.optimizer)
        fresh = partial(fresh_state, optimizer=self._optimizer, config=config)
        self.state: TrainState = _place(devices, jax.eval_shape(fresh, started))
        dtype = config.model.dtype
        self.reference = None
        if config.grpo.kl or config.lora.rank:
            self.reference = _place(devices, jax.eval_shape(partial(cast, dtype=dtype), started))
        self._frozen = self.reference if config.lora.rank else None
        whole = partial(assemble, dtype=dtype, lora_scale=lora_scale(config))
        computed = jax.eval_shape(whole, self.state.params, self._frozen)
        self.policy, self.sampler = _place(devices, computed), _place(self._sampling, computed)
        self.pool, self.decoding = self._empty()
        self._score, self._update = make_functions(
            self._model,
            self._optimizer,
            devices,
            self._micro,
            config,
            jax.tree.map(lambda x: x.sharding, self.state),
        )

    def lowerings(self) -> dict[str, Callable[[], jax.stages.Lowered]]:
        """What lowers each function, by its name, in the order in which a step calls them."""
        s, config = self.sizes, self._config
        made = {"prefill": lambda: self._prefill(s.prompt, noisy=False)}
        if config.retrace.m:
            # Without noise the keys of what is kept are there already.
            noisy = config.retrace.image_noise > 0 and s.windows > 0
            again = (lambda: self._prefill(s.anchor, noisy=True)) if noisy else self._branch
            made["anchor prefill" if noisy else "branch"] = again
        made["decode"] = self._decode
        made["score"] = self._lower_score
        made["gradients"] = self._lower_gradients
        made["optimizer"] = self._lower_optimizer

        def targeted(lower: Callable[[], jax.stages.Lowered]) -> jax.stages.Lowered:
            with self._target():
                return lower()

        return {name: partial(targeted, lower) for name, lower in made.items()}

    def _prompts(self, count: int, tokens: int, devices: Mesh) -> Prompts:
        s, vision = self.sizes, self._model.config.vision
        patches = (s.windows, 1) if vision is None else (s.windows, vision.window_patches)
        values = 1 if vision is None else vision.in_channels * vision.patch_size**2
        where = mesh.batch_sharding(devices)
        array = lambda *shape, dtype=jnp.int32: _array((count, *shape), dtype, where)
        return Prompts(
            tokens=array(tokens),
            length=array(),
            positions=array(tokens, 3),
            next_position=array(),
            ids=array(dtype=jnp.uint32),
            image_token=array(tokens),
            pixels=array(*patches, values, dtype=jnp.uint8),
            patch_hw=array(*patches, 2),
            segment=array(*patches),
        )

    def _empty(self) -> tuple[caches.Pool, caches.Decoding]:
        """The pool and the rows at the largest size that they grow to."""
        s = self.sizes
        lies = partial(mesh.batch_sharding, self._sampling)
        with self._target():
            make = caches.empty_on(lies(0), lies(caches.cache_axis()))
            dtype = self.sampler["model"]["norm"]["weight"].dtype
            return make.eval_shape(
                self._sampler, dtype, s.seats, s.pool, s.rows, bucket(s.response)
            )

    def _prefill(self, tokens: int, noisy: bool) -> jax.stages.Lowered:
        prompts = self._prompts(self.sizes.read, tokens, self._sampling)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.sizes.read))
        noise = (keys, jax.ShapeDtypeStruct((), jnp.float32)) if noisy else None
        return decode.prefill.lower(self._sampler, self.sampler, prompts, noise)

    def _branch(self) -> jax.stages.Lowered:
        count = BRANCH_AT_ONCE * self._sampling.shape["data"]
        number = _array((count,), jnp.int32, mesh.batch_sharding(self._sampling))
        return decode.branch.lower(self.pool, self.decoding, number, number, number)

    def _decode(self) -> jax.stages.Lowered:
        settings, scalar = self._config.rollout, partial(jax.ShapeDtypeStruct, ())
        # Which ids they are changes no size.
        rules = Sampling(settings.top_p, settings.top_k, stop_ids=(0,), banned_ids=(1,))
        program = decode.decode_on_cpu if caches.unrolled() else decode.decode
        prepared = _place(self._sampling, jax.eval_shape(decode.prepare, self.sampler))
        return program.lower(
            self._sampler,
            prepared,
            self.pool,
            self.decoding,
            scalar(jnp.float32),
            rules,
            self.sizes.width,
            scalar(jnp.int32),
            scalar(jnp.int32),
        )

    def _lower_score(self) -> jax.stages.Lowered:
        s, count = self.sizes, self._config.batch
        where = mesh.batch_sharding(self._devices)
        tokens = _array((count, s.group, s.response), jnp.int32, where)
        prompts = self._prompts(count, s.prompt, self._devices)
        reference = self.reference if self._config.grpo.kl else None
        return self._score.lower(self.policy, reference, prompts, tokens, self._layout(count))

    def _layout(self, count: int) -> Layout:
        """The longest responses fill as many rows as there are of them."""
        s, where = self.sizes, mesh.batch_sharding(self._devices)
        return Layout(
            source=_array((count, s.group, s.response), jnp.int32, where),
            start=_array((count, s.group), jnp.int32, where),
        )

    def _lower_gradients(self) -> jax.stages.Lowered:
        s, config = self.sizes, self._config
        count, where = config.batch // config.grpo.minibatches, mesh.batch_sharding(self._devices)
        array = lambda *shape, dtype=jnp.float32: _array((count, *shape), dtype, where)
        responses = partial(array, s.group, s.response)
        batch = Experience(
            prompts=self._prompts(count, s.prompt, self._devices),
            tokens=responses(dtype=jnp.int32),
            lengths=array(s.group, dtype=jnp.int32),
            advantages=array(s.group),
            old_logprobs=responses(),
            ref_logprobs=responses() if config.grpo.kl else None,
            starts=array(s.group, dtype=jnp.int32) if s.group > config.rollout.n else None,
            layout=self._layout(count),
        )
        return self._update.gradients.lower(self.state.params, batch, self._frozen)

    def _lower_optimizer(self) -> jax.stages.Lowered:
        value = jax.ShapeDtypeStruct((), jnp.float32)
        return self._update.apply.lower(self.state, value, self.state.params)


def _array(shape: tuple[int, ...], dtype: Any, where: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def _place(devices: Mesh, tree: Any) -> Any:
    """Parameters or a state, placed by the table of the mesh."""
    return jax.tree.map(
        lambda leaf, where: _array(leaf.shape, leaf.dtype, where),
        tree,
        mesh.shardings(devices, tree),
    )


def device_bytes(tree: Any) -> int:
    """Bytes of a placed abstract tree on one device."""
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * _item_bytes(leaf.dtype)
        for leaf in jax.tree.leaves(tree)
    )


def _item_bytes(dtype: Any) -> int:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return 8  # two words of threefry
    return jnp.dtype(dtype).itemsize
