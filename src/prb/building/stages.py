"""Users' records, the calls of a build, and its stages: rubrics, opposite wishes, couples, answers, quality.

A stage is a prompt and a strict reader. Every text by others is quoted. What cannot be read is asked for once more with
a reminder, and then is a failure. A build is a function of its input and of the models' replies: one that was stopped,
by Ctrl-C, a crash, an endpoint or its budget, runs again from the beginning and finds its replies until it gets to
where it was stopped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from prb.building.config import ASPECTS, CANDIDATES, STAGES, BuildConfig, Role, Stage, gate_limits
from prb.data.schema import prepared, row_problems, to_posts, to_rubric
from prb.data.source import BadRow, open_source
from prb.errors import BadData, BadInput, Problem
from prb.evaluation.planners import entries
from prb.grading import Grades
from prb.hashing import draw
from prb.llm import LLM, Completion, Request, Sampling, parse_llm, request_key
from prb.llm.asking import Reply, ask, without_thinking
from prb.llm.endpoint import Budget, tokens_of
from prb.progress import SILENT, Progress
from prb.prompts import load, quote, with_material
from prb.text.encoders import ENCODERS, Encoder
from prb.text.pii import mask
from prb.text.words import similarity_blocks
from prb.types import Aspect, Failure, Post, Turn
from prb.work import Breaker, Call, CalledModel, Replies, ask_missing, chunks

T = TypeVar("T")
Rubric = tuple[Aspect, ...]
Side = Literal["chosen", "rejected"]
SIDES: tuple[Side, Side] = ("chosen", "rejected")

# --- records ---

NOT_KEPT = {"id", "user", "question", "narrative", "profile", "category", "rubric_aspects"}
NOT_KEPT |= {"chosen", "rejected", "mirror", "negative_rubric", "own_question", "build"}
"""Fields of a row that a record has, and those that a build writes: in an input they are left over from another one."""


@dataclass(frozen=True, kw_only=True)
class UserRecord:
    """One question of one user, with everything the user gave us."""

    id: str
    user: str
    question: str
    narrative: str
    posts: tuple[Post, ...]
    category: str = ""
    rubric: Rubric = ()
    """Empty until it is written from the narrative, if the row had none."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """All other fields of the row (split, topic, groups …), kept as they are."""

    @property
    def wishes(self) -> tuple[str, ...]:
        return tuple(aspect.aspect for aspect in self.rubric)

    def masked(self) -> UserRecord:
        """Without personal data in any text. The built rows are masked too."""
        return replace(
            self,
            question=mask(self.question),
            narrative=mask(self.narrative),
            posts=tuple(post._replace(text=mask(post.text)) for post in self.posts),
            rubric=tuple(aspect.mapped(mask) for aspect in self.rubric),
        )


class Reject(NamedTuple):
    record: str
    gate: str
    reason: str


def read_records(spec: str) -> list[UserRecord]:
    """All records of an input; bad rows raise an error that lists them all."""
    records: dict[str, UserRecord] = {}
    problems: list[Problem] = []
    for raw in open_source(spec).rows():
        try:
            row = prepared(raw, "records")
            reasons = row_problems(row, "records")
        except BadRow as error:
            row, reasons = {}, [str(error)]
        id_ = str(row.get("id"))
        if id_ in records:
            reasons.append(f"duplicate id {id_!r}")
        problems += [Problem(raw.place, raw.line, reason) for reason in reasons]
        if not reasons:
            records[id_] = UserRecord(
                id=id_,
                user=str(row.get("user", id_)),
                question=row["question"].strip(),
                narrative=row.get("narrative", "").strip(),
                posts=to_posts(row),
                category=row.get("category") or "uncategorised",
                rubric=to_rubric(row),
                other={key: value for key, value in row.items() if key not in NOT_KEPT},
            )
    if problems:
        raise BadData(spec, problems)
    if not records:
        raise BadInput(f"{spec} has no records")
    return list(records.values())


# --- calls: made once, counted by stage ---

TEMPERATURE = 0.8
"""Of answers; everything else is generated at 0."""
MAX_TOKENS = 1024
"""Of one reply."""
BATCH = 64
"""Requests whose replies are written together; a crash costs at most these."""
MAX_TRANSIENT = 8
"""Failures of the endpoint without a reply in between that stop the build: continuing would only produce rejects."""


@dataclass(kw_only=True)
class Usage:
    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0


@dataclass(kw_only=True)
class Ledger:
    """What a build was told and replied so far, and what that took."""

    config: BuildConfig
    llms: Mapping[Role, LLM]
    replies: Replies
    given: bool = False
    """Whether the LLMs are objects of the caller's."""
    breaker: Breaker = field(default_factory=Breaker)
    progress: Progress = SILENT
    asked: int = 0
    """Requests so far, whoever answered them."""
    failures: Counter[str] = field(default_factory=Counter)
    """Of these, the failed ones by reason."""
    usage: dict[Stage, Usage] = field(default_factory=lambda: defaultdict(Usage))
    """A reply counts once, in the stage that asked for it first."""
    counted: set[bytes] = field(default_factory=set)
    """Keys of the replies that are in `usage`."""

    @property
    def usd(self) -> float:
        return sum(usage.usd for usage in self.usage.values())


