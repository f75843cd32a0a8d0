"""Pairs as numbers, and the loop that fits a head on them.

The loop is Adam over a method's parameters, with early stopping on held-out users and a checkpoint every epoch.
Everything random is drawn from the seed and the number of the epoch, so a run that was killed and resumed ends with the
same weights as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from prb import __version__
from prb.config import RankerName
from prb.data.load import Dataset, deal, load, training_split
from prb.data.named.mirror import Lesson
from prb.data.retrieve import RANKERS, top_posts
from prb.data.source import Source, open_source
from prb.errors import BadInput, PrbError
from prb.hashing import draw
from prb.models.personal.features import Features, encoded_texts
from prb.models.personal.head import Head, Scaler, require_torch, tensors
from prb.models.personal.methods import METHODS, Floats, Method, Pairs, Step, Taught, View
from prb.progress import SILENT, Progress
from prb.runs import draft
from prb.stats.estimate import codes, share
from prb.stats.paired import Twins, person_effect
from prb.training.config import FullConfig, TrainConfig
from prb.types import Ask, Estimate, Failure, Pair, Query, Tested
from prb.work import chunks

CHUNK = 256
"""Pairs whose texts are encoded together, and whose posts a closed-form method reads at once."""
RANKER: RankerName = "embedding"
"""How the k posts that a head is shown are picked, as evaluations do by default."""
Ints = NDArray[np.int64]


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


def open_training(spec: str, split: str | None, limit: int | None = None) -> Dataset:
    """Unlike an evaluation, training never falls back to the test rows."""
    if split in ("test", "hard", "all"):
        raise BadInput(f"--split {split}: a model that is trained on the test rows cannot be tested on them")
    source = open_source(spec)
    return load(source, split=split or training_split(source), limit=limit)


def provenance(config: TrainConfig | FullConfig, dataset: Dataset) -> dict[str, Any]:
    data = {"name": dataset.name, "fingerprint": dataset.fingerprint, "split": dataset.split, "rows": len(dataset)}
    return {"prb": __version__, "data": data, "train": config.saved(), "seed": config.seed}


def prepare(dataset: Dataset, features: Features, *, joint: bool, k: int, progress: Progress = SILENT) -> Examples:
    """Every distinct text's vector once, and rows that point to them. What is slow to encode comes from the cache if
    another run has encoded it."""
    progress.begin(f"features of {dataset.name}", total=len(dataset))
    rank, rows = RANKERS[RANKER], [np.empty((0, 3 + k), dtype=np.int32)]
    vectors: list[Any] = []
    known: dict[Any, int] = {}

    def positions(items: Sequence[Any], encode: Callable[[list[Any]], Iterable[Any]]) -> list[int]:
        """Where the vector of each text or ask is; -1 if it cannot be encoded."""
        new = [item for item in dict.fromkeys(items) if item not in known]
        for item, vector in zip(new, encode(new) if new else (), strict=True):
            known[item] = -1 if isinstance(vector, Failure) else len(vectors)
            vectors.extend([] if isinstance(vector, Failure) else [np.asarray(vector, dtype=np.float32)])
        return [known[item] for item in items]

    for chunk in chunks((item for item in dataset if isinstance(item, Pair)), CHUNK):
        # as condition `profile` shows a pair; posts are only ranked where that makes a difference
        shown = [p.profile if len(p.profile) <= k else top_posts(p.question, p.profile, rank, k=k).posts for p in chunk]
        queries = [Query(question=p.question, posts=tuple(posts)) for p, posts in zip(chunk, shown, strict=True)]
        # posts that are encoded with the answers are not encoded alone as well
        alone = [[] if joint else [post.text for post in query.posts] for query in queries]
        texts = [text for query, posts in zip(queries, alone, strict=True) for text in (query.question, *posts)]
        in_context = [query if joint else query.blind for query in queries]
        asks = [Ask(query, answer) for query, pair in zip(in_context, chunk, strict=True) for answer in pair.contrast]
        of_texts = iter(positions(texts, lambda new: encoded_texts(list(features.texts(new)))))
        of_answers = positions(asks, features.answers)
        places = np.full((len(chunk), 3 + k), -1, dtype=np.int32)
        for n, posts in enumerate(alone):
            places[n, 0], places[n, 1:3] = next(of_texts), of_answers[2 * n : 2 * n + 2]
            places[n, 3 : 3 + len(posts)] = list(islice(of_texts, len(posts)))
        rows.append(places)
        progress.advance(len(chunk))
    if not vectors:
        raise BadInput(f"{dataset.name} has no pairs to learn from")
    return Examples(
        vectors=np.stack(vectors),
        rows=np.concatenate(rows),
        users=list(dict.fromkeys(dataset.index.users)),
        user=codes(dataset.index.users),
        cluster=codes(dataset.index.clusters),
        twins=np.asarray(dataset.index.twins, dtype=np.int64),
    )


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


SCALER_ROWS = 20_000
"""Rows the scaler is fitted on, at most."""
VALIDATION_ROWS = 4_096
"""Held-out rows that are scored after every epoch, at most."""
CODE_RATE = 10
"""Learning rate of users' codes relative to shared weights: a code is in one batch of an epoch, weights in all."""
CODE_SCALE = 0.3
"""Standard deviation of users' codes at the start."""
KNOWN_USERS = 500
"""Training users whose codes a head keeps to compare new users with, at most."""
CLOSED_FORM_ROWS = 50_000
"""Rows a closed-form method gets, at most: it keeps a few numbers of each in memory."""
INFERENCE_ROWS = 4_096
"""Rows of whole users from which codes are inferred at once."""
MARGIN_ROWS = 2048
"""Rows whose margins are computed at once."""
SUPPORT = 8
"""Labeled pairs that a held-out user gives away at most, and never more than half of the rows."""
# Streams of random numbers, apart from each other whatever the seed.
SCALER_STREAM, SOLVE_STREAM, START_STREAM, ORDER_STREAM, KNOWN_STREAM = range(1, 6)


