"""Labeled axes of preference as vectors, for methods that are taught them."""

from __future__ import annotations

import numpy as np

from prb.data.named.composed import Lesson
from prb.data.source import Source
from prb.errors import BadInput
from prb.models.personal.features import Features
from prb.models.personal.method import Taught
from prb.types import Ask, Failure, Query


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
