"""The training loop: Adam over a method's parameters, early stopping on held-out persons, a checkpoint an epoch.

Everything random is drawn from the seed and the number of the epoch, so a run that was killed and resumed ends with
the same weights as one that was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prb.errors import PrbError
from prb.models.personal.head import Head, Scaler, require_torch, tensors
from prb.models.personal.losses import squared
from prb.models.personal.method import METHODS, Floats, Method, Pairs, Step
from prb.progress import SILENT, Progress
from prb.training.checkpoint import Checkpoint
from prb.training.examples import Examples, Ints
from prb.training.judge import fitted_codes, held_out_margins

SCALED_BY = 20_000
"""Rows the scaling is fitted on, at most."""
JUDGED_BY = 4_096
"""Held-out rows that are looked at after every epoch, at most."""
CODES_FASTER = 10
"""A person's code is touched by one batch of an epoch, shared weights by all of them."""
KNOWN = 500
"""Training persons whose codes a head keeps to compare strangers with, at most."""
SOLVED_BY = 50_000
"""Rows a closed-form method is given, at most: it wants them all at once."""


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
    """One entry an epoch: train loss, held-out loss and accuracy."""
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
    checkpoint: Path | None = None,
    progress: Progress = SILENT,
) -> Learned:
    """Fit on some rows, stop by others."""
    method = METHODS.make(spec)
    scaler = fit_scaler(examples, fit, learning.seed)
    if method.closed_form:
        return _solved(spec, method, examples, fit, scaler, learning.seed)
    require_torch()
    training = Training(spec, method, examples, fit, scaler, learning)
    saved = Checkpoint(checkpoint)
    start = training.restore(saved) if saved.exists() else 0
    progress.begin(f"training {spec}", total=learning.epochs, done=start)
    for epoch in range(start, learning.epochs):
        if training.stopped(epoch, learning.patience, bool(len(held))):
            break
        training.epoch(epoch, held)
        training.store(saved)
        progress.advance()
    return training.learned()


def fit_scaler(examples: Examples, fit: Ints, seed: int) -> Scaler:
    rows = np.sort(np.random.default_rng([seed, 1]).permutation(fit)[:SCALED_BY])
    texts = examples.rows[rows][:, [0, *range(3, examples.rows.shape[1])]]
    shown = np.unique(texts[texts >= 0])
    answers = examples.vectors[np.asarray(examples.rows[rows, 1:3]).ravel()]
    return Scaler.fit(answers, examples.vectors[shown])


def _solved(spec: str, method: Method, examples: Examples, fit: Ints, scaler: Scaler, seed: int) -> Learned:
    rows = np.sort(np.random.default_rng([seed, 2]).permutation(fit)[:SOLVED_BY])
    pairs = scaler.pairs(examples.pairs(rows, method, np.zeros((len(rows), 0))))
    head = Head(spec, _single(method.solve(pairs)), scaler, np.zeros(0))
    return Learned(head, [], 0, {"rows_used": len(rows)})


def _single(arrays: Mapping[str, Any]) -> dict[str, Floats]:
    """Rounded to what is saved, so that the head in memory and the one on disk give the same numbers."""
    return {name: np.asarray(np.asarray(a, dtype=np.float32), dtype=np.float64) for name, a in arrays.items()}