@dataclass(frozen=True, kw_only=True)
class Learning:
    epochs: int = 60
    seed: int = 0
    l2: float = 0.01
    """Penalty on squared weights, where a head is trained by Adam."""
    lr: float = 0.003
    patience: int = 8
    """Epochs without a lower loss on the validation users after which training stops."""
    batch: int = 512
    """Rows per step, about: the pairs of a user stay together."""


@dataclass(frozen=True)
class Epoch:
    epoch: int
    """From 1."""
    loss: float
    held_loss: float | None = None
    """On held-out users, if there are any."""


@dataclass(frozen=True)
class Learned:
    head: Head
    curve: list[Epoch]
    best: int
    """The epoch whose weights were kept, from 1."""
    report: dict[str, Any]


def learn(
    spec: str,
    examples: Examples,
    fit: Ints,
    held: Ints,
    learning: Learning,
    *,
    lessons: Sequence[Taught] = (),
    checkpoint: Path | None = None,
    progress: Progress = SILENT,
) -> Learned:
    """Fit on some rows, stop by others. `checkpoint` survives an interruption; whoever saves the head removes it.

    Methods that are `taught` learn from the lessons alone.
    """
    method = METHODS.make(spec)
    if method.taught:
        posts = np.concatenate([posts for lesson in lessons for posts in (lesson.first, lesson.second)])
        answers = np.concatenate([lesson.answers.reshape(-1, posts.shape[1]) for lesson in lessons])
        scaler = Scaler.fit(answers, posts)
        params = method.teach([scaler.taught(lesson) for lesson in lessons])
        head = Head(spec, single_precision(params), scaler, np.zeros(0))
        return Learned(head, [], 0, {"axes": len(lessons)})
    rows = np.sort(np.random.default_rng([learning.seed, SCALER_STREAM]).permutation(fit)[:SCALER_ROWS])
    texts = examples.rows[rows][:, [0, *range(3, examples.rows.shape[1])]]
    answers = examples.vectors[np.asarray(examples.rows[rows, 1:3]).ravel()]
    scaler = Scaler.fit(answers, examples.vectors[np.unique(texts[texts >= 0])])
    if method.closed_form:
        rows = np.sort(np.random.default_rng([learning.seed, SOLVE_STREAM]).permutation(fit)[:CLOSED_FORM_ROWS])
        parts = (
            scaler.pairs(examples.pairs(rows[n : n + CHUNK], method, np.zeros((len(rows[n : n + CHUNK]), 0))))
            for n in range(0, len(rows), CHUNK)
        )
        head = Head(spec, single_precision(method.solve(parts)), scaler, np.zeros(0))
        return Learned(head, [], 0, {"rows_used": len(rows)})
    require_torch()
    training = Training(spec, method, examples, fit, scaler, learning)
    if checkpoint and (about := load_state(checkpoint, training.state, training.optimizer, progress)):
        training.curve, training.best = [Epoch(**epoch) for epoch in about["curve"]], about["best"]
    done = len(training.curve)
    progress.begin(f"training {spec}", total=learning.epochs, done=done)
    for epoch in range(done, learning.epochs):
        if len(held) and epoch - training.best >= learning.patience:
            break
        training.epoch(epoch, held)
        if checkpoint:
            about = {"curve": training.curve, "best": training.best}
            save_state(checkpoint, training.state, training.optimizer, about)
        progress.advance()
    return training.learned()


