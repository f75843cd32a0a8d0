"""What goes in and what comes out: our own contract and OpenRLHF's, and how each becomes asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from prb.serving.batching import BROKEN, length
from prb.types import Ask, Failure, Post, Query, Reward

ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>", "<|end|>", "</s>")
"""Markers a policy's tokenizer leaves after an answer; OpenRLHF sends texts with them."""


class Refused(Exception):
    """A request that gets no score, its status and why."""

    def __init__(self, status: int, reason: str, failures: Sequence[str | None] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.failures = status, reason, failures


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character: a lone surrogate") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]
"""JSON can spell halves of characters, which no tokenizer takes."""


class Strict(BaseModel):
    """A misspelt field would silently hide the person from the model; there is none for rubric or narrative."""

    model_config = ConfigDict(extra="forbid")


class PostIn(Strict):
    text: Text
    id: Text | None = None
    category: Text = ""


class QueryIn(Strict):
    """All that the model may see."""

    question: Text
    user: Text | None = None
    posts: list[PostIn | Text] = Field(default=[], max_length=10_000)
    """The person's past posts, oldest first, as texts or as maps with a text."""
    plan: list[Text] = Field(default=[], max_length=1_000)
    """What this person probably wants, one aspect an entry."""

    def query(self) -> Query:
        posts = [PostIn(text=post) if isinstance(post, str) else post for post in self.posts]
        made = tuple(Post(str(n) if p.id is None else p.id, p.category, p.text) for n, p in enumerate(posts, 1))
        return Query(question=self.question, user=self.user, posts=made, plan=tuple(self.plan))


class ScoreRequest(Strict):
    query: QueryIn
    answers: Annotated[list[Text], Field(min_length=1)]
    partial: bool = False
    """Give what scores there are, with a reason where there is none; else one failure fails the request."""

    def asks(self) -> list[Ask]:
        query = self.query.query()
        return [Ask(query, answer) for answer in self.answers]


class ScoreReply(BaseModel):
    scores: list[float | None]
    failures: list[str | None]
    """Why there is no score; null where there is one."""
    cut: list[int]
    """How many posts (and the question's middle) were left out because they did not fit the model."""
    model: str
    fingerprint: str


class RewardRequest(BaseModel):
    """OpenRLHF's: whole texts, the prompts they begin with, and what the dataset's label column holds."""

    query: Annotated[list[Text], Field(min_length=1)]
    prompts: list[Text]
    labels: list[str | dict[str, Any] | None] | None = None
    """A query as ours, as JSON text or a map; empty or null: the prompt is the question, of nobody in particular."""

    def asks(self) -> list[Ask]:
        labels = self.labels or [None] * len(self.query)
        if not len(self.query) == len(self.prompts) == len(labels):
            raise Refused(422, "query, prompts and labels are not equally long")
        rows = zip(self.query, self.prompts, labels, strict=True)
        return [
            Ask(_labelled(n, prompt, label), _answer(n, text, prompt)) for n, (text, prompt, label) in enumerate(rows)
        ]


class RewardReply(BaseModel):
    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


def reply(said: Sequence[float | Failure], *, partial: bool, model: str, fingerprint: str) -> ScoreReply:
    if not partial:
        all_scored(said)
    return ScoreReply(
        scores=[None if isinstance(s, Failure) else float(s) for s in said],
        failures=reasons(said),
        cut=cuts(said),
        model=model,
        fingerprint=fingerprint,
    )


def reward_reply(said: Sequence[float | Failure]) -> RewardReply:
    scores = all_scored(said)
    return RewardReply(rewards=scores, scores=scores, extra_logs={"cut": [float(cut) for cut in cuts(said)]})


def all_scored(said: Sequence[float | Failure]) -> list[float]:
    """The numbers, if there is one each. 422: the model has no score for this text; 502: it broke."""
    failures = [s for s in said if isinstance(s, Failure)]
    if failures:
        broken = any(failure.reason == BROKEN for failure in failures)
        reason = f"no score for {len(failures)} of {len(said)} answers: {failures[0]}"
        raise Refused(502 if broken else 422, reason, reasons(said))
    return [float(s) for s in said if not isinstance(s, Failure)]


def reasons(said: Sequence[float | Failure]) -> list[str | None]:
    return [str(s) if isinstance(s, Failure) else None for s in said]


def cuts(said: Sequence[float | Failure]) -> list[int]:
    return [s.cut if isinstance(s, Reward) else 0 for s in said]


def within(asks: Sequence[Ask], *, answers: int, chars: int) -> Sequence[Ask]:
    """The asks, if the request is not too large."""
    if len(asks) > answers:
        raise Refused(413, f"{len(asks)} answers in one request; at most {answers}")
    longest = max(length(query) for query in {ask.query for ask in asks})
    if longest > chars:
        raise Refused(413, f"a query of {longest} characters; at most {chars}")
    longest = max(len(ask.answer) for ask in asks)
    if longest > chars:
        raise Refused(413, f"an answer of {longest} characters; at most {chars}")
    return asks


def explained(errors: Sequence[Any]) -> str:
    """The first thing that is wrong with a body, without what stands there."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        return f"not JSON: {first['ctx']['error']} at {place}".removesuffix(" at ")
    return f"{place or 'body'}: {first['msg']}"


def _labelled(n: int, prompt: str, label: str | dict[str, Any] | None) -> Query:
    """A label that cannot be read is an error: to score without the person would be another question's score."""
    if label is None or (isinstance(label, str) and not label.strip()):
        return Query(question=prompt)
    try:
        found = QueryIn.model_validate_json(label) if isinstance(label, str) else QueryIn.model_validate(label)
    except ValidationError as error:
        raise Refused(422, f"labels.{n} is no query: {explained(error.errors())}") from None
    return found.query()


def _answer(n: int, text: str, prompt: str) -> str:
    if not text.startswith(prompt):
        raise Refused(422, f"query.{n} does not begin with prompts.{n}, so the answer in it cannot be told")
    answer = text.removeprefix(prompt).rstrip()
    while end := next((end for end in ENDS if answer.endswith(end)), None):
        answer = answer.removesuffix(end).rstrip()
    return answer