class StageLLM:
    """The LLM of one stage, which is sent only what has no reply in the ledger yet. It is an `LLM` itself."""

    def __init__(self, ledger: Ledger, stage: Stage) -> None:
        self.ledger, self.stage = ledger, stage
        self._inner = ledger.llms[STAGES[stage].role]
        self.fingerprint, self.remote = self._inner.fingerprint, self._inner.remote
        temperature = TEMPERATURE if stage == "answer" else 0.0
        self.sampling = Sampling(temperature=temperature, max_tokens=MAX_TOKENS, seed=ledger.config.seed)

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        ledger, stage = self.ledger, self.stage
        asked = CalledModel.of(stage, self._inner, "complete", from_caller=ledger.given)
        start = asked.key_start()
        calls = [Call(request_key(start, request), request) for request in requests]
        ledger.progress.begin(stage, total=len(calls))
        plan = ((batch, batch) for batch in chunks(calls, BATCH))
        for batch in ask_missing(plan, ledger.replies, asked, ledger.breaker, max_transient=MAX_TRANSIENT):
            for call in batch:
                if call.key in ledger.counted:
                    continue
                ledger.counted.add(call.key)
                reply, usage = ledger.replies[call.key], ledger.usage[stage]
                usage.calls += 1
                usage.failed += reply.failure is not None
                usage.prompt_tokens += reply.tokens - reply.spoken
                usage.completion_tokens += reply.spoken
                usage.usd += reply.cost
            ledger.progress.advance(len(batch))
            ledger.progress.status(f"${ledger.usd:.4f}")
        answers = [Completion.of(ledger.replies[call.key]) for call in calls]
        ledger.asked += len(answers)
        ledger.failures.update(answer.reason for answer in answers if isinstance(answer, Failure))
        return answers

    def ask(
        self,
        materials: Sequence[Mapping[str, str]],
        readers: Sequence[Callable[[Completion], T | None]],
        *,
        reminder: str,
        missing: str,
    ) -> list[T | Failure]:
        """What is read from the replies to the stage's prompt, filled with each of the materials."""
        template = load(STAGES[self.stage].prompt)
        prompts = [with_material(template, **material) for material in materials]
        replies = ask(self, prompts, readers, sampling=self.sampling, reminder=reminder, missing=missing)
        return [reply.value if isinstance(reply, Reply) else reply for reply in replies]


# --- what is made of records ---


@dataclass(frozen=True, kw_only=True)
class PairTask:
    """A question that needs two answers: one that follows the user's rubric and one that goes against it."""

    users: tuple[UserRecord, ...]
    """The user who asks, and in a couple the other one."""
    against: tuple[str, ...] = ()
    """What the rejected answer follows instead: an opposite wish per aspect, or the other user's wishes."""

    @property
    def id(self) -> str:
        return self.users[0].id

    @property
    def question(self) -> str:
        return self.users[0].question

    @property
    def coupled(self) -> bool:
        return len(self.users) == 2


@dataclass(frozen=True, kw_only=True)
class Candidate:
    task: PairTask
    side: Side
    number: int
    text: str
    failure: Failure | None = None
    grades: Grades | None = None
    """Against the user's rubric, once it is graded."""

    @property
    def name(self) -> str:
        return f"{self.side} {self.number}"


