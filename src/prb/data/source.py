"""Where rows come from: JSONL, Parquet, a folder of them. A source streams; it never holds the whole set.

Rows arrive raw, with the place they came from and whatever is wrong with their bytes. What they mean is
decided in `schema`, so that every format is checked by the same rules.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import orjson

from prb.errors import BadInput, unknown
from prb.registry import Spec

MAX_LINE = 16 * 1024 * 1024
"""Longer lines are refused: no person's row is 16 MB, and one bad line must not fill the memory."""

SPLITS = ("train", "validation", "test")


class RawRow(NamedTuple):
    place: str
    """File name, to be read together with `line`."""
    line: int
    raw: bytes
    """Canonical bytes, for fingerprints."""
    data: Any = None
    problem: str | None = None


class Source(Protocol):
    @property
    def name(self) -> str: ...

    def rows(self) -> Iterator[RawRow]: ...


def open_source(text: str) -> Source:
    """A dataset spec: a registered name, `hub:owner/name`, a file or a folder."""
    from prb.data.registry import DATASETS

    if text.startswith("hub:"):
        from prb.data.hub import HubSource

        return HubSource.parse(text)
    path = Path(text)
    if path.is_dir():
        return Folder(text, path)
    if path.is_file():
        return file_source(path)
    if Spec.parse(text).name in DATASETS:
        return DATASETS.make(text)
    if path.suffix in READERS or "/" in text:
        raise BadInput(f"{text} does not exist")
    raise unknown("dataset", Spec.parse(text).name, list(DATASETS), hint="give a file, a folder, or hub:owner/name")


@dataclass(frozen=True)
class Jsonl:
    name: str
    path: Path

    def rows(self) -> Iterator[RawRow]:
        try:
            with _open(self.path) as file:
                yield from _parse_lines(file, self.path.name)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise BadInput(f"{self.path} cannot be read as gzip: {error}") from None


@dataclass(frozen=True)
class Parquet:
    name: str
    path: Path

    def rows(self) -> Iterator[RawRow]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                line = 0
                for batch in file.iter_batches(batch_size=1024):
                    for row in batch.to_pylist():
                        line += 1
                        yield dict_row(self.path.name, line, unfold(row))
        except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{self.path} cannot be read as Parquet: {error}") from None


@dataclass(frozen=True)
class Rows:
    """Rows already in memory, for embedded sets and tests."""

    name: str
    items: Iterable[dict[str, Any]]

    def rows(self) -> Iterator[RawRow]:
        for line, row in enumerate(self.items, 1):
            yield dict_row(self.name, line, row)


@dataclass(frozen=True)
class Folder:
    """All data files below a folder, by name; `train.jsonl` or `test-00000-of-00001.parquet` name their split."""

    name: str
    path: Path

    def rows(self) -> Iterator[RawRow]:
        files = sorted(p for p in self.path.rglob("*") if p.is_file() and _reader(p) and not _hidden(p, self.path))
        if not files:
            raise BadInput(f"{self.path} holds no {' or '.join(READERS)} file")
        for path in files:
            split = next((s for s in SPLITS if path.name.startswith(s)), None)
            for row in file_source(path).rows():
                yield with_split(row, split)._replace(place=str(path.relative_to(self.path)))


def with_split(row: RawRow, split: str | None) -> RawRow:
    if split is None or not isinstance(row.data, dict) or "split" in row.data:
        return row
    return row._replace(data={**row.data, "split": split})


def dict_row(place: str, line: int, row: dict[str, Any]) -> RawRow:
    raw = orjson.dumps(row, option=orjson.OPT_SORT_KEYS, default=str)
    return RawRow(place, line, raw, row, _nul(raw))


READERS: dict[str, type[Jsonl] | type[Parquet]] = {
    ".jsonl": Jsonl,
    ".ndjson": Jsonl,
    ".jsonl.gz": Jsonl,
    ".parquet": Parquet,
}


def file_source(path: Path) -> Source:
    reader = _reader(path)
    if reader is None:
        raise BadInput(f"{path}: unknown format; known are {', '.join(READERS)}")
    return reader(str(path), path)


def _reader(path: Path) -> type[Jsonl] | type[Parquet] | None:
    return next((reader for ending, reader in READERS.items() if path.name.endswith(ending)), None)


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb", buffering=1 << 20)


def _parse_lines(file: BinaryIO, place: str) -> Iterator[RawRow]:
    for number, line in enumerate(iter(partial(file.readline, MAX_LINE), b""), 1):
        if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
            yield RawRow(place, 1, b"", problem="wrong encoding: the file is UTF-16, wants UTF-8")
            return
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            _skip_line(file)
            yield RawRow(place, number, b"", problem=f"the line is longer than {MAX_LINE >> 20} MB")
            continue
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if text and not text.isspace():
            yield _parse_line(place, number, text)


def _parse_line(place: str, number: int, line: bytes) -> RawRow:
    problem = _nul(line)
    if problem:
        return RawRow(place, number, line, problem=problem)
    try:
        return RawRow(place, number, line, orjson.loads(line))
    except orjson.JSONDecodeError as error:
        return RawRow(place, number, line, problem=_why(line, error))


NUL = "holds a NUL byte"
_NUL_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""Not after an escaped backslash: a text may well speak of `\\u0000`."""


def _nul(line: bytes) -> str | None:
    # a raw NUL byte is broken JSON and found as such; most lines hold no backslash, and one byte is quickly looked for
    return NUL if b"\\" in line and b"\\u0000" in line and _NUL_ESCAPE.search(line) else None


def _why(line: bytes, error: orjson.JSONDecodeError) -> str:
    if b"\0" in line:
        return NUL
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as bad:
        return f"wrong encoding: byte {bad.start + 1} is not UTF-8"
    return f"broken JSON: {error.msg} (column {error.colno})"


def _skip_line(file: BinaryIO) -> None:
    while True:
        rest = file.readline(MAX_LINE)
        if not rest or rest.endswith(b"\n"):
            return


EXTRA = "extra_json"
"""Parquet column for what does not fit its typed columns; see `convert`."""


def unfold(row: dict[str, Any]) -> dict[str, Any]:
    """A Parquet row as it was before: empty cells are absent fields, the extra column is spread out again."""
    extra = row.pop(EXTRA, None)
    plain = {key: _plain(value) for key, value in row.items() if value is not None}
    return {**plain, **orjson.loads(extra)} if extra else plain


def _plain(value: Any) -> Any:
    """Structs lose the fields that only other rows have."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return dict(value)
        return [_plain(item) for item in value]
    return value
