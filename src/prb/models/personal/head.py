"""A trained head: a method, its parameters, the scaling of features, what is known of users. Saved as safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prb.cache import Memo
from prb.engine.load import cached_commit
from prb.errors import BadInput, MissingExtra
from prb.hashing import digest
from prb.models import execution_of
from prb.models.personal.features import Features, features_of
from prb.models.personal.methods import METHODS, Floats, Method, Pairs, Taught, View
from prb.registry import Spec, names_code
from prb.runs import draft, read_json, write_json
from prb.types import Ask, Choice, Failure, Query
from prb.weights import resolve_weights

CARD, WEIGHTS, USERS = "card.json", "weights.safetensors", "users.json"
PRIOR_MEAN = "nobody"
"""Its name in the weights of format 1."""
FORMAT = 1
FLAT = 1e-8
"""A feature that varies less than this is not scaled."""
REMEMBERED_USERS = 4096
"""Users whose codes stay in memory."""


@dataclass(frozen=True)
class Scaler:
    """Means and standard deviations of the training users' answers and texts, and of nobody else's."""

    answer: Floats
    """(2, size): mean, standard deviation"""
    text: Floats

    @classmethod
    def fit(cls, answers: Any, texts: Any) -> Scaler:
        moments = []
        for rows in (answers, texts):
            deviation = np.std(rows, axis=0, dtype=np.float64)
            deviation = np.where(deviation > FLAT, deviation, 1.0)
            moments.append(np.stack([np.mean(rows, axis=0, dtype=np.float64), deviation]))
        return cls(*moments)

    def pairs(self, raw: Pairs, dtype: str = "float64") -> Pairs:
        """Everything scaled; missing posts stay zero."""
        posts = _scaled(raw.view.posts, self.text, dtype) * raw.view.mask[:, :, None].astype(dtype)
        view = raw.view._replace(question=_scaled(raw.view.question, self.text, dtype), posts=posts)
        chosen, rejected = (_scaled(side, self.answer, dtype) for side in (raw.chosen, raw.rejected))
        return raw._replace(view=view, chosen=chosen, rejected=rejected)

    def taught(self, raw: Taught) -> Taught:
        first, second = (_scaled(posts, self.text, "float64") for posts in (raw.first, raw.second))
        return Taught(first, second, _scaled(raw.answers, self.answer, "float64"))


def _scaled(rows: Any, moments: Floats, dtype: str) -> Any:
    mean, deviation = moments.astype(dtype)
    return (rows - mean) / deviation


@dataclass(frozen=True)
class Head:
    spec: str
    """Of the method, e.g. `bilinear?rank=8`."""
    params: Mapping[str, Floats]
    scaler: Scaler
    prior_mean: Floats
    """The code of a user about whom nothing is known."""
    codes: Mapping[str, Floats] = field(default_factory=dict)
    """By user seen in training, for methods that keep a code of each."""

    @cached_property
    def method(self) -> Method:
        return METHODS.make(self.spec)

    def rewards(self, view: View, answers: Any) -> Floats:
        """In double precision: the rewards of equal inputs in different batches differ in the last bits at most."""
        scaled = self.scaler.pairs(Pairs(view, answers, answers, np.zeros(len(answers), dtype=np.int64)))
        if self.method.closed_form:
            return np.asarray(self.method.reward(dict(self.params), scaled.view, scaled.chosen))
        with require_torch().inference_mode():
            pairs = tensors(scaled)
            return np.asarray(self.method.reward(self.tensors(), pairs.view, pairs.chosen).numpy())

    def infer(self, support: Pairs, users: int) -> Floats:
        if not self.method.code_size:
            return np.zeros((users, 0))
        pairs, prior_mean = tensors(self.scaler.pairs(support)), require_torch().from_numpy(self.prior_mean)
        return np.asarray(self.method.infer(self.tensors(), pairs, users, prior_mean).detach().numpy())

    def tensors(self) -> dict[str, Any]:
        """The parameters for torch, in double precision."""
        torch = require_torch()
        return {name: torch.from_numpy(np.array(value, dtype=np.float64)) for name, value in self.params.items()}


def tensors(pairs: Pairs, dtype: str = "float64") -> Pairs:
    torch = require_torch()

    def real(array: NDArray[Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))

    view = View(*(real(part) for part in pairs.view))
    return Pairs(view, real(pairs.chosen), real(pairs.rejected), torch.from_numpy(np.asarray(pairs.user)).long())


def require_torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("this method", "torch") from None
    return torch


def save(head: Head, folder: Path, card: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files of a head, the card last: where it is, the head is complete. Returns the whole card."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {f"param.{name}": value for name, value in head.params.items()} | {
        "scaler.answer": head.scaler.answer,
        "scaler.text": head.scaler.text,
        PRIOR_MEAN: head.prior_mean,
        "codes": np.stack(list(head.codes.values())) if head.codes else np.zeros((0, len(head.prior_mean))),
    }
    write_arrays(folder, arrays)
    write_json(folder / USERS, list(head.codes))
    whole_card = {"format": FORMAT, "method": head.spec, **card}
    write_json(folder / CARD, whole_card)
    return whole_card


def write_arrays(folder: Path, arrays: Mapping[str, Floats]) -> None:
    from safetensors.numpy import save as packed

    with draft(folder / WEIGHTS) as part:
        # not `save_file`, whose files only their owner can read
        part.write_bytes(packed({name: np.ascontiguousarray(a, dtype=np.float32) for name, a in arrays.items()}))


@contextmanager
def read_arrays(folder: Path) -> Iterator[dict[str, Floats]]:
    """The arrays in a folder that may come from anybody; whatever is wrong with them in the block is one line."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = {name: np.asarray(a, dtype=np.float64) for name, a in load_file(folder / WEIGHTS).items()}
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("its weights are not all finite")
        yield arrays
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"{folder} cannot be read as a trained head: {error}") from None


