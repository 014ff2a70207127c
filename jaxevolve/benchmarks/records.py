"""In what files do people have a benchmark? Records of them, whatever the layout.

Read are Hugging Face parquet (as lmms-eval reads it), JSON and JSONL as the authors of the
benchmarks publish them, and TSV with images in base64 as VLMEvalKit has it. A record is a
dictionary of the columns that a benchmark asked for; nothing is decoded but base64.
"""

import ast
import base64
import binascii
import csv
import glob
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxevolve.data.sources import find_files
from jaxevolve.runtime.errors import UserError

Record = dict[str, Any]
Names = tuple[str, ...]

_DATA, _TABLES = (".parquet", ".jsonl"), (".tsv", ".csv", ".json")
_ALL = (*_DATA, *_TABLES)
_SHORTEST_IMAGE = 64  # characters: a shorter image in a TSV is the index of the row that has it
_IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")


def read(
    path: str,
    wanted: Mapping[str, Names],
    optional: Mapping[str, Names] | None = None,
    *,
    identity: Names = ("id", "index"),
    image: Names = ("image", "images"),
    beside: str = "images",
) -> list[Record]:
    """Reads a benchmark's file or files.

    Args:
        path: a file (parquet, JSON, JSONL, TSV, CSV), a folder or glob of them, or FOLDER@SPLIT.
        wanted: what a record is to have -> the columns in which layouts have it, the first found
            is taken.
        optional: the same for what may be missing, and is None then.
        identity: columns that tell a row's id; its place in the file where there is none of them.
        image: columns with an image or images, the first that is not empty.
        beside: a folder beside the file that images may lie in.

    Returns:
        Records with "id", a string; "file", the file's name; "images", a list of encoded bytes and
        paths; and the names of
        `wanted` and `optional`. Columns that are objects of their own ("metadata") are searched
        as well.

    Raises:
        UserError: no such file, a file that cannot be read, a column that is missing, or two rows
            with one id.
    """
    found: list[Record] = []
    for file in files(path):
        raw = list(rows(file))
        if not raw:
            continue
        columns = list(dict.fromkeys(name for row in raw for name in row))
        for role, names in wanted.items():
            if not any(name in columns for name in names):
                raise UserError(_missing(file, role, names, columns))
        at_hand = {str(row.get("index")): row for row in raw if "index" in row}
        for place, row in enumerate(raw):
            name = first(row, identity)
            record = {
                "id": f"{file.name}:{place}" if name is None else text(name),
                "file": file.name,
                "images": _images(row, image, (file.parent, file.parent / beside), at_hand),
            }
            for role, names in {**wanted, **(optional or {})}.items():
                record[role] = first(row, names)
            found.append(record)
    if not found:
        raise UserError(f"{path} holds no rows; give --data a file with questions")
    seen: set[str] = set()
    for record in found:
        if record["id"] in seen:
            raise UserError(
                f"{path} has two rows with the id {record['id']!r}; give one file or split, "
                "in which every id is there once"
            )
        seen.add(record["id"])
    return found


def files(path: str) -> list[Path]:
    """The files of a path, glob or folder, sorted.

    Of a folder without parquet and JSONL the TSV in it are taken, else the CSV, else the JSON; the
    authors' archives have files of other kinds below.

    Raises:
        UserError: there is none.
    """
    if Path(path).is_file():
        if Path(path).suffix not in _ALL:
            raise UserError(
                f"{path} is of no kind that can be read ({', '.join(_ALL)}); convert it"
            )
        return [Path(path)]
    if glob.has_magic(path):
        return find_files(path, _ALL)
    folder = Path(path)
    if folder.is_dir() and not any(file.suffix in _DATA for file in folder.rglob("*")):
        for kind in _TABLES:
            if found := sorted(file for file in folder.iterdir() if file.suffix == kind):
                return found
    return find_files(path)


def rows(file: Path) -> Iterable[Record]:
    """The rows of one file as dictionaries, what is an object in them opened.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        if file.suffix == ".parquet":
            made: Iterable[Record] = pq.read_table(file).to_pylist()
        elif file.suffix in (".tsv", ".csv"):
            made = _table(file)
        else:
            made = _json(file)
        return [_opened(row) for row in made]
    except (OSError, pa.ArrowInvalid, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def first(row: Mapping[str, Any], names: Names) -> Any:
    """The first of a row's columns that is there and not empty; None without any."""
    return next((row[name] for name in names if not is_empty(row.get(name))), None)


