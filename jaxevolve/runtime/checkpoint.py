"""How does a run survive a kill? Whole checkpoints, readable on any mesh.

    WORKDIR/checkpoints/STEP/state/     orbax: the arrays
    WORKDIR/checkpoints/STEP/meta.json  step, what the caller gave, and a table of arrays and files
    WORKDIR/checkpoints/STEP/...        what the caller puts beside: config and tokenizer files

A checkpoint is written to STEP.partial and renamed when every byte is on disk, so a folder named by
a bare number is a whole one. meta.json holds the size and CRC-32 of every file of state/: the array
store itself hands out a flipped byte without a word.
"""

import concurrent.futures
import contextlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxevolve.runtime.distributed import agree, from_first, wait
from jaxevolve.runtime.errors import UserError

_LOG = logging.getLogger(__name__)


class NotSaved(UserError):
    """A checkpoint could not be written; those already there are untouched.

    The trainer reports it and goes on, as a disk may be emptied in time for the next checkpoint. At
    the end of a run it is an error like any other.
    """


class Restored(NamedTuple):
    """What `restore` found: the step, the state on the wanted devices, and the caller's meta."""

    step: int
    state: Any
    meta: dict[str, Any]


def save(
    workdir: str | Path,
    step: int,
    state: Any,
    meta: Mapping[str, Any],
    *,
    write_files: Callable[[Path], None] | None = None,
    keep: int = 2,
    stay: Collection[int | None] = (),
) -> Path:
    """Writes WORKDIR/checkpoints/STEP, then removes the checkpoints that are no longer wanted.

    Every process calls it with the same arguments; the array store makes each write its own shards.

    Args:
        workdir: the run's folder.
        step: number of finished steps.
        state: pytree of arrays, whatever their sharding.
        meta: JSON values that belong to this step (data position, seed, evaluation score).
        write_files: puts further files into the folder it is given (called by process 0).
        keep: the newest `keep` checkpoints stay, at least this one.
        stay: further steps whose checkpoints stay, such as that of the best evaluation.

    Returns:
        The folder of the checkpoint.

    Raises:
        NotSaved: the disk has no room or refuses the write.
    """
    root = Path(workdir).absolute() / "checkpoints"
    first = jax.process_index() == 0
    arrays = _describe(state)
    needed = int(1.02 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))) + 2**20
    if first:
        root.mkdir(parents=True, exist_ok=True)
        for stale in [*root.glob("*.partial"), *root.glob("*.old")]:
            shutil.rmtree(stale)
    free = shutil.disk_usage(root).free if first else needed
    if not agree(free >= needed):
        raise NotSaved(
            f"checkpoint {step} was not saved: {root} has {free / 2**20:.0f} MB free and it needs "
            f"{needed / 2**20:.0f} MB; free some space or lower --config.checkpoint.keep"
        )
    partial, final = root / f"{step}.partial", root / str(step)
    failure: Exception | None = None
    try:
        with _store() as store:
            store.save(partial / "state", args=ocp.args.PyTreeSave(state))
        if first:
            if write_files is not None:
                write_files(partial)
            table = {"step": step, "arrays": arrays, "files": _checksums(partial / "state")}
            (partial / "meta.json").write_text(json.dumps({**meta, **table}, indent=1))
            _sync_to_disk(partial)
            if final.exists():
                final.rename(root / f"{step}.old")
            partial.rename(final)
            _sync_folder(root)
    except Exception as error:  # a full disk is an OSError here and a ValueError in the array store
        failure = error
        if first:
            shutil.rmtree(partial, ignore_errors=True)
    written = agree(failure is None)
    if failure is not None and not _disk_failure(failure):
        raise failure
    if not written:
        raise NotSaved(
            f"checkpoint {step} was not saved: {_disk_failure(failure)}; "
            f"the checkpoints already in {root} are untouched"
        ) from failure
    if first:
        _prune(root, keep, stay)
    return final


def restore(workdir: str | Path, abstract_state: Any) -> Restored | None:
    """Reads the newest intact checkpoint of a run.

    A damaged newest one is reported, set aside as STEP.corrupt, and the one before it is read.

    Args:
        workdir: the run's folder.
        abstract_state: the state's tree of `jax.ShapeDtypeStruct`, each with the sharding that the
            array shall have here. It need not be the sharding, nor the number of devices, of the
            run that saved it.

    Returns:
        The step, state and meta, or None where no checkpoint has been finished yet.

    Raises:
        UserError: checkpoints are there and none can be read, or they belong to another model.
    """
    root = Path(workdir).absolute() / "checkpoints"
    steps = from_first(_steps(root))
    for unfinished in sorted(root.glob("*.partial")):
        _LOG.warning("%s was never finished and is ignored", unfinished)
    damaged: list[tuple[Path, Exception]] = []
    for step in reversed(steps):
        folder = root / str(step)
        try:
            state, meta = load(folder, abstract_state)
        except Damaged as error:
            damaged.append((folder, error))
            continue
        for bad, error in damaged:
            _LOG.warning("%s; it is set aside and step %d is used", error, step)
            if jax.process_index() == 0:
                bad.rename(bad.with_suffix(".corrupt"))
        return Restored(step, state, meta)
    if damaged:
        raise UserError(
            f"{damaged[0][1]}, and no other checkpoint of {root} can be read; "
            "delete the folder to start anew, or give another --workdir"
        )
    return None


class Damaged(UserError):
    """A checkpoint that is not what was written."""


