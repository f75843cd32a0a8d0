"""A trained head: a method, its numbers, how features were scaled, what is known of persons. Saved as safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prb.errors import BadInput, MissingExtra
from prb.models.personal.method import METHODS, Floats, Method, Pairs, View
from prb.runs import read_json, write_json

CARD, WEIGHTS, USERS = "card.json", "weights.safetensors", "users.json"
FORMAT = 1


@dataclass(frozen=True)
class Scaler:
    """Means and spreads of the training persons' answers and texts, and of nobody else's."""

    answer: Floats
    """(2, size): mean, spread"""
    text: Floats

    @classmethod
    def identity(cls, size: int) -> Scaler:
        same = np.stack([np.zeros(size), np.ones(size)])
        return cls(same, same)

    @classmethod
    def fit(cls, answers: Any, texts: Any) -> Scaler:
        return cls(_moments(answers), _moments(texts))

    def pairs(self, raw: Pairs, dtype: str = "float64") -> Pairs:
        """Everything scaled; the place of a missing post stays zero."""
        posts = _scaled(raw.view.posts, self.text, dtype) * raw.view.mask[:, :, None].astype(dtype)
        view = raw.view._replace(question=_scaled(raw.view.question, self.text, dtype), posts=posts)
        chosen, rejected = (_scaled(side, self.answer, dtype) for side in (raw.chosen, raw.rejected))
        return raw._replace(view=view, chosen=chosen, rejected=rejected)


def _scaled(rows: Any, moments: Floats, dtype: str) -> Any:
    mean, spread = moments.astype(dtype)
    return (rows - mean) / spread


def _moments(rows: Any) -> Floats:
    spread = np.std(rows, axis=0, dtype=np.float64)
    return np.stack([np.mean(rows, axis=0, dtype=np.float64), np.where(spread > 1e-8, spread, 1.0)])


@dataclass(frozen=True)
class Head:
    spec: str
    """Of the method, e.g. `bilinear?rank=8`."""
    params: Mapping[str, Floats]
    scaler: Scaler
    nobody: Floats
    """The code of a person about whom nothing is known."""
    codes: Mapping[str, Floats] = field(default_factory=dict)
    """Persons seen in training, for methods that keep a code of each."""

    @property
    def method(self) -> Method:
        return METHODS.make(self.spec)

    def rewards(self, view: View, answers: Any) -> Floats:
        """In double precision: equal inputs differ by rounding at most in the last bits, whatever their batch."""
        scaled = self.scaler.pairs(Pairs(view, answers, answers, np.zeros(len(answers), dtype=np.int64)))
        if self.method.closed_form:
            return np.asarray(self.method.reward(dict(self.params), scaled.view, scaled.chosen))
        import torch

        with torch.inference_mode():
            made = tensors(scaled)
            rewards = self.method.reward(self._tensors(), made.view, made.chosen)
        return np.asarray(rewards.numpy())

    def infer(self, support: Pairs, persons: int) -> Floats:
        """A code for each person from their labelled pairs."""
        if not self.method.code_size:
            return np.zeros((persons, 0))
        import torch

        codes = self.method.infer(
            self._tensors(), tensors(self.scaler.pairs(support)), persons, torch.from_numpy(self.nobody)
        )
        return np.asarray(codes.detach().numpy())

    def _tensors(self) -> dict[str, Any]:
        import torch

        return {name: torch.from_numpy(np.array(value, dtype=np.float64)) for name, value in self.params.items()}


def tensors(pairs: Pairs, dtype: str = "float64") -> Pairs:
    """The same pairs for torch."""
    torch = require_torch()

    def real(array: NDArray[Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))

    view = View(*(real(part) for part in pairs.view))
    return Pairs(view, real(pairs.chosen), real(pairs.rejected), torch.from_numpy(np.asarray(pairs.person)).long())


def require_torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("this method", "torch") from None
    return torch


def save(head: Head, folder: Path, card: Mapping[str, Any]) -> None:
    """The card last: where it is, the head is complete."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    codes = np.stack(list(head.codes.values())) if head.codes else np.zeros((0, len(head.nobody)))
    arrays = {f"param.{name}": value for name, value in head.params.items()}
    arrays |= {"scaler.answer": head.scaler.answer, "scaler.text": head.scaler.text, "nobody": head.nobody}
    draft = folder / f"{WEIGHTS}.part"
    save_file(
        {name: np.ascontiguousarray(a, dtype=np.float32) for name, a in {**arrays, "codes": codes}.items()}, draft
    )
    draft.replace(folder / WEIGHTS)
    write_json(folder / USERS, list(head.codes))
    write_json(folder / CARD, {"format": FORMAT, "method": head.spec, **card})


def read(folder: Path) -> tuple[Head, dict[str, Any]]:
    """A head and its card."""
    if not (folder / CARD).exists():
        raise BadInput(f"{folder} holds no trained head: it has no {CARD}; `prb train` makes one")
    card = read_json(folder / CARD)
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise BadInput(f"{folder / CARD} is not a card this version reads")
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = {name: np.asarray(a, dtype=np.float64) for name, a in load_file(folder / WEIGHTS).items()}
        params = {name.removeprefix("param."): a for name, a in arrays.items() if name.startswith("param.")}
        codes = dict(zip(read_json(folder / USERS), arrays["codes"], strict=True))
        scaler = Scaler(arrays["scaler.answer"], arrays["scaler.text"])
        return Head(card["method"], params, scaler, arrays["nobody"], codes), card
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise BadInput(f"{folder} is damaged: {error}") from None


def fingerprint(folder: Path) -> str:
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes() + (folder / CARD).read_bytes())
    return digest.hexdigest()[:16]