def read_card(folder: Path) -> dict[str, Any]:
    """What a folder says of the model in it. It may come from anybody: a card runs no code, and names no file outside
    its folder."""
    path = folder / CARD
    if not path.exists():
        raise BadInput(f"{folder} holds no trained head: it has no {CARD}; `prb train` writes one")
    card = read_json(path)
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        version = card.get("format") if isinstance(card, dict) else "unknown"
        raise BadInput(f"{path} has format {version}; this version of prb reads format {FORMAT}")
    for name in ("method", "features", "features_fingerprint"):
        if not isinstance(card.get(name), str):
            raise BadInput(f"{path}: {name} is missing")
        if names_code(card[name]):
            raise BadInput(f"{path}: {name} {card[name]!r} would run code; only registered names are allowed")
    adapter = card.get("adapter")
    if adapter and (not isinstance(adapter, str) or Path(adapter).name != adapter or (folder / adapter).is_symlink()):
        raise BadInput(f"{path}: the adapter must be a folder beside it, not {adapter!r}")
    return card


def read(folder: Path) -> tuple[Head, dict[str, Any]]:
    """A head and its card; refused if its method cannot compute with its arrays."""
    card = read_card(folder)
    with read_arrays(folder) as arrays:
        head = Head(
            card["method"],
            {name.removeprefix("param."): a for name, a in arrays.items() if name.startswith("param.")},
            Scaler(arrays["scaler.answer"], arrays["scaler.text"]),
            arrays[PRIOR_MEAN],
            dict(zip(read_json(folder / USERS), arrays["codes"], strict=True)),
        )
        size, code = head.scaler.answer.shape[-1], head.method.code_size
        expected = {f"param.{name}": shape for name, shape in head.method.shapes(size).items()}
        if head.method.tabled:
            expected["param.people"] = (len(head.params.get("people", ())), code)
        expected |= {"scaler.answer": (2, size), "scaler.text": (2, size)}
        expected |= {PRIOR_MEAN: (code,), "codes": (len(arrays["codes"]), code)}
        for name, shape in expected.items():
            if name not in arrays:
                raise ValueError(f"it has no array {name.removeprefix('param.')!r}")
            if arrays[name].shape != shape:
                raise ValueError(f"{name.removeprefix('param.')} has shape {arrays[name].shape}, not {shape}")
    return head, card


def fingerprint(folder: Path, names: Sequence[str] = (WEIGHTS, CARD, USERS)) -> str:
    """A hash of the files that a score can depend on: weights, card, and which code belongs to which user."""
    whole = hashlib.sha256()
    for name in names:
        whole.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return whole.hexdigest()[:16]


