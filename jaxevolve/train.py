"""Trains a model on its own answers.

    python -m jaxevolve.train --config=configs/csrs.py[:SCALE] [--workdir=DIR] [--config.key=value]

One step: a batch of prompts, responses and re-inferences, rewards, a few clipped updates. The same
command resumes a run that was interrupted. Everything goes to the work directory.
"""

import itertools
import logging
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

from jaxevolve import collapse, report
from jaxevolve.benchmarks.table import find
from jaxevolve.data.pipeline import schedule, train_batches
from jaxevolve.data.validate import open_data
from jaxevolve.evaluations import Evaluations, open_questions, print_table
from jaxevolve.hf.export import export_folder
from jaxevolve.learner import assemble
from jaxevolve.models import attention
from jaxevolve.models.lora import merge
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.policy import Policy, load_model_params, load_model_processor, step_key
from jaxevolve.recipes import csrs, self_judge
from jaxevolve.rewards import user
from jaxevolve.runtime import cli, distributed, mesh, metrics
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.target import keep_programs
from jaxevolve.training import (
    alarms,
    become_judge,
    frozen_parameters,
    improve,
    lora_scale,
    make_functions,
    make_optimizer,
    roll_back,
    save,
    start_or_resume,
    summarize,
)
from jaxevolve.visits import TRAINING, Answered, Visits, rule_of

log = logging.getLogger("jaxevolve")


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string(
        "workdir",
        None,
        "where the run goes, or is resumed from; default runs/RECIPE-SCALE-TIME",
        flag_values=values,
    )
    distributed.define(values)


def main(values: flags.FlagValues) -> None:
    """One run, from the flags to the exported folder."""
    distributed.start(values)
    config = values.config
    name = f"{values.config_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    train(config, Path(values.workdir or Path("runs") / distributed.from_first(name)))


