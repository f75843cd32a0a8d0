"""Where rows come from: JSONL, Parquet, JSON, CSV, a folder of such files, the Hugging Face hub, or a named dataset.

A source streams; it never holds the whole dataset. Rows arrive raw, with the place they came from and whatever is wrong
with their bytes. `schema` decides what they mean, so that every format is checked by the same rules.
"""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple, Protocol

import orjson

from prb.errors import BadInput, MissingExtra, first_line, unknown
from prb.registry import Registry, Spec

MAX_LINE = 16 * 1024 * 1024
"""Longer lines are refused: no real row has 16 MB, and one bad line must not exhaust memory."""
MAX_COLUMNS = 10_000
BOMB = 500
"""How many times its size a packed file may unpack to; text does not come near, files made to fill a disk do."""
BOMB_BYTES = 64 << 20
"""Less than this is harmless, whatever it was packed into."""
SPLITS = ("train", "validation", "test")
EXTRA = "extra_json"
"""Parquet column for what does not fit the typed columns; see `convert`."""
BOM = b"\xef\xbb\xbf"

Row = dict[str, Any]


class BadRow(ValueError):
    """What is wrong with a row; whoever reads the rows adds the line."""


_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true/false", int: "a number", float: "a number"}


def kind_of(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


class RawRow(NamedTuple):
    place: str
    """File name, to be read together with `line`."""
    line: int
    raw: bytes
    """Canonical bytes, for fingerprints."""
    data: Any = None
    problem: str | None = None

    def fields(self) -> Row:
        """What the row holds. Raises `BadRow`."""
        if self.problem:
            raise BadRow(self.problem)
        if not isinstance(self.data, dict):
            raise BadRow(f"a row must be an object, not {kind_of(self.data)}")
        return self.data


class Source(Protocol):
    @property
    def name(self) -> str: ...

    def rows(self) -> Iterator[RawRow]: ...


class NamedDatasets(Registry[Source]):
    """Sources are named after the spec they are made of, in which a path on the hub has the revision that is read."""

    def build(self, spec: Spec) -> Source:
        path = spec.options.get("path", "")
        if path.startswith("hub:"):
            spec = Spec(spec.name, {**spec.options, "path": str(hub_snapshot(path)[0])})
        source = super().build(spec)
        if is_dataclass(source) and "name" in source.__dataclass_fields__:
            return replace(source, name=str(spec))
        return source


DATASETS = NamedDatasets("dataset", package="prb.data.named", group="prb.datasets")
"""Named datasets; files, folders and hub ids need no name."""


def open_source(text: str) -> Source:
    """A dataset spec: a registered name, `hub:owner/name`, a file or a folder.

    RewardBench is recognized by the first row; the name of the source says so.
    """
    if not text.startswith("hub:") and not Path(text).exists():
        name = Spec.parse(text).name
        if name in DATASETS:
            return DATASETS.make(text)
        if Path(text).suffix in READERS or "/" in text:
            raise BadInput(f"{text} does not exist")
        raise unknown("dataset", name, list(DATASETS), hint="give a file, a folder, or hub:owner/name")
    source = open_rows(text)
    try:
        first = next(iter(source.rows()), None)
    except BadInput:
        return source  # reported when the rows are read
    row = first.data if first else None
    if isinstance(row, dict) and {"chosen", "rejected", "subset"} <= row.keys() and "question" not in row:
        return DATASETS.build(Spec("rewardbench", {"path": text}))
    return source


def open_rows(text: str) -> Source:
    """The rows of a file, a folder or a hub repository as they are."""
    if text.startswith("hub:"):
        return hub_source(text)
    path = Path(text)
    if not path.exists():
        raise BadInput(f"{text} does not exist")
    return RowSource(partial(_read_folder, path), text) if path.is_dir() else file_source(path)


def file_source(path: Path) -> Source:
    if not path.is_file():
        raise BadInput(f"{path} is not a regular file; datasets are read more than once, so save it as one")
    if path.suffix not in READERS:
        raise BadInput(f"{path}: unknown format; known formats are {', '.join(READERS)}")
    return RowSource(partial(READERS[path.suffix], path), str(path))


def find_row(spec: str, row_id: str | None) -> RawRow:
    """One row of a dataset by its id, or by its place if it has none, whatever its split; without an id the first."""
    ids = []
    for row in open_source(spec).rows():
        if isinstance(row.data, dict):
            ids.append(str(row.data.get("id", f"{row.place}:{row.line}")))
            if row_id in (None, ids[-1]):
                return row
    if row_id is None:
        raise BadInput(f"{spec} has no rows")
    raise unknown(f"row of {spec}", row_id, ids, hint=f"ids look like {ids[0]!r}" if ids else "it is empty")


@dataclass(frozen=True)
class RowSource:
    """Rows that a function reads from the beginning whenever it is called."""

    rows: Callable[[], Iterator[RawRow]]
    name: str = ""


@dataclass(frozen=True)
class MemorySource:
    name: str
    items: Iterable[Row]

    def rows(self) -> Iterator[RawRow]:
        for line, row in enumerate(self.items, 1):
            yield dict_row(self.name, line, row)


def _read_jsonl(path: Path) -> Iterator[RawRow]:
    with path.open("rb", buffering=1 << 20) as file:
        read_line = partial(file.readline, MAX_LINE)
        for number, line in enumerate(iter(read_line, b""), 1):
            if len(line) == MAX_LINE and not line.endswith(b"\n"):
                while (rest := read_line()) and not rest.endswith(b"\n"):
                    pass
                yield RawRow(path.name, number, b"", problem=f"the line is longer than {MAX_LINE >> 20} MB")
                continue
            text = line.removeprefix(BOM) if number == 1 else line
            if not text or text.isspace():
                continue
            try:
                data = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                yield RawRow(path.name, number, text, problem=f"broken JSON: {error.msg} (column {error.colno})")
            else:
                yield RawRow(path.name, number, text, data)


def _read_parquet(path: Path) -> Iterator[RawRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            about = file.metadata
            size, groups = path.stat().st_size, [about.row_group(n) for n in range(about.num_row_groups)]
            unpacked = max((group.total_byte_size for group in groups), default=0)
            if about.num_rows > size or unpacked > max(BOMB_BYTES, BOMB * size):
                raise BadInput(f"{path} unpacks to more than {BOMB} times its size, so it is not read")
            lines = count(1)
            for batch in file.iter_batches(batch_size=64):
                if batch.nbytes > 64 * MAX_LINE:
                    raise BadInput(f"{path} has rows longer than {MAX_LINE >> 20} MB from row {next(lines)} on")
                for row in batch.to_pylist():
                    yield dict_row(path.name, next(lines), row, folded=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as Parquet: {first_line(error)}") from None


def _read_json(path: Path) -> Iterator[RawRow]:
    """A list of objects, or one object; rows are numbered. The file is read whole."""
    try:
        content = orjson.loads(path.read_bytes().removeprefix(BOM))
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{path} cannot be read as JSON: {error}; a file with one object per line is .jsonl") from None
    for number, row in enumerate(content if isinstance(content, list) else [content], 1):
        yield dict_row(path.name, number, row)


def _read_csv(path: Path) -> Iterator[RawRow]:
    """A header and one row per record, separated by commas, semicolons or tabs; an empty cell is null."""
    csv.field_size_limit(MAX_LINE)
    place, line = path.name, 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline(MAX_LINE)
            reader = csv.reader(chain([first], file), delimiter=max(",;\t", key=first.count), strict=True)
            header = [name.strip() for name in next(reader, [])]
            if twice := [name for name, times in Counter(header).items() if times > 1]:
                raise BadInput(f"{path} has two columns named {twice[0]!r}")
            line = reader.line_num + 1
            for cells in reader:
                if cells and len(cells) != len(header):
                    problem = f"the row has {len(cells)} cells, the header {len(header)}"
                    yield RawRow(place, line, repr(cells).encode(), problem=problem)
                elif cells:
                    yield dict_row(place, line, {k: cell or None for k, cell in zip(header, cells, strict=True)})
                line = reader.line_num + 1
    except csv.Error as error:
        yield RawRow(place, line, b"", problem=f"broken CSV: {error}")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} must be UTF-8: {error.reason}") from None


READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".json": _read_json,
    ".csv": _read_csv,
}
"""By how the name of a file ends."""
NOTES = (".json", ".csv")
"""What may also be notes: data only in a folder without files of the other formats."""


def _read_folder(folder: Path) -> Iterator[RawRow]:
    """All data files in a folder, by name; `train.jsonl` or `test-00000-of-00001.parquet` name their split."""
    relative = sorted(
        path.relative_to(folder) for path in folder.rglob("*") if path.suffix in READERS and path.is_file()
    )
    files = [path for path in relative if not any(part.startswith(".") for part in path.parts)]
    files = [path for path in files if path.suffix not in NOTES] or files
    if not files:
        raise BadInput(f"{folder} holds no {' or '.join(READERS)} file")
    for path in files:
        split = next((s for s in SPLITS if path.name.startswith(s)), None)
        for row in file_source(folder / path).rows():
            yield with_split(row, split)._replace(place=str(path))


def hub_snapshot(text: str) -> tuple[Spec, Path]:
    """`hub:owner/name?subset=…&revision=…`, a dataset on the Hugging Face hub, pinned to a revision, and its folder.

    The repository is downloaded once into the hub's own cache, so `HF_HUB_OFFLINE=1` works afterwards.
    """
    spec = Spec.parse(text)
    for key in spec.options:
        if key not in ("revision", "subset"):
            raise unknown("option of a hub dataset", key, ["revision", "subset"])
    hub, errors, repo = _hub_library("huggingface_hub"), _hub_library("huggingface_hub.errors"), spec.name[4:]
    try:
        folder = Path(hub.snapshot_download(repo, repo_type="dataset", revision=spec.options.get("revision")))
    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise BadInput(f"{spec.name}: {first_line(error)}") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, OSError) as error:
        reason = f"is not in the local cache and the hub cannot be reached ({type(error).__name__})"
        raise BadInput(f"{spec.name} {reason}") from None
    return Spec(spec.name, dict(sorted({**spec.options, "revision": folder.name}.items()))), folder