def single_precision(arrays: Mapping[str, Any]) -> dict[str, Floats]:
    """Rounded to what is saved, so that the head in memory and the one on disk give the same rewards."""
    return {name: np.asarray(np.asarray(a, dtype=np.float32), dtype=np.float64) for name, a in arrays.items()}


class Training:
    """Parameters, optimizer state and the best weights so far."""

    def __init__(
        self, spec: str, method: Method, examples: Examples, fit: Ints, scaler: Scaler, learning: Learning
    ) -> None:
        import torch

        self.spec, self.method, self.examples, self.fit = spec, method, examples, fit
        self.scaler, self.learning = scaler, learning
        rng = np.random.default_rng([learning.seed, START_STREAM])
        start = method.start(examples.size, rng)
        self.users = np.unique(examples.user[fit])
        if method.tabled:
            start["codes"] = CODE_SCALE * rng.standard_normal((len(self.users), method.code_size))
        self.params = {n: torch.tensor(v, dtype=torch.float32, requires_grad=True) for n, v in start.items()}
        self.optimizer = torch.optim.Adam(
            [{"params": [p], "lr": learning.lr * (CODE_RATE if n == "codes" else 1)} for n, p in self.params.items()]
        )
        self.curve: list[Epoch] = []
        self.best = 0
        self.kept = {name: value.detach().clone() for name, value in self.params.items()}

    def epoch(self, number: int, held: Ints) -> None:
        import torch

        noise = torch.Generator().manual_seed(self.learning.seed * 1_000_003 + number)
        step, total = Step(number / self.learning.epochs, noise), 0.0
        unpenalized = self.method.unpenalized | {"codes"}
        weights = [value for name, value in self.params.items() if name not in unpenalized]
        for batch in user_batches(self.examples.user[self.fit], self.learning.batch, self.learning.seed, number):
            rows = self.fit[batch]
            pairs = self._pairs(rows, "float32")
            penalty = self.learning.l2 * sum(value.square().sum() for value in weights)
            if self.method.tabled:  # each row gets its user's code, each batch its share of the prior
                places, codes = np.searchsorted(self.users, self.examples.user[rows]), self.params["codes"]
                pairs = pairs._replace(view=pairs.view._replace(code=codes[torch.from_numpy(places)]))
                distance = codes[torch.from_numpy(np.unique(places))].square().sum()
                penalty = penalty + self.method.prior * distance / len(rows)
            loss = self.method.loss(self.params, pairs, step)
            if not bool(loss.isfinite()):
                raise PrbError(
                    f"{self.spec}: the loss is {float(loss.detach())} in epoch {number + 1}; --sweep chooses the "
                    "settings of the method and its L2 penalty by cross-validation"
                )
            self.optimizer.zero_grad()
            (loss + penalty).backward()
            self.optimizer.step()
            total += float(loss.detach()) * len(rows)
        done = Epoch(number + 1, total / len(self.fit))
        now = {name: value.detach().clone() for name, value in self.params.items()}
        if len(held):
            margins, _ = held_out_margins(self.head(now), self.examples, held[:VALIDATION_ROWS])
            done = replace(done, held_loss=float(np.logaddexp(0, -margins).mean()))
        lowest = min((epoch.held_loss for epoch in self.curve if epoch.held_loss is not None), default=np.inf)
        if done.held_loss is None or done.held_loss < lowest:
            self.best, self.kept = number + 1, now
        self.curve.append(done)

    def _pairs(self, rows: Ints, dtype: str) -> Pairs:
        """Rows for torch, scaled; users have no code yet."""
        code = np.zeros((len(rows), self.method.code_size))
        return tensors(self.scaler.pairs(self.examples.pairs(rows, self.method, code), dtype), dtype)

    def head(self, weights: Mapping[str, Any]) -> Head:
        """The head with these parameters; new users get the average code of the users seen."""
        params = single_precision({name: value.numpy() for name, value in weights.items()})
        codes = params.pop("codes", None)
        if codes is None:
            return Head(self.spec, params, self.scaler, np.zeros(self.method.code_size))
        known = np.random.default_rng([self.learning.seed, KNOWN_STREAM]).permutation(len(codes))[:KNOWN_USERS]
        params["people"] = codes[np.sort(known)]
        prior_mean = single_precision({"mean": codes.mean(axis=0)})["mean"]
        names = [self.examples.users[n] for n in self.users]
        return Head(self.spec, params, self.scaler, prior_mean, dict(zip(names, codes, strict=True)))

    def learned(self) -> Learned:
        head = self.head(self.kept)
        batches = list(user_batches(self.examples.user[self.fit], INFERENCE_ROWS, self.learning.seed, 0))
        if self.method.needs_pairs and not self.method.tabled:  # codes are inferred instead of kept in a table
            codes: dict[int, Floats] = {}
            for rows in batches:
                codes |= fitted_codes(head, self.examples, self.fit[rows])
            head = replace(head, codes=single_precision({self.examples.users[n]: codes[n] for n in sorted(codes)}))
        pairs = self._pairs(self.fit[batches[0]], "float64")
        report = self.method.report(head.tensors(), pairs, int(pairs.user.max()) + 1)
        return Learned(head, self.curve, self.best, report)

    @property
    def state(self) -> dict[str, Any]:
        return {**self.params, **{f"kept.{name}": value for name, value in self.kept.items()}}


