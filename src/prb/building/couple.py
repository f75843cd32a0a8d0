"""Mirror mode: two people, one question, conflicting wishes. Embeddings propose, a judge confirms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from prb.building.records import Record
from prb.building.rubric import Rubric, numbered
from prb.llm import LLM, Completion, Sampling
from prb.llm.asking import Reply, ask, without_reasoning
from prb.prompts import load, quote, with_material
from prb.text.encoders import Encoder
from prb.text.overlap import similarity_blocks
from prb.types import Failure

Finding = Literal["conflict", "compatible", "different questions"]
FINDINGS: tuple[Finding, ...] = ("conflict", "compatible", "different questions")
NEAREST = 5
"""Partners looked at for each record."""
REMINDER = (
    "Your reply must finish with one line: Verdict: conflict, Verdict: compatible or Verdict: different questions."
)
_VERDICT = re.compile(r"verdict[\s*_`]*:[\s*_`]*(conflict|compatible|different questions)\b(?!\s*(?:or\b|[,/|]))", re.I)


class Couple(NamedTuple):
    first: int
    second: int


def propose(records: Sequence[Record], encoder: Encoder, similar: float, block: int = 1024) -> list[Couple]:
    """Couples of different people of one split with similar questions, the most similar first, nobody in two."""
    if len(records) < 2:
        return []
    rows = encoder.encode([record.question for record in records])
    users = np.array([record.user for record in records])
    splits = np.array([str(record.other.get("split")) for record in records])
    near: list[tuple[float, int, int]] = []
    for start, close in similarity_blocks(rows, block):
        here = slice(start, start + len(close))
        close[(users[here, None] == users[None, :]) | (splits[here, None] != splits[None, :])] = -1
        for offset, own in enumerate(close):
            for other in np.argsort(-own, kind="stable")[:NEAREST]:
                if own[other] >= similar:
                    low, high = sorted((start + offset, int(other)))
                    near.append((-float(own[other]), low, high))
    return _disjoint(sorted(set(near)))


def _disjoint(near: Sequence[tuple[float, int, int]]) -> list[Couple]:
    taken: set[int] = set()
    couples = []
    for _, first, second in near:
        if first not in taken and second not in taken:
            taken |= {first, second}
            couples.append(Couple(first, second))
    return couples


def confirm(
    llm: LLM, couples: Sequence[tuple[Record, Rubric, Record, Rubric]], sampling: Sampling
) -> list[Finding | Failure]:
    """Whether an answer to the first question would do for both, and cannot please both."""
    prompts = [
        with_material(
            load("build_couple"),
            question_1=quote("first question", a.question),
            wishes_1=quote("wishes of the first person", numbered([x.aspect for x in wants_a])),
            question_2=quote("second question", b.question),
            wishes_2=quote("wishes of the second person", numbered([x.aspect for x in wants_b])),
        )
        for a, wants_a, b, wants_b in couples
    ]
    replies: list[Reply[Finding] | Failure] = ask(
        llm, prompts, read_finding, sampling=sampling, reminder=REMINDER, missing="no verdict on a couple"
    )
    return [reply.value if isinstance(reply, Reply) else reply for reply in replies]


def read_finding(said: Completion) -> Finding | None:
    """Two different verdicts are none."""
    found = {match.lower() for match in _VERDICT.findall(without_reasoning(said.text))}
    return next((name for name in FINDINGS if found == {name}), None)
