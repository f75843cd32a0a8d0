"""Requests and replies of the reward server's three contracts: ours, OpenRLHF's and vLLM's."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar
from uuid import uuid4

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from prb.serving.server import MODEL_ERROR, MOST_ANSWERS, query_length
from prb.types import Ask, Choice, Failure, Post, Query, Reward, Role, Turn

END_MARKERS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<eos>",
    "<|end|>",
    "</s>",
)
"""Special tokens after an answer; OpenRLHF does not strip them."""
TURNS = (
    ("<|im_start|>", "\n", "<|im_end|>"),
    ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
    ("<start_of_turn>", "\n", "<end_of_turn>"),
)
"""What chat templates put before a turn's role, before its text and after it: ChatML, Llama 3, Gemma."""
BETWEEN_TURNS = re.compile(r"(?:\s|<\|begin_of_text\|>|<bos>|<s>|</s>|<\|endoftext\|>|<\|end_of_text\|>|<eos>)*")
EMPTY_THINKING = re.compile(r"\A\s*<think>\s*</think>\s*")
"""Templates of reasoning models put this before an answer that was given without reasoning."""


class Refused(Exception):
    """Raised for a request that gets no score."""

    def __init__(self, status: int, reason: str, failures: Sequence[str | None] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.failures = status, reason, failures


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains a lone surrogate") from None
    return text


Text = Annotated[str, AfterValidator(_check_unicode)]
"""JSON can spell lone surrogates, which no tokenizer accepts."""
T = TypeVar("T")
Many = Annotated[list[T], FailFast()]
"""Only the first invalid entry is reported; collecting millions of errors would take gigabytes."""
Answers = Annotated[Many[Text], Field(min_length=1, max_length=MOST_ANSWERS)]


class Strict(BaseModel):
    """A misspelled field would silently hide the user from the model. No field holds a rubric or narrative."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def report_one_unknown_field(cls, value: Any) -> Any:
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        unknown = next(name for name in value if name not in cls.model_fields)
        return {name: value[name] for name in (*cls.model_fields, unknown) if name in value}


class PostIn(Strict):
    text: Text
    id: Text | None = None
    category: Text = ""


class ChoiceIn(Strict):
    question: Text
    chosen: Text
    rejected: Text


class TurnIn(Strict):
    role: Role
    text: Text


class QueryIn(Strict):
    """All that the model may see."""

    question: Text
    user: Text | None = None
    context: Many[TurnIn] = Field(default=[], max_length=1_000)
    """The turns before the question, oldest first."""
    choices: Many[ChoiceIn] = Field(default=[], max_length=1_000)
    """What the user preferred before, oldest first."""
    posts: Many[PostIn | Text] = Field(default=[], max_length=10_000)
    """The user's past posts, oldest first, as strings or as objects with a `text`."""
    plan: Many[Text] = Field(default=[], max_length=1_000)
    """What this user probably wants, one aspect per entry."""

    def query(self) -> Query:
        posts = [PostIn(text=post) if isinstance(post, str) else post for post in self.posts]
        numbered = tuple(Post(str(n) if p.id is None else p.id, p.category, p.text) for n, p in enumerate(posts, 1))
        return Query(
            question=self.question,
            user=self.user,
            context=tuple(Turn(turn.role, turn.text) for turn in self.context),
            posts=numbered,
            choices=tuple(Choice(c.question, c.chosen, c.rejected) for c in self.choices),
            plan=tuple(self.plan),
        )


class ScoreRequest(Strict):
    query: QueryIn
    answers: Answers
    partial: bool = False
    """Return the scores there are, with a reason where one is missing; otherwise one failure fails the request."""

    @property
    def count(self) -> int:
        return len(self.answers)

    def asks(self) -> list[Ask]:
        query = self.query.query()
        return [Ask(query, answer) for answer in self.answers]


class RewardRequest(BaseModel):
    """OpenRLHF's: whole texts, the prompts they begin with, and the dataset's label column."""

    query: Answers
    prompts: Many[Text]
    labels: Many[str | dict[str, Any]]
    """A query of `/v1/score`, as JSON text or an object."""

    @property
    def count(self) -> int:
        return len(self.query)

    def asks(self) -> list[Ask]:
        if not len(self.query) == len(self.prompts) == len(self.labels):
            raise Refused(422, "query, prompts and labels must have the same length")
        asks = []
        for n, (text, prompt, label) in enumerate(zip(self.query, self.prompts, self.labels, strict=True)):
            if not text.startswith(prompt):
                raise Refused(422, f"query.{n} does not begin with prompts.{n}, so the answer cannot be separated")
            answer = text.removeprefix(prompt).rstrip()
            while marker := next((end for end in END_MARKERS if answer.endswith(end)), None):
                answer = answer.removesuffix(marker).rstrip()
            try:  # an invalid label is an error: without the user it would be a different question
                query = QueryIn.model_validate_json(label) if isinstance(label, str) else QueryIn.model_validate(label)
            except ValidationError as error:
                raise Refused(422, f"labels.{n} is not a query: {first_problem(error.errors())}") from None
            asks.append(Ask(query.query(), answer))
        return asks


class MessageIn(BaseModel):
    role: Role
    content: Text


class ClassifyRequest(BaseModel):
    """vLLM's `/classify`: chats rendered by a chat template, or one chat as messages. The last turn is the answer.
    vLLM's other fields are ignored."""

    input: Many[Text] = Field(default=[], max_length=MOST_ANSWERS)
    messages: Many[MessageIn] = Field(default=[], max_length=1_000)
    query: QueryIn | None = None
    """An extension: what the model may see instead of the turns before the answer, as in `/v1/score`."""
    use_activation: bool = False
    """Whether scores go through a sigmoid."""

    @field_validator("input", mode="before")
    @classmethod
    def several_texts(cls, value: Any) -> Any:
        if isinstance(value, list) and value and not isinstance(value[0], str):
            raise ValueError("token ids depend on the tokenizer; send texts or messages")
        return [value] if isinstance(value, str) else value

    @property
    def count(self) -> int:
        return len(self.input) or 1

    def asks(self) -> list[Ask]:
        if bool(self.input) == bool(self.messages):
            raise Refused(422, "send either input or messages")
        if self.messages:
            return [self._ask("messages", [Turn(message.role, message.content) for message in self.messages])]
        return [self._ask(f"input.{n}", _turns(n, text)) for n, text in enumerate(self.input)]

    def _ask(self, place: str, turns: Sequence[Turn]) -> Ask:
        *before, answer = turns
        if answer.role != "assistant" or not before or before[-1].role != "user":
            raise Refused(422, f"{place} must end with a user's turn and the assistant's answer to it")
        chat = Query(question=before[-1].text, context=tuple(before[:-1]))
        return Ask(self.query.query() if self.query else chat, answer.text)


def _turns(n: int, text: str) -> list[Turn]:
    """The turns of a chat that a known template rendered."""
    roles: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "model": "assistant"}
    for start, middle, end in TURNS:
        before, *pieces = text.split(start)
        parts = [(role, *rest.partition(end)) for role, _, rest in (piece.partition(middle) for piece in pieces)]
        whole = all(role in roles and ended and BETWEEN_TURNS.fullmatch(after) for role, _, ended, after in parts)
        if parts and whole and BETWEEN_TURNS.fullmatch(before):
            return [Turn(roles[role], EMPTY_THINKING.sub("", content, count=1).strip()) for role, content, *_ in parts]
    raise Refused(422, f"input.{n} is not a chat as the templates of Qwen, Llama 3 or Gemma write it; send messages")


