"""What does a config make of a model? State, frozen parameters, compiled functions, a checkpoint.

The pieces that `train` puts together, each a function of the config and of arrays.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from jaxevolve import collapse
from jaxevolve.hf.export import copy_texts
from jaxevolve.hf.processor import Processor
from jaxevolve.learner import Experience, TrainState, cast, make_score, make_update
from jaxevolve.models.lora import init_adapters
from jaxevolve.moments import scale_by_adam
from jaxevolve.objectives import grpo_loss, mean_metrics
from jaxevolve.runtime import checkpoint, mesh
from jaxevolve.runtime.errors import UserError

log = logging.getLogger("jaxevolve")


def make_optimizer(config: ConfigDict) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """AdamW behind a clip of the global norm, and its learning rate by update."""
    rate = optax.constant_schedule(config.lr)
    if config.warmup:
        rate = optax.linear_schedule(0.0, config.lr, config.warmup)
    if config.moments == "float32":
        adam = optax.scale_by_adam(config.b1, config.b2)
    else:
        adam = scale_by_adam(config.b1, config.b2, config.moments, jax.random.key(0))
    adamw = optax.chain(
        adam, optax.add_decayed_weights(config.weight_decay), optax.scale_by_learning_rate(rate)
    )
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw), rate


def fresh_state(
    params: Any, optimizer: optax.GradientTransformation, config: ConfigDict
) -> TrainState:
    """What training starts from: parameters, or adapters of them, and a new optimizer state."""
    if config.lora.rank:
        key = jax.random.key(config.seed)
        trained = init_adapters(params, config.lora.rank, config.lora.targets, key)
    else:
        # A copy: updates consume the state, and the reference goes on using the original.
        trained = jax.tree.map(jnp.copy, params)
    judge = become_judge(trained, config) if config.judge.refresh else None
    return TrainState(trained, optimizer.init(trained), jnp.zeros((), jnp.int32), judge)


def become_judge(trained: Any, config: ConfigDict) -> Any:
    """A copy of what is trained, which updates do not consume, in the type that is computed in.

    Adapters stay as they are: they are small, and what they adapt is frozen anyway.
    """
    dtype = "float32" if config.lora.rank else config.model.dtype
    return jax.tree.map(jnp.copy, cast(trained, dtype))


def start_or_resume(
    workdir: Path,
    params: Any,
    optimizer: optax.GradientTransformation,
    devices: jax.sharding.Mesh,
    config: ConfigDict,
) -> tuple[TrainState, int, Any]:
    """The state, the number of finished steps, and the position in the data, if any."""
    fresh = partial(fresh_state, optimizer=optimizer, config=config)
    shapes = jax.eval_shape(fresh, params)
    where = mesh.shardings(devices, shapes)
    wanted = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        where,
    )
    restored = checkpoint.restore(workdir, arrays_of(wanted))
    if restored is not None:
        return TrainState(**restored.state), restored.step, restored.meta["data"]
    return jax.jit(fresh, out_shardings=where)(params), 0, None


def arrays_of(state: TrainState) -> dict[str, Any]:
    """The fields of a state that there are, as a checkpoint holds them."""
    return {name: field for name, field in vars(state).items() if field is not None}


def lora_scale(config: ConfigDict) -> float:
    """What adapters are multiplied by: alpha / rank."""
    return config.lora.alpha / max(config.lora.rank, 1)


def frozen_parameters(
    params: Any, devices: jax.sharding.Mesh, config: ConfigDict
) -> tuple[Any, Any]:
    """What is not trained, in the type that is computed in.

    Returns:
        A function that gives the reference's parameters, on the device when it is called, or None
        where neither a KL term nor a judge needs them; and the parameters that adapters are
        attached to, or None without any. They are one tree. With `grpo.offload_reference` the
        reference lies in the host's memory between calls, unless adapters need it on the device
        anyway.
    """
    judge = config.judge
    needed = config.grpo.kl or (judge.repeats and judge.path is None and not judge.refresh)
    if not needed and not config.lora.rank:
        return None, None
    params = jax.jit(partial(cast, dtype=config.model.dtype))(params)
    if config.lora.rank:
        return (lambda: params) if needed else None, params
    if not config.grpo.offload_reference:
        return lambda: params, None
    places = mesh.shardings(devices, params)
    away = jax.device_put(params, mesh.in_host_memory(places))
    return lambda: jax.device_put(away, places), None


def make_functions(
    model: Any,
    optimizer: Any,
    devices: jax.sharding.Mesh,
    micro: int,
    config: ConfigDict,
    shardings: Any = None,
) -> tuple[Any, Any]:
    """The compiled scoring and update functions of a run; `shardings` are those of its state."""
    settings = config.grpo
    shards = devices.shape["data"] * devices.shape["fsdp"]

    def loss(logprobs: Any, entropy: Any, weights: Any, batch: Experience) -> Any:
        return grpo_loss(
            logprobs,
            batch.old_logprobs,
            batch.ref_logprobs,
            batch.advantages,
            weights,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            kl=settings.kl,
            entropy=entropy,
            entropy_coef=settings.entropy,
        )

    common = {"temperature": config.rollout.temperature, "dtype": config.model.dtype}
    pieces = config.batch // (micro * shards)
    score = make_score(model, micro_batches=pieces, **common)
    update = make_update(
        model,
        optimizer,
        loss,
        micro_batches=pieces // settings.minibatches,
        remat=settings.remat,
        aggregation=settings.aggregation,
        max_tokens=config.rollout.max_tokens,
        lora_scale=lora_scale(config),
        shardings=shardings,
        **common,
    )
    return score, update


def improve(
    state: TrainState,
    experience: Experience,
    update: Any,
    config: ConfigDict,
    frozen: Any = None,
) -> tuple[TrainState, list[dict[str, float]], int]:
    """One pass over the batch in minibatches of prompts, an update each.

    `frozen` are the parameters that the state adapts, if it does.

    Returns:
        The new state, the metrics of each update, and how many were skipped as not finite.
    """
    _, place = mesh.placement(state.params)
    # A process has its share of every minibatch.
    mine = len(experience.lengths)
    size = mine // config.grpo.minibatches
    learned = []
    for first in range(0, mine, size):
        part = jax.tree.map(lambda x, i=first: x[i : i + size], experience)
        state, values = update(state, place(part), frozen)
        learned.append(values)
    learned = jax.device_get(learned)
    return state, learned, int(sum(values["skipped"] for values in learned))


def summarize(learned: list[dict[str, Any]]) -> dict[str, float]:
    """Means over a step's updates; what was not finite does not hide the rest."""
    means = [
        mean_metrics({k: v[k] for k in v if k in ("weight", "kl", "clip_fraction")})
        for v in learned
    ]
    return {
        "policy/loss": np.mean([v["loss"] for v in learned]),
        "policy/grad_norm": np.mean([v["grad_norm"] for v in learned]),
        "policy/kl": np.mean([m.get("kl", 0.0) for m in means]),
        "policy/clip_fraction": np.mean([m["clip_fraction"] for m in means]),
    }


