"""Pairs as numbers, on disk: every text's vector once, and rows that point to them.

A folder of the cache holds `vectors.f4` and `rows.i4`. Both are memory-mapped, so a million pairs take no more memory
than a batch. The folder's name is a hash of the data and the features: methods share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import prb.cache
from prb.batches import chunks
from prb.data.load import Dataset, deal, load, training_split
from prb.data.named.composed import Lesson
from prb.data.retrieve import ranker
from prb.data.source import Source, open_source
from prb.engine.executors import ahead, begin, window
from prb.errors import BadInput
from prb.hashing import digest, draw
from prb.models.personal.features import Features, encoded_texts
from prb.models.personal.head import query_of
from prb.models.personal.method import Method, Pairs, Taught, View
from prb.progress import SILENT, Progress
from prb.runs import content_digest, draft, read_sealed, write_sealed, writing
from prb.stats.estimate import codes
from prb.types import Ask, Failure, Pair, Query

CHUNK = 256
"""Pairs whose texts are encoded together."""
RECENT = 300_000
"""How many recent texts are recognized when they occur again; older ones are written twice to bound memory."""
Ints = NDArray[np.int64]
Positions = Callable[[], list[int]]
ABOUT, VECTORS, ROWS = "about.json", "vectors.f4", "rows.i4"


@dataclass(frozen=True)
class Examples:
    vectors: NDArray[np.float32]
    rows: NDArray[np.int32]
    """question, chosen, rejected, posts …: positions in `vectors`, -1 for none"""
    users: list[str]
    """Names of the users, by number."""
    user: Ints
    """The number of each row's user."""
    cluster: Ints
    twins: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def readable(self) -> Ints:
        """Rows whose two answers could be encoded."""
        return np.flatnonzero((self.rows[:, 1] >= 0) & (self.rows[:, 2] >= 0))

    def pairs(self, positions: Ints, method: Method, code: Any) -> Pairs:
        """Some rows with all their vectors; posts only for methods that use them."""
        rows = np.asarray(self.rows[positions])
        most = max(1, int((rows[:, 3:] >= 0).sum(axis=1).max(initial=0))) if method.uses_posts else 1
        places = rows[:, 3 : 3 + most] if rows.shape[1] > 3 else np.full((len(rows), 1), -1)
        shown = (places >= 0) & method.uses_posts
        posts = np.where(shown[:, :, None], self.vectors[np.maximum(places, 0)], np.float32(0))
        view = View(self.vectors[rows[:, 0]], posts, shown.astype(np.float32), code)
        _, first, inverse = np.unique(self.user[positions], return_index=True, return_inverse=True)
        number = np.argsort(np.argsort(first, kind="stable"))  # users as 0, 1, 2 … by first appearance
        return Pairs(view, self.vectors[rows[:, 1]], self.vectors[rows[:, 2]], number[inverse])


def fold_of(clusters: Ints, folds: int, seed: int) -> Ints:
    """A fold for each row; see `deal`."""
    independent = len(np.unique(clusters))
    if independent < folds:
        raise BadInput(f"{independent} independent users cannot be split into {folds} folds")
    return np.asarray(deal(clusters.tolist(), folds, seed), dtype=np.int64)