def hub_source(text: str) -> Source:
    """A dataset on the hub, read from its folder. The revision is part of the name, hence of the run."""
    spec, folder = hub_snapshot(text)
    datasets, exceptions = _hub_library("datasets"), _hub_library("datasets.exceptions")

    def rows() -> Iterator[RawRow]:
        try:
            subset, subsets = spec.options.get("subset"), list(datasets.get_dataset_config_names(str(folder)))
            if subset is not None and subset not in subsets:
                raise unknown(f"subset of {spec.name[4:]}", subset, subsets)
            for name in [subset] if subset else subsets:
                splits = datasets.load_dataset(str(folder), name=name, streaming=True)
                for split, content in splits.items():
                    for line, row in enumerate(content, 1):
                        yield with_split(dict_row(f"{name}/{split}", line, dict(row), folded=True), str(split))
        except (exceptions.DatasetsError, ValueError, OSError) as error:
            lines = str(error).split("\n")  # the last one names the cause
            raise BadInput(f"{spec} cannot be read: {' '.join(dict.fromkeys((lines[0], lines[-1])))}") from None

    return RowSource(rows, str(spec))


def _hub_library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra("reading from the hub", "hub") from None


def with_split(row: RawRow, split: str | None) -> RawRow:
    if split is None or not isinstance(row.data, dict) or "split" in row.data:
        return row
    return row._replace(data={**row.data, "split": split})