@dataclass(frozen=True, kw_only=True)
class AnswerPair:
    """Two answers to one question; the final ones passed every gate."""

    chosen: Candidate
    rejected: Candidate
    round: int
    quality: tuple[float, float] | None = None
    """Mean ratings of both, once they are judged."""

    @property
    def task(self) -> PairTask:
        return self.chosen.task

    @property
    def name(self) -> str:
        return f"{self.chosen.name}, {self.rejected.name}"


def _numbered(texts: Sequence[str]) -> str:
    return "\n".join(f"{n}. {text}" for n, text in enumerate(texts, 1))


# --- rubrics ---

REMIND_RUBRIC = (
    "Your whole reply must be the numbered list with the lines Aspect:, Evidence: and Reason:. Every evidence must be "
    "copied from the explanation, letter for letter."
)
MIN_EVIDENCE = 6
"""Characters; a shorter quote is not evidence of anything."""
_FIELD = re.compile(r"^[ \t*_#>-]*(?:\d{1,2}[.)][ \t*_]*)?(aspect|evidence|reason)[*_]*[ \t]*:[*_]*", re.I | re.M)
_PLAIN_QUOTES = str.maketrans("“”„«»‘’‚`\u00a0", '"""""\'\'\'\' ')


def write_rubrics(llm: StageLLM, records: Sequence[UserRecord]) -> list[Rubric | Failure]:
    fewest, most = map(str, ASPECTS)
    materials = [
        {
            "fewest": fewest,
            "most": most,
            "question": quote("question", record.question),
            "narrative": quote("explanation", record.narrative),
        }
        for record in records
    ]
    readers = [partial(read_rubric, narrative=record.narrative) for record in records]
    return llm.ask(materials, readers, reminder=REMIND_RUBRIC, missing="no rubric")