OPTIMIZER = "optimizer."


def save_state(path: Path, tensors: Mapping[str, Any], optimizer: Any, about: Any) -> None:
    """What the next step of a loop depends on, in one safetensors file: tensors, the moments of an optimizer, and
    `about`, any JSON, in the file's header."""
    from safetensors.torch import save_file

    state = optimizer.state_dict()["state"]
    moments = {f"{OPTIMIZER}{n}.{name}": value for n, values in state.items() for name, value in values.items()}
    with draft(path) as part:
        solid = {name: tensor.detach().cpu().contiguous() for name, tensor in {**tensors, **moments}.items()}
        save_file(solid, part, metadata={"about": orjson.dumps(about).decode()})


def load_state(path: Path, tensors: Mapping[str, Any], optimizer: Any, progress: Progress) -> Any:
    """Put tensors and optimizer back to what they were, and return `about`; `None` if there is nothing to resume."""
    from safetensors import SafetensorError, safe_open
    from torch import no_grad

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = orjson.loads(file.metadata()["about"])
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        copies = [(tensor, saved[name].view_as(tensor)) for name, tensor in tensors.items()]
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        progress.note(f"{path} cannot be read ({error}); training starts again")
        return None
    with no_grad():
        for tensor, value in copies:
            tensor.copy_(value)
    moments: dict[int, dict[str, Any]] = {}
    for key, value in saved.items():
        if key.startswith(OPTIMIZER):
            number, _, name = key.removeprefix(OPTIMIZER).partition(".")
            moments.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return about


