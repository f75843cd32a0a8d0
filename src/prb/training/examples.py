"""Pairs as numbers, on disk: every text's vector once, and rows that say where they stand.

A folder of the cache holds `vectors.f4` and `rows.i4`, read through the operating system's memory map, so a million
pairs take no more memory than a batch. Its name is a hash of the data and the features: methods share it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import prb.cache
from prb.data.load import Dataset, load
from prb.data.retrieve import ranker
from prb.data.source import open_source
from prb.errors import BadInput
from prb.hashing import digest
from prb.models.personal.features import Features
from prb.models.personal.method import Method, Pairs, View
from prb.models.personal.scorer import query_of, read_answers
from prb.progress import SILENT, Progress
from prb.runs import read_json, write_json
from prb.stats.estimate import codes
from prb.types import Ask, Failure, Pair, Query

CHUNK = 256
REMEMBERED = 300_000
"""How many recent texts are recognised when they come again; older ones are written twice rather than kept in mind."""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    vectors: NDArray[np.float32]
    rows: NDArray[np.int32]
    """question, chosen, rejected, posts …: places in `vectors`, -1 for nothing"""
    users: list[str]
    """Of every person, by number."""
    person: Ints
    cluster: Ints
    twins: Ints
    fingerprint: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def readable(self) -> Ints:
        """Rows whose answers could both be read."""
        return np.flatnonzero((self.rows[:, 1] >= 0) & (self.rows[:, 2] >= 0))

    def pairs(self, positions: Ints, method: Method, code: Any) -> Pairs:
        """Some rows with all their vectors; posts only for methods that look at them."""
        rows = np.asarray(self.rows[positions])
        most = max(1, int((rows[:, 3:] >= 0).sum(axis=1).max(initial=0))) if method.looks_at_posts else 1
        wanted = rows[:, 3 : 3 + most] if rows.shape[1] > 3 else np.full((len(rows), 1), -1)
        shown = (wanted >= 0) & method.looks_at_posts
        posts = np.where(shown[:, :, None], self.vectors[np.maximum(wanted, 0)], np.float32(0))
        view = View(self.vectors[rows[:, 0]], posts, shown.astype(np.float32), code)
        return Pairs(view, self.vectors[rows[:, 1]], self.vectors[rows[:, 2]], codes_of(self.person[positions]))


def codes_of(people: Ints) -> Ints:
    """The same people as 0, 1, 2 … by first appearance."""
    _, first, inverse = np.unique(people, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    return np.asarray(place[inverse])


def open_training(spec: str, split: str | None, limit: int | None = None) -> Dataset:
    """Unlike an evaluation, training never falls back to the test rows."""
    first = next(iter(open_source(spec).rows()), None)
    carried = first is not None and isinstance(first.data, dict) and "split" in first.data
    if split == "test":
        raise BadInput("--split test: what is trained on the test rows cannot be tested on them")
    return load(spec, split=split or ("train" if carried else None), limit=limit)


def prepare(
    dataset: Dataset, features: Features, *, joint: bool, k: int, rank: str, progress: Progress = SILENT
) -> Examples:
    """From the cache folder, or computed into it."""
    parts = [dataset.fingerprint, dataset.split, len(dataset), features.fingerprint, joint, k, rank]
    folder = prb.cache.cache_path().parent / "features" / digest(*parts).hex()
    if not folder.exists():
        progress.begin(f"features of {dataset.name}", total=len(dataset))
        _write(folder, dataset, features, joint=joint, k=k, rank=rank, progress=progress)
    about = read_json(folder / "about.json")
    index = dataset.index
    vectors = np.memmap(folder / "vectors.f4", dtype="<f4", mode="r").reshape(-1, about["size"])
    rows = np.memmap(folder / "rows.i4", dtype="<i4", mode="r").reshape(-1, 3 + k)
    return Examples(
        vectors=vectors,
        rows=rows,
        users=list(dict.fromkeys(index.users)),
        person=codes(index.users),
        cluster=codes(index.clusters),
        twins=np.asarray(index.twins, dtype=np.int64),
        fingerprint=dataset.fingerprint,
    )


def _write(
    folder: Path, dataset: Dataset, features: Features, *, joint: bool, k: int, rank: str, progress: Progress
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    order = ranker(rank)
    with (draft / "vectors.f4").open("wb") as vectors, (draft / "rows.i4").open("wb") as rows:
        writer = Writer(features, vectors, joint=joint)
        for chunk in _chunks(dataset):
            asks = [(query_of(pair, order, k), pair) for pair in chunk]
            rows.write(_places(writer, asks, k, posts=not joint).tobytes())
            progress.advance(len(chunk))
    write_json(draft / "about.json", {"size": writer.size, "features": features.fingerprint, "data": dataset.name})
    draft.replace(folder)  # last of all, so that a folder that exists is complete


def _chunks(dataset: Dataset) -> Iterator[list[Pair]]:
    stream = (item for item in dataset if isinstance(item, Pair))
    while chunk := list(islice(stream, CHUNK)):
        yield chunk


def _places(writer: Writer, asks: Sequence[tuple[Query, Pair]], k: int, *, posts: bool) -> NDArray[np.int32]:
    """The rows of one chunk; posts that were read with the answers are not read alone as well."""
    apart = [[post.text for post in query.posts] if posts else [] for query, _ in asks]
    texts = writer.texts([text for (query, _), own in zip(asks, apart, strict=True) for text in (query.question, *own)])
    answers = writer.answers([Ask(query, answer) for query, pair in asks for answer in pair.answers])
    rows = np.full((len(asks), 3 + k), -1, dtype="<i4")
    at = 0
    for n, own in enumerate(apart):
        count = len(own)
        rows[n, 0], rows[n, 1:3] = texts[at], answers[2 * n : 2 * n + 2]
        rows[n, 3 : 3 + count] = texts[at + 1 : at + 1 + count]
        at += 1 + count
    return rows


class Writer:
    """Appends vectors that are not there yet, and tells where each stands."""

    def __init__(self, features: Features, file: BinaryIO, *, joint: bool) -> None:
        self.size = 0
        self._features, self._file, self._joint = features, file, joint
        self._places: dict[bytes, int] = {}
        self._written = 0

    def texts(self, texts: Sequence[str]) -> list[int]:
        keys = [digest("text", text) for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._places}
        rows = list(self._features.texts(list(new.values()))) if new else []
        return self._placed(keys, dict(zip(new, rows, strict=True)))

    def answers(self, asks: Sequence[Ask]) -> list[int]:
        keys = [self._answer_key(ask) for ask in asks]
        new = {key: ask for key, ask in zip(keys, asks, strict=True) if key not in self._places}
        rows = read_answers(self._features, list(new.values()), joint=self._joint) if new else []
        return self._placed(keys, dict(zip(new, rows, strict=True)))

    def _answer_key(self, ask: Ask) -> bytes:
        told = [post.text for post in ask.query.posts] if self._joint else []
        return digest("answer", ask.query.question, told, ask.answer)

    def _placed(self, keys: Sequence[bytes], rows: dict[bytes, Any]) -> list[int]:
        for key, row in rows.items():
            if isinstance(row, Failure):
                self._places[key] = -1
                continue
            self._file.write(np.asarray(row, dtype="<f4").tobytes())
            self._places[key], self.size = self._written, len(row)
            self._written += 1
        places = [self._places[key] for key in keys]
        while len(self._places) > REMEMBERED:
            self._places.pop(next(iter(self._places)))
        return places