def read_rubric(reply: Completion, narrative: str) -> Rubric | None:
    """The aspects, if the list is complete and every evidence is a quote; evidence is spelled as in the narrative."""
    if reply.truncated:
        return None
    text = without_thinking(reply.text)
    heads = list(_FIELD.finditer(text))
    if not heads or [head[1].lower() for head in heads] != ["aspect", "evidence", "reason"] * (len(heads) // 3):
        return None
    ends = [*(head.start() for head in heads[1:]), len(text)]
    fields = [" ".join(text[head.end() : end].split()).strip("*_ ") for head, end in zip(heads, ends, strict=True)]
    aspects: list[Aspect] = []
    for aspect, evidence, reason in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        quoted = find_quote(evidence, narrative)
        if not aspect or quoted is None:
            return None
        aspects.append(Aspect(aspect, quoted, reason))
    return tuple(aspects) if ASPECTS[0] <= len(aspects) <= ASPECTS[1] else None


def find_quote(evidence: str, narrative: str) -> str | None:
    """The passage of the narrative that is quoted; case, quotation marks and line breaks may differ."""
    evidence = evidence.translate(_PLAIN_QUOTES).strip(" \t\n\"'.…")
    if len(evidence) < MIN_EVIDENCE:
        return None
    pattern = r"\s+".join(map(re.escape, evidence.split()))
    # translated character by character, so positions are those of the narrative
    match = re.search(pattern, narrative.translate(_PLAIN_QUOTES), re.IGNORECASE)
    return narrative[match.start() : match.end()] if match else None


# --- opposite wishes ---

REMIND_OPPOSE = "Your whole reply must be the numbered list, exactly one sentence for each wish."


def write_opposites(llm: StageLLM, records: Sequence[UserRecord]) -> list[tuple[str, ...] | Failure]:
    """For each aspect, what a user with opposite needs would want from an answer to this question."""
    materials = [
        {
            "question": quote("question", record.question),
            "wishes": quote("wishes", _numbered(record.wishes)),
            "count": "one entry" if len(record.rubric) == 1 else f"{len(record.rubric)} entries",
        }
        for record in records
    ]

    def read(reply: Completion, count: int) -> tuple[str, ...] | None:
        opposites = () if reply.truncated else tuple(entries(reply.text))
        return opposites if len(opposites) == count else None

    readers = [partial(read, count=len(record.rubric)) for record in records]
    return llm.ask(materials, readers, reminder=REMIND_OPPOSE, missing="no negative rubric")


# --- couples: encoders propose, a judge confirms ---

NEAREST = 5
"""Possible partners considered for each record."""
REMIND_COUPLE = (
    "Your reply must finish with one line: Verdict: conflict, Verdict: compatible or Verdict: different questions."
)
_VERDICT = re.compile(r"verdict[\s*_`]*:[\s*_`]*(conflict|compatible|different questions)\b(?!\s*(?:or\b|[,/|]))", re.I)


def propose_couples(
    records: Sequence[UserRecord], encoder: Encoder, similar: float
) -> list[tuple[UserRecord, UserRecord]]:
    """Different users of one split with similar questions, the most similar first, each record at most once."""
    if len(records) < 2:
        return []
    rows = encoder.encode([record.question for record in records])
    users = np.array([record.user for record in records])
    splits = np.array([str(record.other.get("split")) for record in records])
    near: set[tuple[float, int, int]] = set()
    for start, cosines in similarity_blocks(rows):
        here = slice(start, start + len(cosines))
        cosines[(users[here, None] == users[None, :]) | (splits[here, None] != splits[None, :])] = -1
        for number, of_one in enumerate(cosines, start):
            for other in np.argsort(-of_one, kind="stable")[:NEAREST]:
                if of_one[other] >= similar:
                    first, second = sorted((number, int(other)))
                    near.add((-float(of_one[other]), first, second))
    taken: set[int] = set()
    couples = []
    for _, first, second in sorted(near):
        if not taken & {first, second}:
            taken |= {first, second}
            couples.append((records[first], records[second]))
    return couples


def judge_couples(llm: StageLLM, couples: Sequence[tuple[UserRecord, UserRecord]]) -> list[str | Failure]:
    """Whether the first question would do for both users, and no answer to it could please both."""
    materials = [
        {
            "question_1": quote("first question", first.question),
            "wishes_1": quote("wishes of the first person", _numbered(first.wishes)),
            "question_2": quote("second question", second.question),
            "wishes_2": quote("wishes of the second person", _numbered(second.wishes)),
        }
        for first, second in couples
    ]
    readers = [read_couple_verdict] * len(couples)
    return llm.ask(materials, readers, reminder=REMIND_COUPLE, missing="no verdict on a couple")


def read_couple_verdict(reply: Completion) -> str | None:
    """`None` unless there is exactly one verdict."""
    verdicts = {match.lower() for match in _VERDICT.findall(without_thinking(reply.text))}
    return verdicts.pop() if len(verdicts) == 1 else None


# --- answers: both sides come from one prompt, so that only the wishes differ ---


def write_answers(llm: StageLLM, tasks: Sequence[PairTask], round: int) -> list[Candidate]:
    """Candidates for each side of each task, in the order of the tasks; some may have failed."""
    config = llm.ledger.config
    planned = [(task, side, n) for task in tasks for side in SIDES for n in range(1, CANDIDATES + 1)]
    requests = []
    for task, side, number in planned:
        # fixed by what is written, so that a subset or another order gives the same answers
        seed = draw((config.seed, task.id, side, number, round), bits=31)
        avoids = side == "rejected" and config.mode == "avoid" and not task.coupled
        followed = task.users[0].wishes if side == "chosen" or avoids else task.against
        prompt = with_material(
            load("build_avoid" if avoids else "build_answer"),
            question=quote("question", task.question),
            wishes=quote("matters" if avoids else "wishes", _numbered(followed)),
            words=str(config.words),
        )
        requests.append(Request((Turn("user", prompt),), replace(llm.sampling, seed=seed)))
    candidates = []
    for (task, side, number), reply in zip(planned, llm.complete(requests), strict=True):
        text = "" if isinstance(reply, Failure) else without_thinking(reply.text).strip()
        failure = reply if isinstance(reply, Failure) else None if text else Failure("empty answer")
        if isinstance(reply, Completion) and reply.truncated:
            failure = Failure("cut off at the token limit")
        candidates.append(Candidate(task=task, side=side, number=number, text=text, failure=failure))
    return candidates


# --- general quality, rated side by side without rubric and profile, in both orders ---

CRITERIA = ("correctness", "relevance", "helpfulness", "fluency")
REMIND_QUALITY = (
    "Your reply must finish with the two lines Answer A: … and Answer B: …, each with four whole numbers, 1 to 5."
)
_RATINGS = r"[\s,;]+".join(rf"{name}\W{{0,4}}([1-5])(?:\s*/\s*5)?" for name in CRITERIA)
_RATING_LINES = [
    re.compile(rf"answer\s+{name}[\s*_`]*:[\s*_`]*{_RATINGS}(?!\d|\.\d)", re.IGNORECASE) for name in ("a", "b")
]


def rate_quality(llm: StageLLM, pairs: Sequence[AnswerPair]) -> list[tuple[float, float] | Failure]:
    """Mean rating of both answers over the criteria and both orders; if one order fails, the pair fails."""
    materials = [
        {
            "question": quote("question", pair.task.question),
            "answer_a": quote("answer A", first.text),
            "answer_b": quote("answer B", second.text),
        }
        for pair in pairs
        for first, second in ((pair.chosen, pair.rejected), (pair.rejected, pair.chosen))
    ]
    readers = [read_ratings] * len(materials)
    ratings = llm.ask(materials, readers, reminder=REMIND_QUALITY, missing="no ratings")
    results: list[tuple[float, float] | Failure] = []
    for forward, backward in zip(ratings[::2], ratings[1::2], strict=True):
        if isinstance(forward, Failure) or isinstance(backward, Failure):
            results.append(forward if isinstance(forward, Failure) else backward)
        else:
            results.append(((forward[0] + backward[1]) / 2, (forward[1] + backward[0]) / 2))
    return results


def read_ratings(reply: Completion) -> tuple[float, float] | None:
    """The last rating of each answer; `None` unless both are rated."""
    text = without_thinking(reply.text)
    matches = [list(pattern.finditer(text)) for pattern in _RATING_LINES]
    if not all(matches):
        return None
    first, second = (mean(int(number) for number in of_one[-1].groups()) for of_one in matches)
    return first, second


# --- what a build will cost ---

ASPECT_TOKENS, COMMENT_TOKENS, GRADE_TOKENS = 30, 80, 40
"""Of one aspect, of what a judge writes before its verdict, and of the grade of one aspect with its reason."""
TOKENS_PER_WORD = 1.4
"""Of English answers."""


def estimate_cost(config: BuildConfig, records: Sequence[UserRecord]) -> dict[str, Any]:
    """Of a build without a log in which every reply is readable and every pair passes in its first round; further
    rounds would cost as much again."""
    n, gates = len(records), gate_limits(config.gate)
    given = [len(record.rubric) for record in records if record.rubric]
    aspects = round(mean(given)) if given else sum(ASPECTS) // 2
    rubric, answer = aspects * ASPECT_TOKENS, round(config.words * TOKENS_PER_WORD)
    question, narrative = (
        round(mean(map(tokens_of, texts))) if texts else 0
        for texts in ([record.question for record in records], [record.narrative for record in records])
    )
    couples = propose_couples(records, ENCODERS.make("static"), gates["couple"]["cosine"]) if config.mirror else ()
    judging = question + 2 * answer, COMMENT_TOKENS
    planned: dict[Stage, tuple[int, int, int]] = {  # calls, tokens in a prompt beside its template, and in a reply
        "rubric": (sum(not record.rubric for record in records), question + narrative, 3 * rubric),
        "couple": (len(couples), 2 * (question + rubric), COMMENT_TOKENS),
        "negative": (n if config.mode == "oppose" else 0, question + rubric, rubric),
        "answer": (2 * CANDIDATES * n, question + rubric, answer),
        "grade": (
            2 * CANDIDATES * n if "aspects" in gates else 0,
            question + 2 * rubric + answer,
            aspects * GRADE_TOKENS,
        ),
        "quality": (2 * n if "quality" in gates else 0, *judging),
        "blind": (2 * n if "blind-judge" in gates else 0, *judging),
    }
    stages: dict[Stage, dict[str, float | None]] = {}
    for stage, (calls, prompt, reply) in planned.items():
        tokens_in = calls * (tokens_of(load("material")) + tokens_of(load(STAGES[stage].prompt)) + prompt)
        options = parse_llm(config.spec_of(STAGES[stage].role)).options
        prices = Budget(float(options.get("usd_in", 0)), float(options.get("usd_out", 0)))
        priced = bool({"usd_in", "usd_out"} & options.keys()) or not calls
        usd = prices.charge(tokens_in, calls * reply) if priced else None
        stages[stage] = {"calls": calls, "tokens_in": tokens_in, "tokens_out": calls * reply, "usd": usd}
    costs = [cost["usd"] for cost in stages.values()]
    return {"records": n, "stages": stages, "usd": None if None in costs else sum(filter(None, costs))}