class Training:
    def __init__(
        self, spec: str, method: Method, examples: Examples, fit: Ints, scaler: Scaler, learning: Learning
    ) -> None:
        import torch

        self.spec, self.method, self.examples, self.fit = spec, method, examples, fit
        self.scaler, self.learning = scaler, learning
        rng = np.random.default_rng([learning.seed, 3])
        start = method.start(examples.size, rng)
        self.people = np.unique(examples.person[fit])
        if method.tabled:
            start["codes"] = 0.3 * rng.standard_normal((len(self.people), method.code_size))
        self.params = {
            name: torch.tensor(value, dtype=torch.float32, requires_grad=True) for name, value in start.items()
        }
        self.optimiser = torch.optim.Adam(
            [{"params": [p], "lr": learning.lr * (CODES_FASTER if n == "codes" else 1)} for n, p in self.params.items()]
        )
        self.curve: list[dict[str, float]] = []
        self.best = 0
        self.kept = self._numbers()

    def epoch(self, number: int, held: Ints) -> None:
        import torch

        noise = torch.Generator().manual_seed(self.learning.seed * 1_000_003 + number)
        total = 0.0
        for rows in person_batches(self.examples.person[self.fit], self.learning.batch, self.learning.seed, number):
            step = Step(number / self.learning.epochs, noise)
            total += self._step(self.fit[rows], step) * len(rows)
        self.curve.append({"epoch": number + 1, "loss": total / len(self.fit)})
        if len(held):
            self.curve[-1] |= self._judged(held[:JUDGED_BY])
            if self.curve[-1]["held_loss"] < min((c["held_loss"] for c in self.curve[:-1]), default=float("inf")):
                self.best, self.kept = number + 1, self._numbers()
        else:
            self.best, self.kept = number + 1, self._numbers()

    def stopped(self, epoch: int, patience: int, judged: bool) -> bool:
        return judged and epoch - self.best >= patience

    def _step(self, rows: Ints, step: Step) -> float:
        code = np.zeros((len(rows), self.method.code_size))
        pairs = tensors(self.scaler.pairs(self.examples.pairs(rows, self.method, code), "float32"), "float32")
        self.optimiser.zero_grad()
        penalty = self.learning.l2 * squared(self.params, self.method.free | {"codes"})
        if self.method.tabled:
            pairs, more = self._with_codes(pairs, rows)
            penalty = penalty + more
        loss = self.method.loss(self.params, pairs, step)
        if not bool(loss.isfinite()):
            raise PrbError(
                f"{self.spec}: the loss is {float(loss.detach())} in epoch {len(self.curve) + 1}; a smaller --lr "
                f"(now {self.learning.lr:g}) or a larger --l2 (now {self.learning.l2:g}) may help"
            )
        (loss + penalty).backward()
        self.optimiser.step()
        return float(loss.detach())

    def _with_codes(self, pairs: Pairs, rows: Ints) -> tuple[Pairs, Any]:
        """Each row with its person's code, and the prior's share of the loss."""
        import torch

        places = np.searchsorted(self.people, self.examples.person[rows])
        codes = self.params["codes"]
        prior = self.method.prior * codes[torch.from_numpy(np.unique(places))].square().sum() / len(rows)
        return pairs._replace(view=pairs.view._replace(code=codes[torch.from_numpy(places)])), prior

    def _judged(self, held: Ints) -> dict[str, float]:
        margins, _ = held_out_margins(self.head(self._numbers()), self.examples, held)
        return {
            "held_loss": float(np.logaddexp(0, -margins).mean()),
            "held_accuracy": float(((np.sign(margins) + 1) / 2).mean()),
        }

    def _numbers(self) -> dict[str, Floats]:
        return _single({name: value.detach().numpy().copy() for name, value in self.params.items()})

    def head(self, numbers: dict[str, Floats]) -> Head:
        """The head these numbers make; strangers are the average of the persons seen."""
        codes = numbers.get("codes")
        params = {name: value for name, value in numbers.items() if name != "codes"}
        if codes is None:
            return Head(self.spec, params, self.scaler, np.zeros(self.method.code_size))
        names = [self.examples.users[n] for n in self.people]
        known = np.random.default_rng([self.learning.seed, 5]).permutation(len(codes))[:KNOWN]
        params["people"] = codes[np.sort(known)]
        return Head(
            self.spec, params, self.scaler, _single({"": codes.mean(axis=0)})[""], dict(zip(names, codes, strict=True))
        )

    def learned(self) -> Learned:
        head = self.head(self.kept)
        if self.method.needs_pairs and not self.method.tabled:
            head = replace(head, codes=self._inferred(head))
        return Learned(head, self.curve, self.best, self._report(head))

    def _inferred(self, head: Head) -> dict[str, Floats]:
        """What the training pairs tell of the persons seen, for methods that infer instead of keeping a table."""
        codes: dict[int, Floats] = {}
        for rows in person_batches(self.examples.person[self.fit], 4096, self.learning.seed, 0):
            codes |= fitted_codes(head, self.examples, self.fit[rows])
        return {self.examples.users[n]: _single({"": codes[n]})[""] for n in sorted(codes)}

    def _report(self, head: Head) -> dict[str, Any]:
        """On as many training persons as fit a batch."""
        import torch

        rows = self.fit[next(person_batches(self.examples.person[self.fit], 4096, self.learning.seed, 0))]
        code = np.zeros((len(rows), self.method.code_size))
        pairs = tensors(self.scaler.pairs(self.examples.pairs(rows, self.method, code)))
        params = {name: torch.from_numpy(np.array(value)) for name, value in head.params.items()}
        return self.method.report(params, pairs, int(pairs.person.max()) + 1)

    def store(self, saved: Checkpoint) -> None:
        state = self.optimiser.state_dict()["state"]
        arrays = {f"now.{n}": v.detach().numpy() for n, v in self.params.items()}
        arrays |= {f"kept.{n}": v for n, v in self.kept.items()}
        arrays |= {f"adam.{i}.{k}": v.numpy() for i, part in state.items() for k, v in part.items()}
        saved.write(arrays, {"curve": self.curve, "best": self.best})

    def restore(self, saved: Checkpoint) -> int:
        """How many epochs are done."""
        import torch

        arrays, about = saved.read()
        with torch.no_grad():
            for name, value in self.params.items():
                value.copy_(torch.from_numpy(arrays[f"now.{name}"]))
        state = {
            i: {k: torch.from_numpy(arrays[f"adam.{i}.{k}"]) for k in ("step", "exp_avg", "exp_avg_sq")}
            for i in range(len(self.params))
        }
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        self.kept = {name: np.asarray(arrays[f"kept.{name}"], dtype=np.float64) for name in self.params}
        self.curve, self.best = about["curve"], about["best"]
        return len(self.curve)


def person_batches(person: Ints, size: int, seed: int, epoch: int) -> Iterator[Ints]:
    """Positions in batches of about `size` rows; persons in random order, the rows of one person together."""
    names = np.unique(person)
    by_person = np.argsort(person, kind="stable")
    ends = np.searchsorted(person[by_person], names, side="right")
    starts = np.searchsorted(person[by_person], names, side="left")
    batch: list[Ints] = []
    count = 0
    for n in np.random.default_rng([seed, 4, epoch]).permutation(len(names)):
        batch.append(by_person[starts[n] : ends[n]])
        count += int(ends[n] - starts[n])
        if count >= size:
            yield np.concatenate(batch)
            batch, count = [], 0
    if batch:
        yield np.concatenate(batch)
