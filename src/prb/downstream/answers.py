"""Answers to queries: sampled from a policy or given in a file, scored by a reward model, graded.

Best-of-N and the held-out answers of PPO ask through `Asking`, which asks for what has no reply yet. Lines of
`samples.jsonl`, `scores.jsonl` and `grades.jsonl` are derived from the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from prb.data.schema import read_items
from prb.errors import BadInput
from prb.grading import Answered, Grader, Grades, grades_of, grading_calls
from prb.hashing import digest, draw
from prb.llm import Completion, Request, Sampling, request_key
from prb.llm.asking import without_thinking
from prb.progress import Progress, Tally
from prb.prompts import PolicyPrompt, policy_chat
from prb.stats.credit import CREDIT, meetings, win_rates
from prb.types import Ask, Duel, Failure, FailureKind, Pair, Query, Reward, Verdict, writable
from prb.work import (
    LARGEST_REWARD,
    Asked,
    Breaker,
    Call,
    Replies,
    Reply,
    ask_missing,
    calls_of,
    checked_reward,
    chunks,
    gravest,
)

AT_ONCE, REMOTE_AT_ONCE = 8, 256
"""Answers asked about in one call, on this machine and elsewhere; a crash costs at most these."""
P = TypeVar("P")
T = TypeVar("T")
Line = TypeVar("Line", bound=Struct)
Place = tuple[str, int]
"""Pair id and number of the sample."""
Queries = Callable[[Sequence[str]], Mapping[str, Query | Failure]]
"""What a model is shown of some pairs, by their ids."""
Amount = Annotated[int, Meta(ge=0)]


class Sample(Struct, frozen=True, kw_only=True):
    """One line of `samples.jsonl`."""

    pair: str
    n: Amount
    """0 to N − 1."""
    text: str | None
    tokens: Amount
    """Tokens written by the policy."""
    seed: int
    truncated: bool = False
    """Whether the policy was stopped by max_tokens; the text is used all the same."""
    cost: Annotated[float, Meta(ge=0)] = 0.0
    failure: str | None = None
    failure_kind: FailureKind | None = None


class Score(Struct, frozen=True, kw_only=True):
    """One line of `scores.jsonl`."""

    model: str
    pair: str
    n: Amount
    score: Annotated[float, Meta(ge=-LARGEST_REWARD, le=LARGEST_REWARD)] | None
    """The reward, or the win rate where the model is a comparer."""
    failure: str | None = None
    failure_kind: FailureKind | None = None
    cut: Amount = 0
    """Posts that did not fit the model."""
    tokens: Amount = 0
    cost: Annotated[float, Meta(ge=0)] = 0.0


class SampleGrade(Struct, frozen=True, kw_only=True):
    """What is read of a line of `grades.jsonl`."""

    pair: str
    n: Amount
    score: Annotated[float, Meta(ge=0, le=1)] | None


SAMPLES, SCORES, GRADES = "samples.jsonl", "scores.jsonl", "grades.jsonl"


def read_stage(path: Path, of: type[Line]) -> Iterator[Line]:
    """The complete lines of a file."""
    if not path.exists():
        raise BadInput(f"{path.parent} is incomplete: it has no {path.name}")
    decoder = msgspec.json.Decoder(of)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise BadInput(f"{path}, line {number}: {error}; run its command again to rewrite it") from None


class Pool(NamedTuple):
    """Answers that were made elsewhere."""

    fingerprint: str
    """Of the content, wherever the file is."""
    answers: Mapping[tuple[str, str], tuple[str, ...]]
    """By `("pair", id of a row)` or `("question", text)`."""

    def of(self, pair: Pair) -> tuple[str, ...]:
        return self.answers.get(("pair", pair.id)) or self.answers.get(("question", pair.question)) or ()


def read_pool(name: str) -> Pool:
    """Of a file, or `mirror`: the answers that ship with the embedded benchmark.

    A line has `pair` (id of a row) or `question`, and `answers`, `answer` or `text`; lines of a row add up. So
    `samples.jsonl` of an earlier run can be read; its failed samples are not candidates.
    """

    def candidates(line: Mapping[str, Any]) -> tuple[tuple[str, str], list[str]]:
        key = next(((name, str(line[name])) for name in ("pair", "question") if line.get(name) is not None), None)
        if key is None:
            raise ValueError("`pair` (the id of a row) or `question` is missing")
        if line.get("failure") is not None:
            return key, []
        values = next((line[name] for name in ("answers", "answer", "text") if line.get(name) is not None), None)
        values = values if isinstance(values, list) else [values]
        texts = [clean(value) for value in values if isinstance(value, str)]
        if not texts or len(texts) != len(values) or not all(texts):
            raise ValueError("`answers` must be a list of texts that are not empty, or `answer` such a text")
        return key, texts

    answers: dict[tuple[str, str], list[str]] = {}
    with as_file(files("prb.data") / "mirror" / "pool.jsonl" if name == "mirror" else Path(name)) as path:
        for key, texts in read_items(path, candidates):
            answers.setdefault(key, []).extend(texts)
    fingerprint = digest(sorted(answers.items())).hex()[:16]
    return Pool(fingerprint, {key: tuple(texts) for key, texts in answers.items()})


def clean(text: str) -> str:
    """The text as reward models read it, without reasoning."""
    return writable(without_thinking(text).strip())


class Candidates(NamedTuple):
    """The answers to one pair, in order, and the query that a model is shown with them."""

    pair: str
    query: Query | Failure
    texts: Sequence[str]

    def asks(self, method: str) -> Sequence[Ask | Duel]:
        """Every distinct text once, or every two of them in both orders."""
        if isinstance(self.query, Failure):
            return []
        texts = list(dict.fromkeys(self.texts))
        if method == "score":
            return [Ask(self.query, text) for text in texts]
        return [Duel(self.query, texts[i], texts[j]) for i, j in meetings(len(texts))]


@dataclass(frozen=True)
class Asking:
    """Asks for what has no reply yet, and makes samples, scores and grades of the replies."""

    replies: Replies
    breaker: Breaker
    progress: Progress

    def sample(
        self, asked: Asked, places: Sequence[Place], sampling: Sampling, style: PolicyPrompt, queries: Queries
    ) -> dict[Place, Sample]:
        """A place without a query is a failure, and the policy is not asked."""
        start = asked.key_start()

        def plan(batch: Sequence[Place]) -> Iterator[tuple[tuple[Place, Failure | None], list[Call]]]:
            shown = queries(list(dict.fromkeys(pair for pair, _ in batch)))
            for place in batch:
                if isinstance(query := shown[place[0]], Failure):
                    yield (place, query), []
                else:
                    drawn = replace(sampling, seed=sample_seed(sampling.seed, *place))
                    request = Request(policy_chat(query, style), drawn)
                    yield (place, None), [Call(request_key(start, request), request)]

        samples, tally = {}, Tally(self.progress)
        for (place, failure), replies in self._ask(f"sampling {asked.name}", asked, places, plan):
            sample = sample_of(place, sampling.seed, failure or Completion.of(replies[0]))
            samples[place] = sample
            tally.add([sample.failure], [sample.cost])
        return samples

    def score(self, asked: Asked, texts: Mapping[str, Sequence[str]], queries: Queries) -> dict[Place, Score]:
        start = asked.key_start()

        def plan(batch: Sequence[str]) -> Iterator[tuple[Candidates, list[Call]]]:
            shown = queries(batch)
            for pair in batch:
                candidates = Candidates(pair, shown[pair], texts[pair])
                yield candidates, calls_of(start, candidates.asks(asked.method))

        scores, tally = {}, Tally(self.progress)
        answers = max(map(len, texts.values()), default=1)
        for candidates, replies in self._ask(f"scoring by {asked.name}", asked, list(texts), plan, answers):
            for line in scores_of(asked.name, candidates, [_answer(reply) for reply in replies]):
                scores[line.pair, line.n] = line
                tally.add([line.failure], [line.cost])
        return scores

    def grade(self, asked: Asked, answers: Mapping[Place, Answered]) -> dict[Place, Grades | Failure]:
        def plan(batch: Sequence[Place]) -> Iterator[tuple[Place, list[Call]]]:
            for place, call in zip(batch, grading_calls(asked, [answers[p] for p in batch]), strict=True):
                yield place, [call]

        grades, tally = {}, Tally(self.progress)
        for place, replies in self._ask(f"grading by {asked.name}", asked, list(answers), plan):
            grades[place] = graded = grades_of(replies[0], answers[place])
            tally.add(["failed" if isinstance(graded, Failure) else None], [graded.cost])
        return grades

    def _ask(
        self,
        label: str,
        asked: Asked,
        items: Sequence[T],
        plan: Callable[[Sequence[T]], Iterable[tuple[P, list[Call]]]],
        answers: int = 1,
    ) -> Iterator[tuple[P, list[Reply]]]:
        """What `plan` makes of the items, each with the replies to its calls; an item has so many answers."""
        size = max(1, (REMOTE_AT_ONCE if asked.remote else AT_ONCE) // answers)
        batches = (list(plan(batch)) for batch in chunks(items, size))
        self.progress.begin(label, total=len(items))
        calls = ((batch, [call for _, of_one in batch for call in of_one]) for batch in batches)
        for batch in ask_missing(calls, self.replies, asked, self.breaker):
            yield from ((planned, [self.replies[call.key] for call in of_one]) for planned, of_one in batch)
            self.progress.advance(len(batch))


def sample_seed(seed: int, pair: str, n: int) -> int:
    """Fixed by the place alone, so subsets, orders and resumed runs draw the same answers."""
    return draw(seed, n, pair, bits=31)


def sample_of(place: Place, seed: int, reply: Completion | Failure) -> Sample:
    used = {"seed": sample_seed(seed, *place), "tokens": reply.completion_tokens, "cost": reply.cost}
    about: dict[str, Any] = {"pair": place[0], "n": place[1], **used}
    if isinstance(reply, Failure):
        return Sample(text=None, failure=str(reply), failure_kind=reply.kind, **about)
    text = clean(reply.text)
    if not text:
        return Sample(text=None, truncated=reply.truncated, failure="empty answer", failure_kind="row", **about)
    return Sample(text=text, truncated=reply.truncated, **about)


def all_texts(samples: Sequence[Sample]) -> list[str]:
    """All N answers, or none: a query with a failed sample is left out."""
    texts = [sample.text for sample in samples if sample.text is not None]
    return texts if len(texts) == len(samples) else []


def _answer(reply: Reply) -> float | Verdict | Failure:
    """A reply as the reward or the verdict that a model returned."""
    if failure := reply.answer_failed:
        return failure
    used: dict[str, Any] = {"tokens": reply.tokens, "cut": reply.cut, "cost": reply.cost}
    if isinstance(reply.value, str):
        return Verdict(choice=reply.value, **used)  # type: ignore[arg-type]
    return Reward(reply.value, **used)  # type: ignore[arg-type]


def scores_of(name: str, candidates: Candidates, answers: Sequence[float | Verdict | Failure]) -> list[Score]:
    """A line per answer from what a model replied to `Candidates.asks`. Equal texts were asked about once: they tie
    exactly, and the cost is booked on the first of them."""
    pair, query, texts = candidates
    if isinstance(query, Failure):  # it cost this model nothing
        failed: dict[str, Any] = {"failure": str(query), "failure_kind": query.kind}
        return [Score(model=name, pair=pair, n=n, score=None, **failed) for n in range(len(texts))]
    distinct = list(dict.fromkeys(texts))
    rewards = [answer for answer in answers if not isinstance(answer, Verdict)]
    if len(rewards) == len(distinct):
        results = list(map(checked_reward, rewards))
    else:
        results = _round_robin(len(distinct), [answer for answer in answers if isinstance(answer, Verdict | Failure)])
    lines = []
    for n, text in enumerate(texts):
        result, first = results[distinct.index(text)], texts.index(text) == n
        about: dict[str, Any] = {"model": name, "pair": pair, "n": n}
        if isinstance(result, Failure):
            about |= {"score": None, "failure": str(result), "failure_kind": result.kind}
            about |= {"tokens": result.tokens, "cost": result.cost} if first else {}
        else:
            about |= {"score": float(result)}
            if first and isinstance(result, Reward):
                about |= {"cut": result.cut, "tokens": result.tokens, "cost": result.cost}
        lines.append(Score(**about))
    return lines


def _round_robin(n: int, verdicts: Sequence[Verdict | Failure]) -> list[float | Failure]:
    """One failed verdict fails the round robin. The cost of all verdicts is booked on the first answer."""
    valid = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    failed = [verdict for verdict in verdicts if isinstance(verdict, Failure)]
    tokens, cost = sum(v.tokens for v in valid), sum(v.cost for v in verdicts)
    if failed:
        tokens += sum(f.prompt_tokens + f.completion_tokens for f in failed)
        free = replace(gravest(failed), prompt_tokens=0, completion_tokens=0, cost=0.0)
        return [replace(free, prompt_tokens=tokens, cost=cost), *[free] * (n - 1)]
    rates = win_rates(n, [CREDIT[verdict.choice] for verdict in valid])
    return [Reward(rates[0], tokens=tokens, cost=cost, cut=max([v.cut for v in valid], default=0)), *rates[1:]]


class ModelAbout(Struct, frozen=True):
    spec: str
    fingerprint: str | None = None


class GraderAbout(Struct, frozen=True):
    spec: str
    fingerprint: str | None = None
    validity: str | None = None

    @classmethod
    def of(cls, spec: str, grader: Grader) -> Self:
        return cls(spec, grader.fingerprint, getattr(grader, "validity", None))

    @property
    def trust(self) -> str:
        """Whose grades these are and how far they can be trusted; shown wherever they are."""
        return f"Graded by {self.spec}. {self.validity or 'Its validity has not been measured.'}"