Body = TypeVar("Body", ScoreRequest, RewardRequest, ClassifyRequest)


def first_problem(errors: Sequence[Any]) -> str:
    """What is wrong with a body, without repeating its content."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        return f"not JSON: {first['ctx']['error']} at {place}".removesuffix(" at ")
    return f"{place or 'body'}: {first['msg']}"


def read_body(kind: type[Body], content: bytes, *, max_answers: int, max_chars: int) -> tuple[Body, list[Ask]]:
    """A request and its asks; too many answers are refused before anything is built from them."""
    body = kind.model_validate_json(content)
    if body.count > max_answers:
        raise Refused(413, f"{body.count} answers in one request; at most {max_answers}")
    asks = body.asks()
    query_chars = max(query_length(query) for query in {ask.query for ask in asks})
    answer_chars = max(len(ask.answer) for ask in asks)
    for what, length in (("a query", query_chars), ("an answer", answer_chars)):
        if length > max_chars:
            raise Refused(413, f"{what} of {length} characters; at most {max_chars}")
    return body, asks


def all_scores(results: Sequence[float | Failure]) -> list[float]:
    """The scores, if none is missing. 422: the model has no score for this text. 502: the model raised."""
    failures = [result for result in results if isinstance(result, Failure)]
    if failures:
        status = 502 if any(failure.reason == MODEL_ERROR for failure in failures) else 422
        reason = f"no score for {len(failures)} of {len(results)} answers: {failures[0]}"
        raise Refused(status, reason, [str(r) if isinstance(r, Failure) else None for r in results])
    return [float(result) for result in results if not isinstance(result, Failure)]


def cuts(results: Sequence[float | Failure]) -> list[int]:
    return [result.cut if isinstance(result, Reward) else 0 for result in results]


class ScoreReply(BaseModel):
    scores: list[float | None]
    failures: list[str | None]
    """Why there is no score; null where there is one."""
    cut: list[int]
    """How many posts, choices and turns were left out because they did not fit the model's context."""
    model: str
    fingerprint: str


def score_reply(results: Sequence[float | Failure], *, partial: bool, model: str, fingerprint: str) -> ScoreReply:
    if not partial:
        all_scores(results)
    return ScoreReply(
        scores=[None if isinstance(result, Failure) else float(result) for result in results],
        failures=[str(result) if isinstance(result, Failure) else None for result in results],
        cut=cuts(results),
        model=model,
        fingerprint=fingerprint,
    )


class RewardReply(BaseModel):
    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


def reward_reply(results: Sequence[float | Failure]) -> RewardReply:
    scores = all_scores(results)
    return RewardReply(rewards=scores, scores=scores, extra_logs={"cut": [float(cut) for cut in cuts(results)]})


class ClassScore(BaseModel):
    index: int
    label: Literal["LABEL_0"] = "LABEL_0"
    probs: list[float]
    """The score: one label has one logit."""
    num_classes: Literal[1] = 1


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class ClassifyReply(BaseModel):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ClassScore]
    usage: Usage


def classify_reply(results: Sequence[float | Failure], *, use_activation: bool, model: str) -> ClassifyReply:
    scores = all_scores(results)
    if use_activation:
        scores = [1 / (1 + math.exp(-score)) if score > -700 else 0.0 for score in scores]
    tokens = sum(result.tokens for result in results if isinstance(result, Reward))
    return ClassifyReply(
        id=f"classify-{uuid4().hex[:16]}",
        created=int(time.time()),
        model=model,
        data=[ClassScore(index=n, probs=[score]) for n, score in enumerate(scores)],
        usage=Usage(prompt_tokens=tokens, total_tokens=tokens),
    )