def alarms(values: dict[str, float], config: ConfigDict) -> dict[str, str]:
    """What a person should know of a step, by the metric that tells it.

    A metric that the recipe does not have raises no alarm.
    """
    off = 1e-3 if config.model.dtype == "float32" else 1.0
    limits = {
        "rollout/truncated": (
            0.5,
            "{:.0%} of the responses were cut before they ended; raise rollout.max_tokens="
            f"{config.rollout.max_tokens}",
        ),
        "advantage/zero_groups": (
            0.9,
            "{:.0%} of the questions teach nothing, as all their responses earn the same; they may "
            "be too hard, too easy, or cut short",
        ),
        "rollout/logprob_gap": (
            off,
            "sampler and trainer differ by {:.2g} in the log-probability of a token, more than "
            f"{off:g}; updates are off-policy",
        ),
    }
    return {
        name: sentence.format(values[name])
        for name, (limit, sentence) in limits.items()
        if values.get(name, 0.0) > limit
    }


def save(
    workdir: Path,
    step: int,
    state: TrainState,
    position: Any,
    processor: Processor,
    best_step: int | None,
    config: ConfigDict,
    last: bool,
) -> None:
    """Saves a checkpoint; a full disk ends the run only where nothing could follow."""
    steps = {*checkpoint.saved(workdir), step}
    try:
        checkpoint.save(
            workdir,
            step,
            arrays_of(state),
            {"data": position, "seed": config.seed, "lora": lora_of(config)},
            write_files=partial(copy_texts, processor.folder),
            keep=config.checkpoint.keep,
            stay={best_step, *collapse.needed(steps, step, config.collapse)},
        )
    except checkpoint.NotSaved as error:
        if last:
            raise
        log.warning("%s", error)


def roll_back(workdir: Path, step: int, state: TrainState, config: ConfigDict) -> tuple[Any, int]:
    """The state of the newest checkpoint from before a collapse that was told at `step`.

    The state of the collapse is deleted, and its checkpoints are set aside as STEP.collapsed: the
    same command goes on from the good one.

    Returns:
        The state, and the steps that it has behind it.

    Raises:
        UserError: there is no such checkpoint.
    """
    last = collapse.good(checkpoint.saved(workdir), step, config.collapse)
    if last is None:
        raise UserError(
            f"the run has collapsed by step {step} and no checkpoint is from before; lower "
            f"--config.optimizer.lr (now {config.optimizer.lr}) or --config.checkpoint.every (now "
            f"{config.checkpoint.every}), and begin anew with another --workdir"
        )
    checkpoint.set_aside(workdir, last, "collapsed")
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
        arrays_of(state),
    )
    for leaf in jax.tree.leaves(state):
        leaf.delete()  # it makes room for the other
    restored = checkpoint.restore(workdir, wanted)
    return TrainState(**restored.state), restored.step


def lora_of(config: ConfigDict) -> dict[str, Any] | None:
    """What a checkpoint of adapters needs to be a model again."""
    if not config.lora.rank:
        return None
    base = str(Path(config.model.path).absolute())
    return {**config.lora.to_dict(), "scale": lora_scale(config), "base": base}