def split_off(clusters: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows to fit on and rows of held-out clusters: about `share` of all clusters, but at least one."""
    if share == 0:
        return np.arange(len(clusters)), np.empty(0, dtype=np.int64)
    names = np.unique(clusters)
    if len(names) < 2:
        raise BadInput("a single user cannot be split into training and validation; use --validation 0")
    order = sorted(names.tolist(), key=lambda name: draw(seed, name, bits=256))
    held = np.isin(clusters, order[: min(len(names) - 1, max(1, round(share * len(names))))])
    return np.flatnonzero(~held), np.flatnonzero(held)


def open_training(spec: str, split: str | None, limit: int | None = None, *, skip_bad: bool = False) -> Dataset:
    """Unlike an evaluation, training never falls back to the test rows."""
    if split in ("test", "hard", "all"):
        raise BadInput(f"--split {split}: a model that is trained on the test rows cannot be tested on them")
    source = open_source(spec)
    return load(source, split=split or training_split(source), limit=limit, skip_bad=skip_bad)


def prepare(
    dataset: Dataset, features: Features, *, joint: bool, k: int, rank: str, progress: Progress = SILENT
) -> Examples:
    """From the cache folder, or computed into it; what is damaged there is computed again."""
    parts = [dataset.fingerprint, dataset.split, digest(dataset.index.ids).hex(), features.fingerprint, joint, k, rank]
    folder = prb.cache.cache_path().parent / "features" / digest(*parts).hex()
    if not _intact(folder):
        progress.begin(f"features of {dataset.name}", total=len(dataset))
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with draft(folder) as part:
            _write(part, dataset, features, joint=joint, k=k, rank=rank, progress=progress)
    index = dataset.index
    size = read_sealed(folder / ABOUT)["size"]
    return Examples(
        vectors=np.memmap(folder / VECTORS, dtype="<f4", mode="r").reshape(-1, size),
        rows=np.memmap(folder / ROWS, dtype="<i4", mode="r").reshape(-1, 3 + k),
        users=list(dict.fromkeys(index.users)),
        user=codes(index.users),
        cluster=codes(index.clusters),
        twins=np.asarray(index.twins, dtype=np.int64),
    )


def _intact(folder: Path) -> bool:
    try:
        digests = read_sealed(folder / ABOUT).get("digests", {})
        return all(digests.get(name) == content_digest(folder / name) for name in (VECTORS, ROWS))
    except (BadInput, OSError):
        return False


def _write(
    folder: Path, dataset: Dataset, features: Features, *, joint: bool, k: int, rank: str, progress: Progress
) -> None:
    folder.mkdir()
    order = ranker(rank)
    stream = (item for item in dataset if isinstance(item, Pair))
    with (folder / VECTORS).open("wb") as vectors, (folder / ROWS).open("wb") as rows:
        writer = VectorFile(features, vectors, joint=joint)

        def start(chunk: list[Pair]) -> tuple[list[list[str]], Positions, Positions]:
            queries = [query_of(pair, order, k) for pair in chunk]
            # posts that are encoded with the answers are not encoded alone as well
            alone = [[] if joint else [post.text for post in query.posts] for query in queries]
            shown = zip(queries, alone, strict=True)
            texts = writer.texts([text for query, posts in shown for text in (query.question, *posts)])
            pairs = zip(queries, chunk, strict=True)
            return alone, texts, writer.answers([Ask(query, a) for query, pair in pairs for a in pair.contrast])

        for chunk, (alone, finish_texts, finish_answers) in ahead(chunks(stream, CHUNK), start, window(features)):
            texts, answers = iter(finish_texts()), finish_answers()
            places = np.full((len(chunk), 3 + k), -1, dtype="<i4")
            for n, posts in enumerate(alone):
                places[n, 0], places[n, 1:3] = next(texts), answers[2 * n : 2 * n + 2]
                places[n, 3 : 3 + len(posts)] = list(islice(texts, len(posts)))
            rows.write(places.tobytes())
            progress.advance(len(chunk))
    about = {"size": writer.size, "features": features.fingerprint, "data": dataset.name}
    digests = {name: content_digest(folder / name) for name in (VECTORS, ROWS)}
    write_sealed(folder / ABOUT, {**about, "digests": digests})


class VectorFile:
    """Appends the vectors of new texts to a file.

    Its methods hand in what is new, and return what to call, in the same order, for the position of each text.
    """

    def __init__(self, features: Features, file: BinaryIO, *, joint: bool) -> None:
        self.size = 0
        self._features, self._file, self._joint = features, file, joint
        self._positions: dict[bytes, int] = {}
        self._awaited: dict[bytes, dict[bytes, int]] = {}
        """Keys of texts that are being encoded, and where their positions will be."""
        self._written = 0

    def texts(self, texts: Sequence[str]) -> Positions:
        return self._start([digest("text", text) for text in texts], texts, "texts")

    def answers(self, asks: Sequence[Ask]) -> Positions:
        keys = [
            digest("answer", query.question, [post.text for post in query.posts] if self._joint else [], answer)
            for query, answer in asks
        ]
        shown = asks if self._joint else [Ask(query.blind, answer) for query, answer in asks]
        return self._start(keys, shown, "answers")

    def _start(self, keys: list[bytes], items: Sequence[Any], method: str) -> Positions:
        known = {key: self._positions[key] for key in keys if key in self._positions}
        awaited = {key: self._awaited[key] for key in keys if key in self._awaited}
        asked = zip(keys, items, strict=True)
        new = {key: item for key, item in asked if key not in known and key not in awaited}
        later = begin(self._features, method, list(new.values())) if new else None
        written: dict[bytes, int] = {}
        self._awaited.update(dict.fromkeys(new, written))

        def finish() -> list[int]:
            vectors = later.result() if later else ()
            written.update(zip(new, self._write(encoded_texts(vectors) if method == "texts" else vectors), strict=True))
            for key in new:
                del self._awaited[key]
            self._positions.update(written)
            while len(self._positions) > RECENT:
                self._positions.pop(next(iter(self._positions)))
            positions = {**known, **written, **{key: of[key] for key, of in awaited.items()}}
            return [positions[key] for key in keys]

        return finish

    def _write(self, vectors: Iterable[Any]) -> Iterator[int]:
        """The position of each; of one that could not be encoded -1."""
        for vector in vectors:
            if isinstance(vector, Failure):
                yield -1
                continue
            self._file.write(np.asarray(vector, dtype="<f4").tobytes())
            self.size = len(vector)
            yield self._written
            self._written += 1


def lessons_of(source: Source) -> list[Lesson]:
    """One per axis of the dataset."""
    lessons = list(getattr(source, "lessons", tuple)())
    if not lessons:
        raise BadInput(f"{source.name} has no labeled axes; 'mirror?split=train&users=2000' has")
    return lessons


def encode_lessons(source: Source, features: Features) -> list[Taught]:
    """Answers are encoded as they are for scoring."""
    taught = []
    for lesson in lessons_of(source):
        first, second = (np.asarray(features.texts(posts), dtype=np.float64) for posts in lesson.posts)
        asks = [Ask(Query(question=question), text) for question, *texts in lesson.answers for text in texts]
        vectors = features.answers(asks)
        whole = [
            (a, b)
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            if not isinstance(a, Failure) and not isinstance(b, Failure)
        ]
        if not whole:
            raise BadInput(f"axis {lesson.axis}: no answer could be encoded")
        taught.append(Taught(first, second, np.array(whole, dtype=np.float64)))
    return taught