def dict_row(place: str, line: int, row: Any, *, folded: bool = False) -> RawRow:
    """A row that is an object already; `folded` as Parquet has it: empty cells, and a column with the other fields."""
    try:
        if folded:
            others = orjson.loads(row.pop(EXTRA, None) or b"{}")
            if not isinstance(others, dict):
                raise ValueError(f"`{EXTRA}` is no object")
            row = _without_nulls(row) | others
        raw = orjson.dumps(row, option=orjson.OPT_SORT_KEYS, default=str)
    except (ValueError, TypeError, RecursionError) as error:
        return RawRow(place, line, b"", problem=f"holds what JSON cannot hold: {first_line(error)}")
    return RawRow(place, line, raw, row)


def _without_nulls(value: Any) -> Any:
    """Without the struct fields that only other rows have."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


class Spool:
    """JSON values by number, in a temporary file from which they are read back one at a time."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=64 << 20)  # noqa: SIM115 - lives as long as the dataset
        self._ends = array("q", [0])

    def add(self, value: Any) -> int:
        self._file.seek(0, 2)
        self._ends.append(self._ends[-1] + self._file.write(orjson.dumps(value)))
        return len(self._ends) - 2

    def __getitem__(self, number: int) -> Any:
        start, end = self._ends[number : number + 2]
        self._file.seek(start)
        return orjson.loads(self._file.read(end - start))
