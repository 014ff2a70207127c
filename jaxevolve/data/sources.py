"""How do people keep their questions? Files and the built-in renderer, as one sequence of rows.

A row is a dictionary:

    id        str, the file's own, or FILE:ROW
    question  str, with `<image>` where an image stands
    images    list of encoded bytes, paths or PIL images; nothing is decoded here
    answer    str, or None where the data has no labels
    family    str or None, the kind of question
    solution  str or None, a worked solution
"""

import glob
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxevolve.data.geometry import FAMILIES, GeometryProblems
from jaxevolve.runtime.errors import UserError, nearest

Row = dict[str, Any]
Rows = Sequence[Row]

GENERATED = "geometry"
_SUFFIXES = (".parquet", ".jsonl")
_USUAL = {
    "problem": ("problem", "question"),
    "answer": ("answer", "solution", "ground_truth"),
    "image": ("images", "image"),
}
_EXTRA = ("id", "family", "solution", "choices")


def load_rows(
    path: str,
    problem_key: str | None = None,
    answer_key: str | None = None,
    image_key: str | None = None,
) -> Rows:
    """Opens a source of questions.

    Layouts: Hugging Face parquet (images as `list<struct<bytes, path>>`, one such struct, bytes or
    paths) and JSONL (images as paths relative to the file's folder). hiyouga/geometry3k, GEOQA_R1V,
    MMR1 and the JSONL of this project are read without naming a column.

    Args:
        path: a file, a folder, a glob of files, FOLDER@SPLIT for the files of a folder whose names
            begin with SPLIT, or "geometry", "geometry:tri=0.4,per3=0.6,seed=1,difficulty=2" for the
            built-in renderer (family weights, and the arguments of `GeometryProblems`).
        problem_key: column of the question; None takes "problem" or "question".
        answer_key: column of the label; None takes "answer", "solution" or "ground_truth", and no
            labels where there is none of them. The content of <answer> tags is taken where there
            are any, and a letter stands for its choice where the row has `choices`.
        image_key: column of the image or images; None takes "images" or "image", and text alone
            where there is neither.

    Returns:
        A sequence of rows with random access, safe to read from several threads.

    Raises:
        UserError: no such file, no rows, no such column, or a line that is not JSON.
    """
    if path == GENERATED or path.startswith(f"{GENERATED}:"):
        return _generated(path)
    files = find_files(path)
    keys: dict[str, str | None] | None = None
    parts: list[tuple[Path, pa.Table | list[Row]]] = []
    for file in files:
        columns, read = _open(file)
        wanted = {"problem": problem_key, "answer": answer_key, "image": image_key}
        found = {role: _key(role, key, columns, file) for role, key in wanted.items()}
        if keys is not None and found != keys:
            raise UserError(
                f"{file} has other columns ({_used(found)}) than {files[0]} ({_used(keys)}); "
                "give data.path one kind of file"
            )
        keys = found
        parts.append((file, read({key for key in found.values() if key} | set(_EXTRA))))
    rows = FileRows(tuple(parts), keys)
    if not len(rows):
        raise UserError(f"{path} holds no rows; give data.path a file with questions")
    return rows


def is_generated(path: str) -> bool:
    """Whether a path names the built-in renderer, whose rows need no checking."""
    return path.split(":")[0] == GENERATED


@dataclass(frozen=True)
class FileRows(Sequence):
    """Rows of one or more files. Parquet stays one Arrow table a file, images undecoded."""

    parts: tuple[tuple[Path, pa.Table | list[Row]], ...]
    keys: Mapping[str, str | None]

    def __len__(self) -> int:
        return sum(len(records) for _, records in self.parts)

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        part = 0
        while index >= len(self.parts[part][1]):
            index -= len(self.parts[part][1])
            part += 1
        file, records = self.parts[part]
        if isinstance(records, pa.Table):
            return _row(records.slice(index, 1).to_pylist()[0], self.keys, file, index)
        return _row(records[index], self.keys, file, index)


@dataclass(frozen=True)
class Subset(Sequence):
    """Some rows of a sequence, in the order of their indices."""

    rows: Rows
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Row:
        return self.rows[self.indices[index]]


def find_files(path: str, suffixes: Sequence[str] = _SUFFIXES) -> list[Path]:
    """The files of a path, folder, glob or FOLDER@SPLIT, sorted; parquet and JSONL unless said.

    Raises:
        UserError: there is none, or a folder holds several splits and none was named.
    """
    base, at, split = path.rpartition("@")
    if not at or Path(path).exists():
        base, split = path, ""
    if Path(base).is_file():
        if Path(base).suffix not in suffixes:
            raise UserError(f"{path} is neither parquet nor JSONL; convert it to one of them")
        return [Path(base)]
    if Path(base).is_dir():
        files = [file for file in Path(base).rglob("*") if file.suffix in suffixes]
    elif glob.has_magic(base):
        files = [Path(file) for file in glob.glob(base, recursive=True)]
        files = [file for file in files if file.suffix in suffixes]
    else:
        beside = Path(base).parent
        others = [str(other) for other in beside.iterdir()] if beside.is_dir() else []
        near = nearest(base, others)
        advice = f"did you mean {near}?" if near else "give data.path a file, a folder or a glob"
        raise UserError(f"data path {path} does not exist; {advice}")
    if not files:
        raise UserError(f"{path} holds no {' and no '.join(suffixes)} file")
    splits = sorted({_split(file) for file in files} - {""})
    if split:
        files = [file for file in files if file.stem == split or file.stem.startswith(f"{split}-")]
        if not files:
            raise UserError(f"{base} has no split {split!r}; it has {', '.join(splits) or 'none'}")
    elif len(splits) > 1 and Path(base).is_dir():
        raise UserError(
            f"{base} holds several splits ({', '.join(splits)}); "
            f"name one, such as {base}@{'train' if 'train' in splits else splits[0]}"
        )
    return sorted(files)


