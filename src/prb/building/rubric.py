"""From a narrative to a rubric, and from a rubric to what somebody else would want in its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from prb.building.records import Record
from prb.evaluation.planners.llm import entries
from prb.llm import LLM, Completion, Sampling
from prb.llm.asking import Reply, ask, without_reasoning
from prb.prompts import load, quote, with_material
from prb.types import Aspect, Failure

Rubric = tuple[Aspect, ...]
REMIND_RUBRIC = (
    "Your whole reply must be the numbered list with the lines Aspect:, Evidence: and Reason:. Every evidence must be "
    "copied from the explanation, letter for letter."
)
REMIND_OPPOSE = "Your whole reply must be the numbered list, exactly one sentence for each wish."
SHORTEST = 6
"""Characters; less is no evidence of anything."""
_FIELD = re.compile(r"^[ \t*_#>-]*(?:\d{1,2}[.)][ \t*_]*)?(aspect|evidence|reason)[*_]*[ \t]*:[*_]*", re.I | re.M)
_ALIKE = str.maketrans("“”„«»‘’‚`\u00a0", '"""""\'\'\'\' ')
_AROUND = " \t\n\"'.…"


def make_rubrics(
    llm: LLM, records: Sequence[Record], span: tuple[int, int], sampling: Sampling
) -> list[Rubric | Failure]:
    """Aspects whose evidence stands in the narrative; a reply in which one does not is refused and asked for again."""
    prompts = [
        with_material(
            load("build_rubric"),
            fewest=str(span[0]),
            most=str(span[1]),
            question=quote("question", record.question),
            narrative=quote("explanation", record.narrative),
        )
        for record in records
    ]
    readers = [partial(_read, narrative=record.narrative, span=span) for record in records]
    replies = ask(llm, prompts, readers, sampling=sampling, reminder=REMIND_RUBRIC, missing="no rubric")
    return [reply.value if isinstance(reply, Reply) else reply for reply in replies]


def _read(said: Completion, *, narrative: str, span: tuple[int, int]) -> Rubric | None:
    return None if said.truncated else read_rubric(said.text, narrative, span)


def read_rubric(text: str, narrative: str, span: tuple[int, int]) -> Rubric | None:
    """The list, if it is whole and every evidence is a quote; evidence is returned as the narrative spells it."""
    found: list[Aspect] = []
    fields = _fields(without_reasoning(text))
    if len(fields) % 3 or [name for name, _ in fields] != ["aspect", "evidence", "reason"] * (len(fields) // 3):
        return None
    for n in range(0, len(fields), 3):
        (_, aspect), (_, evidence), (_, reason) = fields[n : n + 3]
        quoted = find_quote(evidence, narrative)
        if not aspect or quoted is None:
            return None
        found.append(Aspect(aspect, quoted, reason))
    return tuple(found) if span[0] <= len(found) <= span[1] else None


def find_quote(evidence: str, narrative: str) -> str | None:
    """Where the narrative says this, in its own letters; case, kinds of quotation marks and line breaks may differ."""
    wanted = evidence.translate(_ALIKE).strip(_AROUND)
    if len(wanted) < SHORTEST:
        return None
    pattern = r"\s+".join(re.escape(part) for part in wanted.split())
    match = re.search(
        pattern, narrative.translate(_ALIKE), re.IGNORECASE
    )  # translated letter by letter, so it lines up
    return narrative[match.start() : match.end()] if match else None


def _fields(text: str) -> list[tuple[str, str]]:
    heads = list(_FIELD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return [
        (head[1].lower(), " ".join(text[head.end() : end].split()).strip("*_ "))
        for head, end in zip(heads, ends, strict=False)  # without any head there still is an end
    ]


def make_opposites(
    llm: LLM, questions: Sequence[str], rubrics: Sequence[Rubric], sampling: Sampling
) -> list[tuple[str, ...] | Failure]:
    """For each aspect what somebody with opposite needs wants of an answer to this question."""
    prompts = [
        with_material(
            load("build_oppose"),
            question=quote("question", question),
            wishes=quote("wishes", numbered([aspect.aspect for aspect in rubric])),
            count="one entry" if len(rubric) == 1 else f"{len(rubric)} entries",
        )
        for question, rubric in zip(questions, rubrics, strict=True)
    ]
    readers = [partial(_read_list, count=len(rubric)) for rubric in rubrics]
    replies = ask(llm, prompts, readers, sampling=sampling, reminder=REMIND_OPPOSE, missing="no negative rubric")
    return [reply.value if isinstance(reply, Reply) else reply for reply in replies]


def _read_list(said: Completion, *, count: int) -> tuple[str, ...] | None:
    found = () if said.truncated else tuple(entries(said.text))
    return found if len(found) == count else None


def numbered(texts: Sequence[str]) -> str:
    return "\n".join(f"{n}. {text}" for n, text in enumerate(texts, 1))
