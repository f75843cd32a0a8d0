"""Graders without an LLM: `embedded` compares texts, `recorded` looks up grades that were given elsewhere.

`embedded` asks how similar an answer's sentences and words are to what an aspect asks for. Both similarities go into a
logistic regression that was fitted on the train split of the embedded benchmark, where a chosen answer meets every
aspect of its rubric and a rejected one none. A grade is twice the predicted probability. The similarity of words is the
recall of BERTScore (Zhang et al., arXiv 1904.09675) with static word vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from prb.data.load import load_pairs
from prb.data.schema import read_items
from prb.errors import BadInput
from prb.grading import GRADERS, TOP, Answered, Grader, Grades, is_graded, ungradable
from prb.hashing import digest
from prb.stats.estimate import Floats
from prb.text.encoders import ENCODERS
from prb.text.words import sentences, words
from prb.types import Aspect, Failure

SHARPNESS = 10.0
"""Inverse temperature of the soft maximum. With a hard maximum, any added text could only raise a grade; at 10, an
unrelated answer pasted behind another hardly does."""
BIAS, WEIGHTS = -1.5765424633856953, (3.650904364927172, 9.261494754987584)
"""Of the regression, for the similarity of sentences and of words; a test fits them again."""
VALIDITY = (
    "On the 240 rows of mirror's test split it grades the chosen answer above the rejected one in "
    "79.6 % [74.0, 84.8]; a coin would in 50 %."
)
"""A test measures it again."""
Recorded = dict[tuple[str, str], tuple[float, ...]]
"""Grades by id of the row and answer."""
NOT_GRADED = Failure("not graded", "no grade was recorded for this answer")


class EmbeddedGrader:
    """Deterministic and local. It sees which topics an answer covers, but hardly whether it is for or against them."""

    remote = False
    validity = VALIDITY

    def __init__(self) -> None:
        self._encoder = ENCODERS.make("static")
        pairs = load_pairs("mirror", split="dev")
        self._texts, self._texts_with = len(pairs), Counter(word for p in pairs for word in set(words(p.chosen)))
        self.fingerprint = f"embedded-{self._encoder.fingerprint}-" + "_".join(f"{w:.4f}" for w in (BIAS, *WEIGHTS))

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        results: list[Grades | Failure] = []
        for one in answers:
            failure = ungradable(one)
            if not failure and not words(one.answer):
                failure = Failure("no words in the answer", one.answer[:40])
            if failure:
                results.append(failure)
                continue
            met = 1 / (1 + np.exp(-(BIAS + self.similarities(one.answer, one.rubric) @ np.array(WEIGHTS))))
            results.append(Grades(aspects=tuple([round(TOP * float(p), 6) for p in met])))
        return results

    def similarities(self, answer: str, rubric: Sequence[Aspect]) -> Floats:
        """One row per aspect: similarity of the answer's sentences, and of the answer's word that is nearest to each
        word of the aspect, weighted by rarity."""
        targets = [". ".join(filter(None, (aspect.aspect, aspect.evidence))) for aspect in rubric]
        vectors = self._encoder.encode([*targets, answer, *sentences(answer)]).astype(np.float64)
        by_sentence = _soft_maximum(vectors[: len(targets)] @ vectors[len(targets) :].T)
        answer_words = self._encoder.encode(list(dict.fromkeys(words(answer))))
        by_word = []
        for target in map(words, targets):
            if not target:
                by_word.append(0.0)
                continue
            nearest = _soft_maximum((self._encoder.encode(target) @ answer_words.T).astype(np.float64))
            rarity = [np.log((self._texts + 2) / (self._texts_with[word] + 1)) for word in target]
            by_word.append(float(np.average(nearest, weights=rarity)))
        return np.column_stack([by_sentence, by_word])


def _soft_maximum(rows: Floats) -> Floats:
    return np.asarray(np.log(np.exp(SHARPNESS * rows).mean(axis=1)) / SHARPNESS)


@GRADERS.register("embedded")
def embedded() -> Grader:
    """Without an LLM: similarity of an answer's sentences and words to each aspect, calibrated on mirror."""
    return EmbeddedGrader()


@dataclass
class RecordedGrades:
    grades: Recorded
    fingerprint: str
    remote: bool = False

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        recorded = [self.grades.get((one.pair, one.answer)) for one in answers]
        return [NOT_GRADED if grades is None else Grades(aspects=grades) for grades in recorded]


@GRADERS.register("recorded")
def recorded(path: Path | None = None) -> Grader:
    """Grades from a file (path=FILE); by default those of the answers that `prb bon --candidates mirror` uses.

    One {"pair": id of a row, "answer": text, "grades": [0, 2, 1]} per line, a grade per aspect of the row's rubric.
    """

    def read_line(line: Mapping[str, Any]) -> Recorded:
        """The grades of one answer, or of several: `answers` with `grades` by row, a list per answer."""
        grades, answers = line.get("grades"), line.get("answers")
        if not isinstance(grades, dict):
            grades, answers = {line.get("pair"): [grades]}, [line.get("answer")]
        recorded: Recorded = {}
        for pair, by_answer in grades.items():
            if pair is None or not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
                raise ValueError("`pair`, `answer` and `grades` are needed")
            if not isinstance(by_answer, list) or len(by_answer) != len(answers):
                raise ValueError(f"`grades` of {pair!r} must have a list per answer")
            for answer, values in zip(answers, by_answer, strict=True):
                if not is_graded(values):
                    raise ValueError(f"`grades` must be a list of numbers from 0 to 2, not {values!r:.80}")
                recorded[str(pair), answer] = tuple(map(float, values))
        return recorded

    with as_file(path or files("prb.data") / "mirror" / "pool.jsonl") as file:
        lines = read_items(file, read_line)
    grades: Recorded = {}
    for key, values in chain.from_iterable(line.items() for line in lines):
        if grades.setdefault(key, values) != values:
            raise BadInput(f"{path or 'mirror'}: two different grades of the same answer to row {key[0]!r}")
    content = digest(*([*key, *values] for key, values in sorted(grades.items())))
    return RecordedGrades(grades, f"recorded-{content.hex()[:16]}")