def train(config: ConfigDict, workdir: Path) -> None:
    """Runs or resumes training; where several processes make a run, each calls it.

    A process samples its share of every batch on its own devices. Scores and updates are computed
    by all together, and process 0 writes all but its shards of the checkpoints.

    Args:
        config: the effective config.
        workdir: the run's folder.

    Raises:
        UserError: the input is bad, by name, before anything is compiled; or the run cannot go on.
    """
    # 1. Everything that a person may have got wrong, before anything expensive.
    first = distributed.is_first()
    with distributed.together():
        devices = mesh.make_mesh(config.mesh)
        micro = mesh.prompts_per_device(
            devices, config.batch, config.grpo.minibatches, config.grpo.micro_batch
        )
        mesh.check_processes(devices)
        sampling = mesh.sampling_mesh(devices, config.rollout.tensor)
        processor = load_model_processor(config.model.path)
        model, sampler = (
            Qwen2_5_VL(
                processor.config,
                attention.choose(config.model.attention, those, config.model.dtype),
            )
            for those in (devices, mesh.own_part(sampling))
        )
        if first:
            open_workdir(workdir, config)
        judge_processor = self_judge.open_processor(config, processor)
        supervised = config.reward.kind == "label"
        if ":" in config.reward.kind:
            user.load(config.reward.kind)
        rows = open_data(
            config.data.path,
            config.data,
            processor,
            labels=supervised,
            listing=workdir / "dropped.jsonl" if first else None,
        )
        benchmark = find(config.eval.benchmark)
        listing = workdir / "dropped_questions.jsonl" if first else None
        questions = open_questions(config, benchmark, processor, listing)
        plan = schedule(config, len(rows))
    distributed.check_shared(workdir / "config.json")
    keep_programs(workdir / "programs")

    # 2. The model on its mesh, and the state, fresh or from the newest checkpoint.
    mesh.connect(devices)
    compiles = metrics.CompileCounter()
    started = load_model_params(processor, place=partial(mesh.param_sharding, devices))
    optimizer, learning_rate = make_optimizer(config.optimizer)
    state, step, position = start_or_resume(workdir, started, optimizer, devices, config)
    if step:
        log.info("resumed at step %d of %d", step, plan.steps)
    reference, frozen = frozen_parameters(started, devices, config)
    del started  # the parameters that were read have become the state and the reference
    where = mesh.shardings(devices, state)
    score, update = make_functions(model, optimizer, devices, micro, config, where)
    succeed = jax.jit(partial(become_judge, config=config), out_shardings=where.judge)
    whole = jax.jit(partial(assemble, dtype=config.model.dtype, lora_scale=lora_scale(config)))

    def views(params: Any) -> tuple[Policy, Any]:
        """What is sampled from, on this process's devices, and the same as it is scored with."""
        as_they_are = config.model.dtype == "float32" and frozen is None
        params = params if as_they_are else whole(params, frozen)
        return Policy(sampler, mesh.spread(sampling, params), processor), params

    other = None  # a judge that is another model than the policy
    if judge_processor is not None:
        place = partial(mesh.param_sharding, devices)
        params = load_model_params(judge_processor, config.model.dtype, place)
        other = Policy(
            Qwen2_5_VL(judge_processor.config, sampler.kernel),
            mesh.spread(sampling, params),
            judge_processor,
        )

    def judge() -> Policy:
        """What judges the responses of this step, on this process's devices."""
        if other is not None:
            return other
        if state.judge is not None:
            return views(state.judge)[0]
        return Policy(sampler, mesh.spread(sampling, reference()), processor)

    # 3. Steps.
    batches = train_batches(
        rows,
        processor,
        batch=config.batch,
        seed=config.seed,
        instruction=config.data.instruction,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        minibatches=config.grpo.minibatches,
    )
    if position is not None:
        batches.set_state(position)
    timer = metrics.PhaseTimer()
    writer = metrics.MetricsWriter(workdir, step) if first else None
    visits = Visits(workdir, step, rule_of(config.reward.kind))
    evaluations = Evaluations(workdir, benchmark, questions, config, visits)
    bar = metrics.progress_line(plan.steps, step)
    stop = StopSignal()
    skipped_in_a_row, warned, ill = 0, set(), ""
    past = collapse.history(distributed.from_first(metrics.read_jsonl(workdir / "metrics.jsonl")))
    if not step:
        evaluations.run(views(state.params)[0], step)
    last = stop.agreed()
    while step < plan.steps and not last:
        step += 1
        begun = time.perf_counter()
        batch = next(batches)
        key = step_key(config.seed, step)
        collected = csrs.collect(
            *views(state.params),
            reference() if config.grpo.kl else None,
            batch.rows,
            batch.prompts,
            key,
            config=config,
            score=score,
            timer=timer,
            judge=judge if config.judge.repeats else None,
        )
        with timer("update"):
            state, learned, skipped = improve(state, collected.experience, update, config, frozen)
        if config.judge.refresh and step % config.judge.refresh == 0:
            state = state.replace(judge=succeed(state.params))
        skipped_in_a_row = skipped_in_a_row + skipped if skipped == len(learned) else 0
        if skipped:
            ids = [i for own in distributed.gather([r["id"] for r in batch.rows]) for i in own]
            told = f"step {step}: {skipped} of {len(learned)} updates were not finite"
            log.warning("%s and changed nothing; rows %s", told, ids)
        seconds = time.perf_counter() - begun
        tokens = collected.metrics["rollout/tokens"] + collected.metrics["retrace/tokens"]
        values = {
            **collected.metrics,
            **summarize(learned),
            "policy/lr": float(learning_rate(int(state.updates) - 1)),
            "policy/skipped_updates": skipped,
            **timer.take(),
            "time/step": seconds,
            "throughput/tokens_per_second": tokens / seconds,
            "system/compiles": compiles.count,
            "system/host_rss_mb": metrics.host_rss_mb(),
        }
        if plan.steps > plan.steps_per_epoch:  # questions come again
            asked = map(Answered, (row["id"] for row in batch.rows), collected.answers)
            everyone = itertools.chain(*distributed.gather(list(asked)))
            values |= visits.note(TRAINING, step, list(everyone))
        past += collapse.history([{"step": step, **values}])
        was_ill, ill = ill, collapse.alarm(past, config.collapse)
        values["collapse/alarm"] = int(bool(ill))
        if ill and not was_ill:
            log.warning("step %d: the run has collapsed: %s", step, ill)
        for name, sentence in alarms(values, config).items():
            if name not in warned:
                log.warning("step %d: %s (%s)", step, sentence, name)
            warned.add(name)
        if first:
            writer.write(step, values)
            metrics.write_samples(workdir, step, collected.samples)
        shown = {k: f"{values[k]:.3f}" for k in ("reward/mean", "policy/entropy")}
        bar.set_postfix({**shown, "tok/s": f"{tokens / seconds:.0f}"})
        bar.update(1)
        if ill and config.collapse.action == "rollback":
            break
        if step == plan.steps or (plan.eval_every and step % plan.eval_every == 0):
            evaluations.run(views(state.params)[0], step)
        # Asked once: a wish that comes while the state is saved is granted after the next step.
        ends = bool(ill) and config.collapse.action == "stop"
        last = stop.agreed() or step == plan.steps or ends
        due = config.checkpoint.every and step % config.checkpoint.every == 0
        if due or last or evaluations.best_step == step:
            save(
                workdir,
                step,
                state,
                batches.get_state(),
                processor,
                evaluations.best_step,
                config,
                last,
            )
        if skipped_in_a_row >= config.optimizer.max_skipped:
            raise UserError(
                f"{skipped_in_a_row} updates in a row were not finite, up to step {step}; lower "
                f"--config.optimizer.lr (now {config.optimizer.lr}) and resume from {workdir}"
            )
        if ends:
            if first:
                report.write(workdir)
            raise UserError(
                f"the run has collapsed at step {step}: {ill}; lower --config.optimizer.lr (now "
                f"{config.optimizer.lr}), or resume from {workdir} with "
                "--config.collapse.action=warn"
            )
    bar.close()
    if first:
        writer.close()
    stop.restore()
    rolled_back = bool(ill) and config.collapse.action == "rollback"
    if rolled_back:
        state, step = roll_back(workdir, step, state, config)
        evaluations.run(views(state.params)[0], step)
    elif step < plan.steps:
        if not first:
            return
        print(f"\nStopped after step {step} of {plan.steps}; everything is saved. To go on, give")
        print(f"the same command with --workdir={workdir}")
        return

    # 4. What the run leaves.
    exported = workdir / "export"
    if first:
        shutil.rmtree(exported, ignore_errors=True)
    distributed.wait()  # until it is gone for all
    final = state.params if frozen is None else merge(frozen, state.params, lora_scale(config))
    export_folder(final, processor.config, processor.folder, exported)
    if first:
        page = report.write(workdir)
        told = [e for e in evaluations.all if e["step"] <= step]
        print_table(told, workdir / "checkpoints" / str(step), exported, page)
        if rolled_back:
            print(f"\nCollapsed, and back at step {step}: {ill}")


def open_workdir(workdir: Path, config: ConfigDict) -> None:
    """Makes the run's folder, writes and shows its settings, and tells which have changed since."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        changed = metrics.write_config(workdir, config)
    except OSError as error:
        raise UserError(
            f"work directory {workdir} cannot be used ({error.strerror}); give another --workdir"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{workdir}/config.json is not that of a run; give another --workdir"
        ) from error
    print(metrics.show_config(config), flush=True)
    for key, (old, new) in changed.items():
        log.warning("config.%s was %s when this run began and is %s now", key, old, new)


class StopSignal:
    """Turns SIGTERM and the first Ctrl-C into a wish that is granted at the next step's end.

    It is enough that one of several processes gets it.
    """

    def __init__(self) -> None:
        self.asked = False
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._before = {number: signal.signal(number, self._ask) for number in numbers}

    def agreed(self) -> bool:
        """Whether any process has been asked; the same on all, which ask this together."""
        return not distributed.agree(not self.asked)

    def restore(self) -> None:
        """Gives the signals back to those who had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: Any) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this step; press Ctrl-C again to stop at once", flush=True)


if __name__ == "__main__":
    cli.run(main, define, __doc__, config=True, leave=distributed.leave)