def user_batches(user: Ints, size: int, seed: int, epoch: int) -> Iterator[Ints]:
    """Positions in batches of about `size` rows; users in random order, the rows of a user together."""
    by_user = np.argsort(user, kind="stable")
    _, starts = np.unique(user[by_user], return_index=True)
    rows = np.split(by_user, starts[1:])
    batch: list[Ints] = []
    count = 0
    for n in np.random.default_rng([seed, ORDER_STREAM, epoch]).permutation(len(rows)):
        batch.append(rows[n])
        count += len(rows[n])
        if count >= size:
            yield np.concatenate(batch)
            batch, count = [], 0
    if batch:
        yield np.concatenate(batch)


def margins(head: Head, examples: Examples, rows: Ints, codes: dict[int, Floats] | None = None) -> Floats:
    """Reward of chosen minus reward of rejected; users without a code have the mean of the prior."""
    known = codes or {}
    parts = [np.zeros(0)]
    for start in range(0, len(rows), MARGIN_ROWS):
        part = rows[start : start + MARGIN_ROWS]
        code = np.stack([known.get(int(n), head.prior_mean) for n in examples.user[part]])
        pairs = examples.pairs(part, head.method, code)
        parts.append(head.rewards(pairs.view, pairs.chosen) - head.rewards(pairs.view, pairs.rejected))
    return np.concatenate(parts)


def fitted_codes(head: Head, examples: Examples, rows: Ints) -> dict[int, Floats]:
    """Codes of the users of these labeled rows, by user number."""
    if not len(rows):
        return {}
    users = list(dict.fromkeys(examples.user[rows].tolist()))
    pairs = examples.pairs(rows, head.method, np.tile(head.prior_mean, (len(rows), 1)))
    return dict(zip(users, head.infer(pairs, len(users)), strict=True))


def held_out_margins(head: Head, examples: Examples, held: Ints) -> tuple[Floats, Ints]:
    """Margins of held-out users, and the rows they belong to."""
    support, scored = support_and_scored(head, examples, held)
    return margins(head, examples, scored, fitted_codes(head, examples, support)), scored


def support_and_scored(head: Head, examples: Examples, held: Ints) -> tuple[Ints, Ints]:
    """Methods that are blind without a user's labeled pairs get up to half of the rows as support."""
    if not head.method.needs_pairs:
        return held[:0], held
    support, rest = first_rows(examples.user[held], None)
    return held[support], held[rest]


def first_rows(user: Ints, m: int | None) -> tuple[Ints, Ints]:
    """Positions of each user's first m rows (without m: half of them, at most `SUPPORT`), and of the others."""
    order = np.argsort(user, kind="stable")
    _, start, count = np.unique(user[order], return_index=True, return_counts=True)
    rank = np.arange(len(user)) - np.repeat(start, count)
    limit = np.repeat(np.minimum(count // 2, SUPPORT) if m is None else np.full(len(count), m), count)
    return np.sort(order[rank < limit]), np.sort(order[rank >= limit])


def credits_of(margins: Floats) -> Floats:
    return np.asarray((np.sign(margins) + 1) / 2, dtype=np.float64)


@dataclass(frozen=True)
class HeadResults:
    """How a head does on some rows, with intervals clustered by user."""

    accuracy: Estimate
    loss: float | None
    person_effect: Tested | None
    """`None` where no row has its twin beside it."""


def results(margins: Floats, examples: Examples, rows: Ints) -> HeadResults:
    place = {int(row): n for n, row in enumerate(rows)}
    twins = np.array([place.get(int(examples.twins[row]), -1) for row in rows], dtype=np.int64)
    clusters = examples.cluster[rows]
    return HeadResults(
        accuracy=share(credits_of(margins), clusters),
        loss=float(np.logaddexp(0, -margins).mean()) if len(margins) else None,
        person_effect=person_effect(margins, Twins.find(twins, clusters, np.ones(len(rows), dtype=bool))),
    )
