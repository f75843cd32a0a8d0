"""The training loop: Adam over a method's parameters, early stopping on held-out users, a checkpoint every epoch; and
how a head does on users it was not trained on.

Everything random is drawn from the seed and the number of the epoch, so a run that was killed and resumed ends with
the same weights as one that was not.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from prb.errors import BadInput, PrbError
from prb.models.personal.head import Head, Scaler, require_torch, tensors
from prb.models.personal.method import METHODS, Floats, Method, Pairs, Step, Taught
from prb.progress import SILENT, Progress
from prb.runs import draft
from prb.stats.estimate import share
from prb.stats.paired import Twins, person_effect
from prb.training.examples import Examples, Ints

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
"""Rows a closed-form method gets, at most: it needs them all in memory."""
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
    """How a method is fitted."""

    l2: float = 0.01
    lr: float = 0.003
    epochs: int = 60
    patience: int = 8
    batch: int = 512
    seed: int = 0


@dataclass(frozen=True)
class Learned:
    head: Head
    curve: list[dict[str, float]]
    """One entry per epoch: training loss, held-out loss and accuracy."""
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
        return Learned(taught_head(spec, lessons), [], 0, {"axes": len(lessons)})
    scaler = fit_scaler(examples, fit, learning.seed)
    if method.closed_form:
        rows = np.sort(np.random.default_rng([learning.seed, SOLVE_STREAM]).permutation(fit)[:CLOSED_FORM_ROWS])
        pairs = scaler.pairs(examples.pairs(rows, method, np.zeros((len(rows), 0))))
        head = Head(spec, single_precision(method.solve(pairs)), scaler, np.zeros(0))
        return Learned(head, [], 0, {"rows_used": len(rows)})
    require_torch()
    training = Training(spec, method, examples, fit, scaler, learning)
    done = training.restore(checkpoint) if checkpoint and checkpoint.exists() else 0
    progress.begin(f"training {spec}", total=learning.epochs, done=done)
    for epoch in range(done, learning.epochs):
        if len(held) and epoch - training.best >= learning.patience:
            break
        training.epoch(epoch, held)
        if checkpoint:
            training.store(checkpoint)
        progress.advance()
    return training.learned()


def taught_head(spec: str, lessons: Sequence[Taught]) -> Head:
    posts = np.concatenate([posts for lesson in lessons for posts in (lesson.first, lesson.second)])
    answers = np.concatenate([lesson.answers.reshape(-1, posts.shape[1]) for lesson in lessons])
    scaler = Scaler.fit(answers, posts)
    params = METHODS.make(spec).teach([scaler.taught(lesson) for lesson in lessons])
    return Head(spec, single_precision(params), scaler, np.zeros(0))


def fit_scaler(examples: Examples, fit: Ints, seed: int) -> Scaler:
    rows = np.sort(np.random.default_rng([seed, SCALER_STREAM]).permutation(fit)[:SCALER_ROWS])
    texts = examples.rows[rows][:, [0, *range(3, examples.rows.shape[1])]]
    answers = examples.vectors[np.asarray(examples.rows[rows, 1:3]).ravel()]
    return Scaler.fit(answers, examples.vectors[np.unique(texts[texts >= 0])])


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
        self.curve: list[dict[str, float]] = []
        self.best = 0
        self.kept = self._arrays()

    def epoch(self, number: int, held: Ints) -> None:
        import torch

        noise = torch.Generator().manual_seed(self.learning.seed * 1_000_003 + number)
        total = 0.0
        for rows in user_batches(self.examples.user[self.fit], self.learning.batch, self.learning.seed, number):
            total += self._step(self.fit[rows], Step(number / self.learning.epochs, noise)) * len(rows)
        point = {"epoch": number + 1, "loss": total / len(self.fit)}
        if len(held):
            margins, _ = held_out_margins(self.head(self._arrays()), self.examples, held[:VALIDATION_ROWS])
            point["held_loss"] = float(np.logaddexp(0, -margins).mean())
            point["held_accuracy"] = float(credits_of(margins).mean())
        lowest = min((earlier["held_loss"] for earlier in self.curve if len(held)), default=float("inf"))
        if not len(held) or point["held_loss"] < lowest:
            self.best, self.kept = number + 1, self._arrays()
        self.curve.append(point)

    def _step(self, rows: Ints, step: Step) -> float:
        import torch

        pairs = self._pairs(rows, "float32")
        self.optimizer.zero_grad()
        unpenalized = self.method.unpenalized | {"codes"}
        weights = [value for name, value in self.params.items() if name not in unpenalized]
        penalty = self.learning.l2 * sum(value.square().sum() for value in weights)
        if self.method.tabled:  # each row gets its user's code, each batch its share of the prior
            places, codes = np.searchsorted(self.users, self.examples.user[rows]), self.params["codes"]
            pairs = pairs._replace(view=pairs.view._replace(code=codes[torch.from_numpy(places)]))
            distance = codes[torch.from_numpy(np.unique(places))].square().sum()
            penalty = penalty + self.method.prior * distance / len(rows)
        loss = self.method.loss(self.params, pairs, step)
        if not bool(loss.isfinite()):
            raise PrbError(
                f"{self.spec}: the loss is {float(loss.detach())} in epoch {len(self.curve) + 1}; try a smaller --lr "
                f"(now {self.learning.lr:g}) or a larger --l2 (now {self.learning.l2:g})"
            )
        (loss + penalty).backward()
        self.optimizer.step()
        return float(loss.detach())

    def _pairs(self, rows: Ints, dtype: str) -> Pairs:
        """Rows for torch, scaled; users have no code yet."""
        code = np.zeros((len(rows), self.method.code_size))
        return tensors(self.scaler.pairs(self.examples.pairs(rows, self.method, code), dtype), dtype)

    def _arrays(self) -> dict[str, Floats]:
        return single_precision({name: value.detach().numpy().copy() for name, value in self.params.items()})

    def head(self, arrays: dict[str, Floats]) -> Head:
        """The head with these parameters; new users get the average code of the users seen."""
        codes = arrays.get("codes")
        params = {name: value for name, value in arrays.items() if name != "codes"}
        if codes is None:
            return Head(self.spec, params, self.scaler, np.zeros(self.method.code_size))
        known = np.random.default_rng([self.learning.seed, KNOWN_STREAM]).permutation(len(codes))[:KNOWN_USERS]
        params["people"] = codes[np.sort(known)]
        nobody = single_precision({"nobody": codes.mean(axis=0)})["nobody"]
        names = [self.examples.users[n] for n in self.users]
        return Head(self.spec, params, self.scaler, nobody, dict(zip(names, codes, strict=True)))

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

    def store(self, path: Path) -> None:
        """One safetensors file; the curve is in its header."""
        from safetensors.numpy import save_file

        state = self.optimizer.state_dict()["state"]
        arrays = {f"now.{n}": v.detach().numpy() for n, v in self.params.items()}
        arrays |= {f"kept.{n}": v for n, v in self.kept.items()}
        arrays |= {f"adam.{i}.{k}": v.numpy() for i, part in state.items() for k, v in part.items()}
        solid = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in arrays.items()}
        about = orjson.dumps({"curve": self.curve, "best": self.best}).decode()
        with draft(path) as part:
            save_file(solid, part, metadata={"about": about, "crc": checksum(solid, about)})

    def restore(self, path: Path) -> int:
        """Read a checkpoint; returns how many epochs are done."""
        import torch
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
                metadata = file.metadata()
            if metadata["crc"] != checksum(arrays, metadata["about"]):
                raise ValueError("its checksum is wrong")
            about = orjson.loads(metadata["about"])
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise BadInput(f"{path} is damaged ({error}); remove it to start again") from None
        with torch.no_grad():
            for name, value in self.params.items():
                value.copy_(torch.from_numpy(arrays[f"now.{name}"]))
        state = {
            i: {k: torch.from_numpy(arrays[f"adam.{i}.{k}"]) for k in ("step", "exp_avg", "exp_avg_sq")}
            for i in range(len(self.params))
        }
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.kept = {name: np.asarray(arrays[f"kept.{name}"], dtype=np.float64) for name in self.params}
        self.curve, self.best = about["curve"], about["best"]
        return len(self.curve)


def checksum(arrays: Mapping[str, Any], about: str) -> str:
    """Of the content of a checkpoint, whatever the order in its file."""
    crc = zlib.crc32(about.encode())
    for name in sorted(arrays):
        crc = zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes(), zlib.crc32(name.encode(), crc))
    return str(crc)


def user_batches(user: Ints, size: int, seed: int, epoch: int) -> Iterator[Ints]:
    """Positions in batches of about `size` rows; users in random order, the rows of a user together."""
    names = np.unique(user)
    by_user = np.argsort(user, kind="stable")
    ends = np.searchsorted(user[by_user], names, side="right")
    starts = np.searchsorted(user[by_user], names, side="left")
    batch: list[Ints] = []
    count = 0
    for n in np.random.default_rng([seed, ORDER_STREAM, epoch]).permutation(len(names)):
        batch.append(by_user[starts[n] : ends[n]])
        count += int(ends[n] - starts[n])
        if count >= size:
            yield np.concatenate(batch)
            batch, count = [], 0
    if batch:
        yield np.concatenate(batch)


def margins(head: Head, examples: Examples, rows: Ints, codes: dict[int, Floats] | None = None) -> Floats:
    """Reward of chosen minus reward of rejected; users without a code are `nobody`."""
    known = codes or {}
    parts = [np.zeros(0)]
    for start in range(0, len(rows), MARGIN_ROWS):
        part = rows[start : start + MARGIN_ROWS]
        code = np.stack([known.get(int(n), head.nobody) for n in examples.user[part]])
        pairs = examples.pairs(part, head.method, code)
        parts.append(head.rewards(pairs.view, pairs.chosen) - head.rewards(pairs.view, pairs.rejected))
    return np.concatenate(parts)


def fitted_codes(head: Head, examples: Examples, rows: Ints) -> dict[int, Floats]:
    """Codes of the users of these labeled rows, by user number."""
    if not len(rows):
        return {}
    users = list(dict.fromkeys(examples.user[rows].tolist()))
    pairs = examples.pairs(rows, head.method, np.tile(head.nobody, (len(rows), 1)))
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


def results(margins: Floats, examples: Examples, rows: Ints) -> dict[str, Any]:
    """Accuracy and person effect of margins on some rows, with intervals clustered by user."""
    place = {int(row): n for n, row in enumerate(rows)}
    twins = np.array([place.get(int(examples.twins[row]), -1) for row in rows], dtype=np.int64)
    clusters = examples.cluster[rows]
    return {
        "accuracy": share(credits_of(margins), clusters).as_dict(),
        "loss": float(np.logaddexp(0, -margins).mean()) if len(margins) else None,
        "person_effect": person_effect(margins, Twins.find(twins, clusters, np.ones(len(rows), dtype=bool))),
    }


def seen_margins(head: Head, examples: Examples, rows: Ints) -> Floats:
    """New questions of users who were trained on, with what the head knows of them."""
    known = {n: head.codes[user] for n, user in enumerate(examples.users) if user in head.codes}
    return margins(head, examples, rows, known)