class Personal:
    def __init__(self, head: Head, features: Features, name: str) -> None:
        self.fingerprint, self.execution = f"personal-{name}", execution_of(features)
        self.head, self._features = head, features
        self._inferred: Memo[Floats] = Memo(capacity=REMEMBERED_USERS)

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        """What a head cannot use is removed first, so that it makes no difference, not even in rounding."""
        method, visible = self.head.method, []
        for query, answer in asks:
            choices = query.choices if method.code_size else ()
            user = query.user if query.user in self.head.codes and not choices else None
            shown = query if method.joint or method.uses_posts else replace(query, posts=(), plan=())
            visible.append(Ask(replace(shown, user=user, choices=choices), answer))
        distinct = list(dict.fromkeys(visible))
        # the history belongs to the context of an answer only for methods that are `joint`
        in_context = distinct if method.joint else [Ask(query.blind, answer) for query, answer in distinct]
        encoded = dict(zip(distinct, self._features.answers(in_context), strict=True))
        rewards: dict[Ask, float | Failure] = {a: v for a, v in encoded.items() if isinstance(v, Failure)}
        vectors = {ask: vector for ask, vector in encoded.items() if not isinstance(vector, Failure)}
        if vectors:
            queries = [ask.query for ask in vectors]
            with_posts = queries if method.uses_posts else [query.blind for query in queries]
            view = view_of(self._features, with_posts, self._codes_of(queries))
            values = self.head.rewards(view, np.stack(list(vectors.values())))
            for ask, value in zip(vectors, values, strict=True):
                rewards[ask] = float(value) if np.isfinite(value) else Failure("reward is not a finite number")
        return [rewards[ask] for ask in visible]

    def _codes_of(self, queries: Sequence[Query]) -> Floats:
        """From a user's past choices if the query has some, else what training knew of the user, else the prior's."""
        histories = [query.choices for query in queries if query.choices]
        keys = [digest(*(text for choice in history for text in choice)) for history in histories]
        inferred = iter(self._inferred.map(self._infer, histories, keys))
        prior_mean = self.head.prior_mean
        codes = [next(inferred) if q.choices else self.head.codes.get(q.user or "", prior_mean) for q in queries]
        return np.stack([prior_mean if isinstance(code, Failure) else code for code in codes])

    def _infer(self, histories: Sequence[tuple[Choice, ...]]) -> list[Floats | Failure]:
        """What past choices say about their users, one code per history.

        A choice whose answers cannot be encoded says nothing.
        """
        choices = [(n, choice) for n, history in enumerate(histories) for choice in history]
        asks = [Ask(Query(question=choice.question), text) for _, choice in choices for text in choice[1:]]
        encoded = self._features.answers(asks)
        usable = [
            (n, ask.query, chosen, rejected)
            for (n, _), ask, chosen, rejected in zip(choices, asks[::2], encoded[::2], encoded[1::2], strict=True)
            if not isinstance(chosen, Failure) and not isinstance(rejected, Failure)
        ]
        if not usable:
            return [self.head.prior_mean] * len(histories)
        users, queries, of_chosen, of_rejected = zip(*usable, strict=True)
        view = view_of(self._features, queries, np.tile(self.head.prior_mean, (len(usable), 1)))
        pairs = Pairs(view, np.stack(of_chosen), np.stack(of_rejected), np.array(users))
        return list(self.head.infer(pairs, len(histories)))


def view_of(features: Features, queries: Sequence[Query], codes: Any) -> View:
    """What is known of the user beside the code: the posts, or the lines of a plan in their place."""
    questions = features.texts([query.question for query in queries])
    known = [tuple(post.text for post in query.posts) or query.plan for query in queries]
    places = [(n, k) for n, lines in enumerate(known) for k in range(len(lines))]
    posts = np.zeros((len(queries), max([1, *map(len, known)]), questions.shape[1]), dtype=np.float32)
    mask = np.zeros(posts.shape[:2])
    if places:
        at = tuple(np.transpose(places))
        posts[at], mask[at] = features.texts([text for lines in known for text in lines]), 1
    return View(questions, posts, mask, codes)


def load_personal(folder: Path) -> Personal:
    """The weights that a card names must be here: loading somebody's head downloads nothing."""
    head, card = read(folder)
    source = Spec.parse(card["features"]).options.get("lm")
    if source and not Path(where := resolve_weights(source)).exists():
        with suppress(ImportError):
            if not cached_commit(where):
                raise BadInput(f"{folder} is a head on {source!r}, which is not on this machine; download it first")
    features = features_of(card, folder)
    if features.fingerprint != card["features_fingerprint"]:
        raise BadInput(
            f"{folder} was trained on features {card['features_fingerprint']!r}, but {card['features']!r} gives "
            f"{features.fingerprint!r} here: use the weights it was trained on, or train it again with `prb train "
            f"{card['method']} --features '{card['features']}'`"
        )
    return Personal(head, features, fingerprint(folder))