def is_empty(value: Any) -> bool:
    """None, NaN, and text without a visible character."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def text(value: Any) -> str:
    """A cell as text: "" for an empty one, and 3 where a table had to make it 3.0."""
    if is_empty(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def items(value: Any) -> list[str]:
    """A cell that is a list, or text that writes one as Python or JSON do; [] for an empty one."""
    if is_empty(value):
        return []
    if isinstance(value, str):
        value = literal(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    return [text(item) for item in value] if isinstance(value, list | tuple) else [text(value)]


def literal(value: str) -> Any:
    """What a text writes in Python's or JSON's notation; the text itself where it is neither."""
    for reader in (ast.literal_eval, json.loads):
        try:
            return reader(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return value


def lettered(row: Mapping[str, Any]) -> list[str]:
    """The choices that a table has in columns A, B, C, ..."""
    letters = []
    for letter in "ABCDEFGHI":
        if is_empty(row.get(letter)):
            break
        letters.append(text(row[letter]))
    return letters


def _json(file: Path) -> Iterable[Record]:
    try:
        if file.suffix == ".jsonl":
            lines = file.read_text(encoding="utf-8").split("\n")  # text may hold other line ends
            value: Any = [json.loads(line) for line in lines if line.strip()]
        else:
            value = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    if isinstance(value, Mapping):  # {"1": {...}, "2": {...}}
        value = [{"id": key, **row} for key, row in value.items() if isinstance(row, Mapping)]
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise UserError(f"{file} is no list of JSON objects; give a file with one object a row")
    return [dict(row) for row in value]


def _table(file: Path) -> Iterable[Record]:
    csv.field_size_limit(sys.maxsize)  # an image is one field
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")
        made = list(reader)
    return [{key.strip(): value for key, value in row.items() if key} for row in made]


def _opened(row: Mapping[str, Any]) -> Record:
    """A row with the fields of its "metadata" and "category" objects beside its own."""
    made = dict(row)
    for name in ("metadata", "category"):
        inner = row.get(name)
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            inner = literal(inner)
        if isinstance(inner, Mapping):
            made = {**inner, **made}
    if choices := lettered(row):
        made.setdefault("lettered", choices)
    return made


def _images(
    row: Mapping[str, Any],
    names: Names,
    folders: Sequence[Path],
    at_hand: Mapping[str, Mapping[str, Any]],
) -> list[bytes | Path]:
    value = first(row, names)
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = literal(value)
    if isinstance(value, str) and len(value) < _SHORTEST_IMAGE and value in at_hand:
        other = first(at_hand[value], names)
        value = other if isinstance(other, str) and len(other) >= _SHORTEST_IMAGE else value
    return images(value, folders)


def images(value: Any, folders: Sequence[Path]) -> list[bytes | Path]:
    """Every way to write an image or several, as encoded bytes or a path.

    Args:
        value: bytes, a {bytes, path} struct, a path, base64, or a list of them; None for no image.
        folders: where paths count from; the first in which the file is, is taken.
    """
    if is_empty(value):
        return []
    if isinstance(value, list | tuple):
        return [image for item in value for image in images(item, folders)]
    if isinstance(value, Mapping):
        encoded = value.get("bytes")
        return [encoded] if encoded is not None else images(value.get("path"), folders)
    if isinstance(value, str):
        if len(value) >= _SHORTEST_IMAGE and not value.lower().endswith(_IMAGES):
            try:
                return [base64.b64decode(value, validate=True)]
            except binascii.Error:
                pass
        places = [folder / value for folder in folders]
        return [next((place for place in places if place.exists()), places[0])]
    return [value]


def _missing(file: Path, role: str, names: Sequence[str], columns: Sequence[str]) -> str:
    return (
        f"{file} has no column for the {role}: wanted is {' or '.join(names)}, "
        f"it has {', '.join(columns)}"
    )
