"""Two sides of a pair from one prompt: the same form and length, only the wishes differ."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prb.building.job import Job
from prb.building.rubric import numbered
from prb.llm import LLM, Completion, Message, Request, Sampling
from prb.llm.asking import without_reasoning
from prb.prompts import load, quote, with_material
from prb.types import Failure

Side = Literal["chosen", "rejected"]
SIDES: tuple[Side, Side] = ("chosen", "rejected")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    job: Job
    side: Side
    number: int
    text: str

    @property
    def what(self) -> str:
        return f"{self.side} {self.number}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """How answers are to be written."""

    mode: Literal["oppose", "avoid"]
    words: int
    candidates: int
    sampling: Sampling
    round: int


def write(llm: LLM, jobs: Sequence[Job], order: Order) -> list[tuple[Job, Side, int, Candidate | Failure]]:
    """`order.candidates` answers for each side of each job, in the order of the jobs."""
    wanted = [(job, side, n) for job in jobs for side in SIDES for n in range(1, order.candidates + 1)]
    replies = llm.complete([_request(job, side, n, order) for job, side, n in wanted])
    return [
        (job, side, n, _candidate(job, side, n, reply)) for (job, side, n), reply in zip(wanted, replies, strict=True)
    ]


def _request(job: Job, side: Side, number: int, order: Order) -> Request:
    seed = _seed(order.sampling.seed, job.id, side, number, order.round)
    return Request((Message("user", _prompt(job, side, order)),), replace(order.sampling, seed=seed))


def _prompt(job: Job, side: Side, order: Order) -> str:
    avoids = side == "rejected" and order.mode == "avoid" and job.partner is None
    wishes = [aspect.aspect for aspect in job.rubric] if side == "chosen" or avoids else list(job.against)
    return with_material(
        load("build_avoid" if avoids else "build_answer"),
        question=quote("question", job.record.question),
        wishes=quote("matters" if avoids else "wishes", numbered(wishes)),
        words=str(order.words),
    )


def _candidate(job: Job, side: Side, number: int, reply: Completion | Failure) -> Candidate | Failure:
    if isinstance(reply, Failure):
        return reply
    text = without_reasoning(reply.text).strip()
    if reply.truncated:
        return Failure("cut off at the token limit")
    return Candidate(job=job, side=side, number=number, text=text) if text else Failure("empty answer")


def _seed(*parts: object) -> int:
    """Fixed by what is written, so that a subset or another order gives the same answers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") >> 1
