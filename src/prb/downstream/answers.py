"""Answers to queries: sampled from a policy or given in a file, scored by a reward model, graded.

Best-of-N and the held-out answers of PPO ask through `Asking`, which asks for what has no reply yet. Lines of
`samples.jsonl`, `scores.jsonl` and `grades.jsonl` are derived from the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from prb.data.schema import read_items
from prb.errors import BadInput
from prb.hashing import digest, draw
from prb.llm import Completion, Request, Sampling, request_key
from prb.llm.asking import without_thinking
from prb.progress import Progress, Tally
from prb.prompts import PolicyPrompt, policy_chat
from prb.runs import read_lines
from prb.stats.credit import CREDIT, meetings, win_rates
from prb.types import Ask, Duel, Failure, Pair, Query, writable
from prb.work import Breaker, Call, CalledModel, Replies, Reply, ask_missing, calls_of, chunks, gravest

P = TypeVar("P")
T = TypeVar("T")
Line = TypeVar("Line", bound=Struct)
Place = tuple[str, int]
"""Pair id and number of the sample."""
Queries = Callable[[Sequence[str]], Mapping[str, Query | Failure]]
"""What a model is shown of some pairs, by their ids."""


class Sample(Struct, frozen=True, kw_only=True):
    """One line of `samples.jsonl`."""

    pair: str
    n: int
    """0 to N − 1."""
    text: str | None
    tokens: int
    seed: int
    truncated: bool = False
    """Whether the policy was stopped by max_tokens; the text is used all the same."""
    cost: float = 0.0
    failure: str | None = None


class Score(Struct, frozen=True, kw_only=True):
    """One line of `scores.jsonl`."""

    model: str
    pair: str
    n: int
    score: float | None
    """The reward, or the win rate where the model is a comparer."""
    failure: str | None = None


class SampleGrade(Struct, frozen=True, kw_only=True):
    """What is read of a line of `grades.jsonl`."""

    pair: str
    n: int
    score: float | None


SAMPLES, SCORES, GRADES = "samples.jsonl", "scores.jsonl", "grades.jsonl"


def read_stage(path: Path, of: type[Line]) -> Iterator[Line]:
    if not path.exists():
        raise BadInput(f"{path.parent} is incomplete: it has no {path.name}")
    try:
        yield from (msgspec.convert(line, of) for line in read_lines(path))
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {error}; run its command again to rewrite it") from None


class Pool(NamedTuple):
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
        self, asked: CalledModel, places: Sequence[Place], sampling: Sampling, style: PolicyPrompt, queries: Queries
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
            reply = failure or Completion.of(replies[0])
            text = "" if isinstance(reply, Failure) else clean(reply.text)
            failed = reply if isinstance(reply, Failure) else None if text else Failure("empty answer")
            samples[place] = Sample(
                pair=place[0],
                n=place[1],
                text=text or None,
                tokens=reply.completion_tokens,
                seed=sample_seed(sampling.seed, *place),
                truncated=isinstance(reply, Completion) and reply.truncated,
                cost=reply.cost,
                failure=str(failed) if failed else None,
            )
            tally.add([samples[place].failure], [reply.cost])
        return samples

    def score(self, asked: CalledModel, texts: Mapping[str, Sequence[str]], queries: Queries) -> dict[Place, Score]:
        """Rewards, or win rates of a comparer, of which one failed verdict fails them all. Equal texts are asked about
        once and tie exactly."""
        start = asked.key_start()

        def plan(batch: Sequence[str]) -> Iterator[tuple[Candidates, list[Call]]]:
            shown = queries(batch)
            for pair in batch:
                candidates = Candidates(pair, shown[pair], texts[pair])
                yield candidates, calls_of(start, candidates.asks(asked.method))

        scores, tally = dict[Place, Score](), Tally(self.progress)
        answers = max(map(len, texts.values()), default=1)
        for candidates, replies in self._ask(f"scoring by {asked.name}", asked, list(texts), plan, answers):
            distinct = list(dict.fromkeys(candidates.texts))
            results: list[Any]
            if isinstance(candidates.query, Failure):
                results = [candidates.query] * len(distinct)
            elif asked.method == "score":
                results = [reply.as_failure or reply.value for reply in replies]
            elif failures := [failure for reply in replies if (failure := reply.as_failure)]:
                results = [gravest(failures)] * len(distinct)
            else:
                results = win_rates(len(distinct), [CREDIT[reply.value] for reply in replies])  # type: ignore[index]
            result_of = dict(zip(distinct, results, strict=True))
            failed: list[str | None] = []
            for n, text in enumerate(candidates.texts):
                result, place = result_of[text], (candidates.pair, n)
                score, reason = (None, str(result)) if isinstance(result, Failure) else (result, None)
                scores[place] = Score(model=asked.name, pair=candidates.pair, n=n, score=score, failure=reason)
                failed.append(reason)
            tally.add(failed, [reply.cost for reply in replies])
        return scores

    def _ask(
        self,
        label: str,
        asked: CalledModel,
        items: Sequence[T],
        plan: Callable[[Sequence[T]], Iterable[tuple[P, list[Call]]]],
        answers: int = 1,
    ) -> Iterator[tuple[P, list[Reply]]]:
        """What `plan` makes of the items, each with the replies to its calls; an item has so many answers."""
        size = max(1, asked.batch // answers)
        batches = (list(plan(batch)) for batch in chunks(items, size))
        self.progress.begin(label, total=len(items))
        calls = ((batch, [call for _, of_one in batch for call in of_one]) for batch in batches)
        for batch in ask_missing(calls, self.replies, asked, self.breaker):
            yield from ((planned, [self.replies[call.key] for call in of_one]) for planned, of_one in batch)
            self.progress.advance(len(batch))


def sample_seed(seed: int, pair: str, n: int) -> int:
    """Fixed by the place alone, so subsets, orders and resumed runs draw the same answers."""
    return draw(seed, n, pair, bits=31)


class ModelAbout(Struct, frozen=True):
    spec: str
    fingerprint: str | None = None