def _split(file: Path) -> str:
    """The split that a file's name tells: train-00000-of-00001.parquet, val.jsonl."""
    match = re.match(r"(train|testmini|test|val|validation|dev)(-|$)", file.stem)
    return match[1] if match else ""


def _open(file: Path) -> tuple[list[str], Any]:
    """A file's columns, and a function that reads some of them."""
    if file.suffix == ".parquet":
        try:
            opened = pq.ParquetFile(file)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{file} is no parquet file that can be read: {error}") from None
        columns = opened.schema_arrow.names
        return columns, lambda some: opened.read([name for name in columns if name in some])
    records = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"line {number} of {file} is not JSON: {error}") from None
            if not isinstance(record, dict):
                raise UserError(f"line {number} of {file} is not a JSON object")
            records.append(record)
    columns = list(dict.fromkeys(name for record in records for name in record))
    return columns, lambda some: [
        {name: value for name, value in record.items() if name in some} for record in records
    ]


def _key(role: str, key: str | None, columns: Sequence[str], file: Path) -> str | None:
    if key:
        if key not in columns:
            near = nearest(key, columns)
            advice = f"did you mean {near}?" if near else f"it has {', '.join(columns)}"
            raise UserError(f"{file} has no column {key!r} (data.{role}_key); {advice}")
        return key
    for usual in _USUAL[role]:
        if usual in columns:
            return usual
    if role == "problem" and columns:
        raise UserError(
            f"{file} has no column named {' or '.join(_USUAL[role])}; "
            f"name it by data.problem_key: {', '.join(columns)}"
        )
    return None


def _used(keys: Mapping[str, str | None]) -> str:
    return ", ".join(f"{role} in {key}" for role, key in keys.items() if key)


def _row(record: Row, keys: Mapping[str, str | None], file: Path, index: int) -> Row:
    def text(name: str) -> str | None:
        value = record.get(name)
        return value if isinstance(value, str) and value.strip() else None

    identity = record.get("id")
    return {
        "id": f"{file.name}:{index}" if identity is None else str(identity),
        "question": text(keys["problem"]) or "",
        "images": _images(record.get(keys["image"]), file.parent) if keys["image"] else [],
        "answer": _answer(record.get(keys["answer"]), record) if keys["answer"] else None,
        "family": text("family"),
        "solution": text("solution"),
    }


def _images(value: Any, folder: Path) -> list[bytes | Path]:
    """Every way to write an image, as bytes or a path."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [image for item in value for image in _images(item, folder)]
    if isinstance(value, Mapping):
        encoded = value.get("bytes")
        return [encoded] if encoded is not None else _images(value.get("path"), folder)
    if isinstance(value, str):
        return [folder / value]
    return [value]


def _answer(value: Any, record: Row) -> str | None:
    if isinstance(value, list | tuple):
        value = ", ".join(str(item) for item in value)
    if value is None or value != value or not str(value).strip():
        return None
    answer = str(value).strip()
    if tagged := re.findall(r"<answer>(.*?)</answer>", answer, re.DOTALL):
        answer = tagged[-1].strip()
    choices = record.get("choices")
    if choices and re.fullmatch(r"[A-Z]", answer) and ord(answer) - ord("A") < len(choices):
        answer = str(choices[ord(answer) - ord("A")])
    return answer


def _generated(path: str) -> GeometryProblems:
    """The renderer that "geometry:tri=0.4,seed=1" describes."""
    families: dict[str, float] = {}
    arguments: dict[str, int] = {}
    options = ("seed", "difficulty", "size", "length")
    for part in filter(None, path.partition(":")[2].split(",")):
        name, equals, value = part.partition("=")
        if name not in FAMILIES and name not in options:
            near = nearest(name, [*FAMILIES, *options])
            known = f"families are {', '.join(FAMILIES)}, options {', '.join(options)}"
            raise UserError(
                f"{name!r} in {path} is unknown; "
                + (f"did you mean {near}? " if near else "")
                + known
            )
        try:
            if name in FAMILIES:
                families[name] = float(value) if equals else 1.0
            else:
                arguments[name] = int(value)
        except ValueError:
            raise UserError(f"{part!r} in {path} is no NAME=NUMBER") from None
    return GeometryProblems(**arguments, **({"families": families} if families else {}))
