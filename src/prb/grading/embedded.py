"""A grader without an LLM: how similar are an answer's sentences and words to what an aspect asks for?

Two similarities of an answer to an aspect (its name and its evidence) go into a logistic regression that is fitted on
the train split of the embedded benchmark, where a chosen answer meets every aspect of its rubric and a rejected one
none. A grade is twice the predicted probability. The second similarity is the recall of BERTScore (Zhang et al.,
arXiv 1904.09675) with static word vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from prb.cache import Cache, Memo
from prb.data.load import load
from prb.grading import GRADERS, TOP, Answered, Grader, Grades, ungradable
from prb.grading.validate import discrimination, grade_pairs
from prb.hashing import digest
from prb.stats.estimate import Floats
from prb.text.encoders import ENCODERS, Encoder, Matrix
from prb.text.words import sentences, words
from prb.types import Aspect, Failure, Pair

SHARPNESS = 10.0
"""Inverse temperature of the soft maximum. With a hard maximum, any added text could only raise a grade; at 10, an
unrelated answer pasted behind another hardly does."""


class EmbeddedGrader:
    """Deterministic and local. It sees which topics an answer covers, but hardly whether it is for or against them."""

    remote = False

    def __init__(self, encoder: Encoder, *, cache: Cache | None = None) -> None:
        self._encoder, self._words, self._cache = encoder, ENCODERS.make("static"), cache
        train = load("mirror", split="dev")
        self._pairs = [pair for pair in train if isinstance(pair, Pair)]
        self._rarity = Rarity([pair.chosen for pair in self._pairs])
        bias, *weights = self._remember(self._train, encoder.fingerprint, self._words.fingerprint, train.fingerprint)
        self._bias, self._weights = bias, np.array(weights)
        self.fingerprint = f"embedded-{encoder.fingerprint}-" + "_".join(f"{w:.4f}" for w in (bias, *weights))

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        results: list[Grades | Failure] = []
        for answered in answers:
            failure = ungradable(answered)
            if not failure and not words(answered.answer):
                failure = Failure("no words in the answer", answered.answer[:40])
            if failure:
                results.append(failure)
                continue
            logits = self._bias + self._similarities(answered.answer, answered.rubric) @ self._weights
            met = 1 / (1 + np.exp(-logits))
            results.append(Grades(aspects=tuple([round(TOP * float(p), 6) for p in met])))
        return results

    @cached_property
    def validity(self) -> str:
        """How often it scores the chosen answer higher where the truth is known; measured once, then cached."""
        accuracy = self._remember(self._measure, self.fingerprint)
        value, low, high = (100 * accuracy[key] for key in ("value", "low", "high"))
        return (
            f"On the {accuracy['n']} rows of mirror's test split it grades the chosen answer above the rejected one in "
            f"{value:.1f} % [{low:.1f}, {high:.1f}]; a coin would in 50 %."
        )

    def _remember(self, compute: Callable[[], Any], *depends: str) -> Any:
        """Computed once for this version of the code and of what it depends on."""
        key = digest(compute.__name__, Path(__file__).read_text("utf-8"), *depends)
        memo = Memo[Any](cache=self._cache, model="embedded grader")
        return memo.map(lambda _: [compute()], [key])[0]

    def _train(self) -> list[float]:
        from sklearn.linear_model import LogisticRegression

        chosen = np.concatenate([self._similarities(pair.chosen, pair.rubric) for pair in self._pairs])
        rejected = np.concatenate([self._similarities(pair.rejected, pair.rubric) for pair in self._pairs])
        rows, met = np.concatenate([chosen, rejected]), np.repeat([1, 0], len(chosen))
        center, spread = rows.mean(axis=0), rows.std(axis=0)
        model = LogisticRegression().fit((rows - center) / spread, met)
        weights = model.coef_[0] / spread
        return [float(model.intercept_[0] - weights @ center), *map(float, weights)]

    def _measure(self) -> dict[str, Any]:
        return dict(discrimination(grade_pairs(load("mirror", split="test"), self.grade))["accuracy"])

    def _similarities(self, answer: str, rubric: Sequence[Aspect]) -> Floats:
        """One row per aspect: similarity of the answer's sentences, similarity of its words."""
        targets = [". ".join(filter(None, (aspect.aspect, aspect.evidence))) for aspect in rubric]
        vectors = self._encoder.encode([*targets, answer, *sentences(answer)]).astype(np.float64)
        by_sentence = _soft_maximum(vectors[: len(targets)] @ vectors[len(targets) :].T)
        answer_words = self._words.encode(list(dict.fromkeys(words(answer))))
        return np.column_stack([by_sentence, [self._recall(words(text), answer_words) for text in targets]])

    def _recall(self, target: Sequence[str], answer_words: Matrix) -> float:
        """How similar the best matching word of the answer is to each target word, weighted by rarity."""
        if not target:
            return 0.0
        nearest = _soft_maximum((self._words.encode(target) @ answer_words.T).astype(np.float64))
        return float(np.average(nearest, weights=[self._rarity.of(word) for word in target]))


def _soft_maximum(rows: Floats) -> Floats:
    return np.asarray(np.log(np.exp(SHARPNESS * rows).mean(axis=1)) / SHARPNESS)


class Rarity:
    """Inverse document frequency of a word in these texts, always positive."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = len(texts)
        self._seen = Counter(word for text in texts for word in set(words(text)))

    def of(self, word: str) -> float:
        return float(np.log((self._texts + 2) / (self._seen[word] + 1)))


@GRADERS.register("embedded")
def embedded(encoder: str = "static") -> Grader:
    """Without an LLM: similarity of an answer's sentences and words to each aspect, calibrated on mirror."""
    return EmbeddedGrader(ENCODERS.make(encoder), cache=Cache())