def load(folder: str | Path, abstract_state: Any) -> tuple[Any, dict[str, Any]]:
    """Reads one checkpoint.

    Args:
        folder: WORKDIR/checkpoints/STEP.
        abstract_state: as for `restore`; it may be a part of what was saved ({"params": ...}
            without the optimizer), the rest is then not read.

    Returns:
        The arrays, in the tree and shardings of `abstract_state`, and the caller's meta.

    Raises:
        Damaged: a file is missing, cut or changed.
        UserError: an array is missing or has another shape or dtype.
    """
    folder = Path(folder).absolute()
    trouble = _trouble(folder) if jax.process_index() == 0 else ""
    if not agree(not trouble):
        raise Damaged(f"checkpoint {folder} is damaged: {trouble or 'see process 0'}")
    meta = json.loads((folder / "meta.json").read_text())
    saved = meta.pop("arrays")
    wrong = [
        f"{name} is {saved.get(name, 'missing')} and {wanted} is wanted"
        for name, wanted in _describe(abstract_state).items()
        if saved.get(name) != wanted
    ]
    if wrong:
        raise UserError(
            f"checkpoint {folder} is of another model or optimizer: {'; '.join(wrong[:5])}"
            f"{f' (and {len(wrong) - 5} more)' if len(wrong) > 5 else ''}; "
            "use the config it was made with, or another --workdir"
        )
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    restore_args = jax.tree.map(
        lambda leaf: ocp.ArrayRestoreArgs(sharding=getattr(leaf, "sharding", None) or here),
        abstract_state,
    )
    args = ocp.args.PyTreeRestore(abstract_state, restore_args=restore_args, partial_restore=True)
    with _store() as store:
        state = store.restore(folder / "state", args=args)
    del meta["files"]
    return state, meta


def read_meta(folder: str | Path) -> dict[str, Any]:
    """What the caller of `save` put into a checkpoint's meta.json, and more."""
    return json.loads((Path(folder) / "meta.json").read_text(encoding="utf-8"))


def saved(workdir: str | Path) -> list[int]:
    """The steps of a run's finished checkpoints, oldest first."""
    return _steps(Path(workdir) / "checkpoints")


def latest(workdir: str | Path) -> int | None:
    """The newest finished step of a run, or None."""
    return max(saved(workdir), default=None)


def set_aside(workdir: str | Path, after: int, name: str) -> None:
    """Renames the checkpoints after a step to STEP.NAME, so that they are none any more.

    Every process calls it; process 0 does it.
    """
    if jax.process_index() == 0:
        for step in saved(workdir):
            if step > after:
                folder = Path(workdir) / "checkpoints" / str(step)
                aside = folder.with_suffix(f".{name}")
                shutil.rmtree(aside, ignore_errors=True)
                folder.rename(aside)
    wait()


def is_run(path: str | Path) -> bool:
    """Whether a path is a work directory, its checkpoints/ or one of them, and no model folder."""
    path = Path(path)
    inside = path.name == "checkpoints" and path.is_dir()
    return inside or (path / "checkpoints").is_dir() or (path / "meta.json").is_file()


def find(path: str | Path) -> Path:
    """The checkpoint that a person means by a work directory, its checkpoints/, or one step.

    Raises:
        UserError: there is none.
    """
    path = Path(path)
    if (path / "meta.json").is_file():
        return path
    for root in (path / "checkpoints", path):
        if steps := _steps(root):
            return root / str(steps[-1])
    raise UserError(
        f"{path} is no checkpoint: give WORKDIR, WORKDIR/checkpoints or WORKDIR/checkpoints/STEP "
        "of a run that has saved one"
    )


def _store() -> ocp.Checkpointer:
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def _steps(root: Path) -> list[int]:
    """Finished steps, oldest first."""
    if not root.is_dir():
        return []
    return sorted(int(folder.name) for folder in root.iterdir() if folder.name.isdecimal())


def _prune(root: Path, keep: int, stay: Collection[int | None]) -> None:
    for step in _steps(root)[: -max(keep, 1)]:
        if step not in stay:
            # Renamed first: a kill half-way must not leave a folder that looks finished.
            shutil.rmtree((root / str(step)).rename(root / f"{step}.old"))
    for replaced in root.glob("*.old"):
        shutil.rmtree(replaced, ignore_errors=True)


def _describe(tree: Any) -> dict[str, str]:
    """{path: "float32[3,4]"} of every array."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _checksums(folder: Path) -> dict[str, list[int]]:
    """{relative path: [bytes, CRC-32]} of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return {
            path.relative_to(folder).as_posix(): [path.stat().st_size, crc]
            for path, crc in zip(files, pool.map(_crc32, files))
        }


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            crc = zlib.crc32(block, crc)
    return crc


def _trouble(folder: Path) -> str:
    """What is wrong with a checkpoint's files, or ""."""
    try:
        recorded = json.loads((folder / "meta.json").read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"meta.json cannot be read ({type(error).__name__})"
    found = _checksums(folder / "state")
    for name, entry in recorded.items():
        if name not in found:
            return f"state/{name} is missing"
        if found[name] != entry:
            return f"state/{name} is not what was written"
    return ""


def _sync_to_disk(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    # Some network file systems refuse to sync a folder; the rename is then as safe as they make it.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _disk_failure(error: Exception | None) -> str:
    """What the disk said, or "" where the failure is of another kind."""
    if error is None:
        return "another process could not write its part"
    for sign in ("No space left", "Disk quota exceeded"):
        if sign in str(error):
            return sign.lower()
    return str(error) if isinstance(error, OSError) else ""
