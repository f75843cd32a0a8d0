"""What an audit reads from the texts themselves: features for a user-blind learner, repeats, leaks, marks of style."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from prb.text.encoders import Encoder, Matrix
from prb.text.overlap import LEAK_WORDS, SharedWording, hidden_texts, near_duplicates
from prb.text.tokens import is_list, sentences, words
from prb.types import Pair

VOCABULARY, SEEN = 1000, 5
"""The learner knows at most so many words, each in at least so many answers."""
MARKS: dict[str, Callable[[str], bool]] = {
    "(a list)": is_list,
    "(several paragraphs)": lambda text: "\n\n" in text.strip(),
    "(bold)": lambda text: "**" in text,
    "(an exclamation mark)": lambda text: "!" in text,
    "(a question mark)": lambda text: "?" in text,
    "(a digit)": lambda text: any(c.isdigit() for c in text),
}
"""Things about an answer's look, tested beside its words."""


def marks(answer: str) -> frozenset[str]:
    """Words and marks of style that stand in an answer."""
    return frozenset(words(answer)) | {name for name, has in MARKS.items() if has(answer)}


class Features:
    """Of answers, alone or beside their question: static vectors, marks of style, and the set's frequent words."""

    def __init__(self, pairs: Sequence[Pair], encoder: Encoder) -> None:
        self._encoder = encoder
        self.questions = encoder.encode([pair.question for pair in pairs])
        seen = Counter(mark for pair in pairs for answer in pair.answers for mark in marks(answer))
        frequent = [mark for mark, n in sorted(seen.items(), key=lambda kv: (-kv[1], kv[0])) if n >= SEEN]
        self._place = {mark: n for n, mark in enumerate(frequent[:VOCABULARY])}
        self._chosen, self._rejected = (self._alone([pair.contrast[side] for pair in pairs]) for side in (0, 1))

    def alone(self) -> tuple[Matrix, Matrix]:
        """Chosen and rejected, a row a pair."""
        return self._chosen, self._rejected

    def beside_question(self) -> tuple[Matrix, Matrix]:
        """With what question and answer have in common, by dimension and in all: a question alone would cancel."""
        return self._beside(self._chosen), self._beside(self._rejected)

    def _beside(self, side: Matrix) -> Matrix:
        shared = side[:, : self.questions.shape[1]] * self.questions
        return np.hstack([side, shared, shared.sum(axis=1, keepdims=True)])

    def _alone(self, answers: Sequence[str]) -> Matrix:
        known = np.zeros((len(answers), len(self._place)), dtype=np.float32)
        for n, answer in enumerate(answers):
            known[n, [self._place[mark] for mark in marks(answer) if mark in self._place]] = 1
        style = np.array([_style(answer) for answer in answers], dtype=np.float32)
        return np.hstack([self._encoder.encode(answers), style, known])


def _style(text: str) -> list[float]:
    found = words(text)
    count = max(len(found), 1)
    letters = sum(map(len, found)) / count
    return [
        len(text),
        len(text) ** 0.5,
        len(sentences(text)) / count,
        text.count(",") / count,
        len(set(found)) / count,
        letters,
    ]


def length_balance(pairs: Sequence[Pair]) -> dict[str, float]:
    ratios = [len(pair.chosen) / len(pair.rejected) for pair in pairs]
    alike_long = [max(ratio, 1 / ratio) <= 1.1 for ratio in ratios]
    return {"median_ratio": median(ratios), "within_a_tenth": sum(alike_long) / len(pairs)}


def repeats(pairs: Sequence[Pair]) -> dict[str, int]:
    """Answers that stand under several questions, questions that several users ask, and rows that are there twice."""
    users: dict[str, set[str]] = defaultdict(set)
    questions: dict[str, set[str]] = defaultdict(set)
    sides: dict[str, set[int]] = defaultdict(set)
    rows = set()
    for pair in pairs:
        # a row without a user is its own user, which would tell every copy from its original
        rows.add((pair.user if pair.user != pair.id else None, pair.question, *pair.answers))
        users[pair.question].add(pair.user)
        for side, answer in enumerate(pair.contrast):
            questions[answer].add(pair.question)
            sides[answer].add(side)
    shared = {answer for answer, asked in questions.items() if len(asked) > 1}
    return {
        "answers": len(questions),
        "under_several_questions": len(shared),
        "of_these_always_on_one_side": sum(len(sides[answer]) == 1 for answer in shared),
        "rows_with_such_an_answer": sum(bool(shared & set(pair.answers)) for pair in pairs),
        "rows_with_a_question_of_several_users": sum(len(users[pair.question]) > 1 for pair in pairs),
        "rows_twice": len(pairs) - len(rows),
    }


def leaks(pairs: Sequence[Pair]) -> dict[str, int]:
    """Rows in which a model can read what is hidden: a run of words of rubric or narrative, and where it stands."""
    counted = Counter(place for pair in pairs for place in _leaking(pair))
    return {"words": LEAK_WORDS, **{place: counted[place] for place in ("question", "posts", "chosen", "rejected")}}


def _leaking(pair: Pair) -> list[str]:
    hidden = SharedWording(hidden_texts(pair.narrative, pair.rubric))
    seen: dict[str, Sequence[str]] = {
        "question": [pair.question],
        "posts": [post.text for post in pair.profile],
        "chosen": [pair.chosen],
        "rejected": [pair.rejected],
    }
    return [place for place, texts in seen.items() if any(map(hidden.first_in, texts))]


def between_splits(here: Sequence[Pair], there: Sequence[Pair], encoder: Encoder) -> dict[str, Any]:
    """What this split has in common with the others."""
    asked = list(dict.fromkeys(pair.question for pair in here))
    known = [question for question in dict.fromkeys(pair.question for pair in there) if question not in asked]
    rows = encoder.encode([*known, *asked])
    near = {asked[i - len(known)] for i, j in near_duplicates(rows) if i >= len(known) > j}
    same = set(asked) & {pair.question for pair in there}
    answers = {answer for pair in there for answer in pair.answers}
    return {
        "rows_elsewhere": len(there),
        "questions": len(asked),
        "questions_elsewhere_too": len(same),
        "questions_nearly_elsewhere": len(near - same),
        "answers_elsewhere_too": len({answer for pair in here for answer in pair.answers} & answers),
        "people_elsewhere_too": len({pair.user for pair in here} & {pair.user for pair in there}),
    }
