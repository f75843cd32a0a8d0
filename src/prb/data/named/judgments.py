"""People who chose among the replies of models, in conversations of their own or on the same prompts.

PRISM, PersonalRewardBench, Community Alignment, CoVal, BESPOKE and PersonalLLM (simulated users), read as published. A
user's other choices are the history of a row (`prb.data.votes`); there is no rubric, except what BESPOKE's users needed
to know, so condition `oracle` and the ceiling of an audit are not available.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import AliasPath, Field

from prb.config import Count
from prb.data.schema import (
    AnyText,
    Foreign,
    Id,
    NotEmpty,
    Number,
    Parsed,
    Text,
    about,
    conversation,
    converted,
    folder_of,
    identifier,
    main_file,
    number,
    posts,
    table,
    text,
    turns,
)
from prb.data.source import DATASETS, READERS, BadRow, RawRow, Row, Source, file_source, open_rows
from prb.data.votes import Vote, VoteSource, Voting, ranks_by
from prb.errors import BadInput
from prb.hashing import draw

# PRISM (Kirk et al., arXiv 2404.16019): people from 75 countries rating the replies of models in live conversations.
# `conversations.jsonl` holds one conversation per row, `survey.jsonl` one user. Every turn is a pair: the reply that
# the user continued with against those they scored lower, after the turns before. A user's posts are what they wrote:
# how they describe themselves and what they expect of an assistant, and their messages in their *other* conversations.

SURVEY_TEXTS = ("self_description", "system_string")
SURVEY_GROUPS = ("age", "gender", "education", "employment_status", "english_proficiency")
NO_REPLY = frozenset({"", "EMPTY STRING", "ERROR"})
"""Placeholders for a missing reply."""


class PrismMessage(Foreign):
    role: Literal["user", "model"]
    content: str
    turn: int = 0
    score: float = 0.0
    if_chosen: bool = False


class PrismConversation(Foreign):
    conversation_id: Id
    user_id: Id
    conversation_type: AnyText = "conversation"
    conversation_history: NotEmpty[PrismMessage]


@DATASETS.register("prism")
def prism(path: str) -> Source:
    """Users' own ratings of replies, turn by turn: path=FOLDER with conversations.jsonl and survey.jsonl, or hub:…."""
    conversations = main_file(path, "prism", "conversations.jsonl")
    survey = conversations.with_name("survey.jsonl")

    surveys = cache(lambda: {str(row["user_id"]): row for row in table(survey, "user_id")} if survey.is_file() else {})

    @cache
    def messages() -> dict[str, list[tuple[str, dict[str, str]]]]:
        """By user: what they wrote, with the conversation it is from."""
        by_user: dict[str, list[tuple[str, dict[str, str]]]] = {}
        for talk in converted(file_source(conversations), lambda row, _: [PrismConversation.read(row)]):
            if isinstance(talk, PrismConversation):
                texts = [message.content for message in talk.conversation_history if message.role == "user"]
                made = posts(texts, talk.conversation_id, talk.conversation_type)
                by_user.setdefault(talk.user_id, []).extend((talk.conversation_id, post) for post in made)
        return by_user

    def votes(row: Row, at: RawRow) -> Iterator[Vote]:
        talk = PrismConversation.read(row)
        user, origin = talk.user_id, talk.conversation_id
        answers = surveys().get(user, {})
        known = [key for key in SURVEY_TEXTS if answers.get(key)]
        profile = [{"id": f"{user}-{key}", "category": "survey", "text": str(answers[key])} for key in known]
        profile += [post for place, post in messages().get(user, []) if place != origin]
        context: list[dict[str, str]] = []
        by_turn = attrgetter("turn")
        for turn, said in groupby(sorted(talk.conversation_history, key=by_turn), key=by_turn):
            of_turn = list(said)
            question = next((message.content for message in of_turn if message.role == "user"), "")
            replies = [m for m in of_turn if m.role == "model" and m.content.strip() not in NO_REPLY]
            chosen = [reply for reply in replies if reply.if_chosen]
            if not chosen or not question.strip():
                return  # nothing to continue from
            least = min(reply.score for reply in chosen)
            lower = [reply for reply in replies if not reply.if_chosen and reply.score < least]
            yield Vote(
                at=at,
                id=f"{origin}-t{turn}",
                user=user,
                question=question,
                answers=[reply.content for reply in (*chosen, *lower)],
                ranks=[0] * len(chosen) + [1] * len(lower),
                context=list(context),
                profile=profile,
                category=talk.conversation_type,
                groups={key: answers[key] for key in SURVEY_GROUPS if isinstance(answers.get(key), str)},
                unit=origin,
            )
            context += [{"role": "user", "text": question}, {"role": "assistant", "text": chosen[0].content}]

    return VoteSource(file_source(conversations), votes)


# PersonalRewardBench (SynthesizeMe, arXiv 2506.05598): PRISM and Chatbot Arena users with several choices each.


class ChosenReply(Foreign):
    conversation_id: Id
    user_id: Id
    context: Any
    chosen: Text = Field(validation_alias=AliasPath("chosen", "content"))
    rejected: Text = Field(validation_alias=AliasPath("rejected", "content"))
    split: Literal["train", "val", "validation", "test"]
    type: AnyText = "conversation"


@DATASETS.register("personalrewardbench")
def personalrewardbench(path: str) -> Source:
    """One reply against another in a user's own conversation; past choices are the user's train and validation rows."""
    source = open_rows(path)

    def votes(row: Row, at: RawRow) -> Iterator[Vote]:
        choice = ChosenReply.read(row)
        split = "validation" if choice.split == "val" else choice.split
        yield Vote(
            at=at,
            id=f"{choice.conversation_id}-{split}-{at.line}",
            user=choice.user_id,
            **conversation(choice.context, "context"),
            answers=(choice.chosen, choice.rejected),
            ranks=(0, 1),
            category=choice.type,
            split=split,
            unit=choice.conversation_id,
        )

    return VoteSource(source, votes, Voting(history=64))


# Community Alignment (Meta, 2025): people in five countries choosing one of four replies, turn by turn.

DEMOGRAPHICS = ("age", "gender", "education_level", "political", "ethnicity", "country")


@DATASETS.register("community-alignment")
def community_alignment(path: str, voting: Voting) -> Source:
    """The preferred one of four replies, turn by turn; with mirror=true, annotators who chose different replies."""
    source = open_rows(path)

    def clean(value: Any) -> str:
        if value is not None and not isinstance(value, str):
            raise BadRow("prompts and responses must be text")
        return (value or "").strip().removesuffix("<|end_of_text|>").strip()

    def votes(row: Row, at: RawRow) -> Iterator[Vote]:
        if row.get("split") == "filtered":  # in version 1.0 a part of `full`
            return
        origin, user = identifier(row, "conversation_id"), identifier(row, "annotator_id")
        facts = {fact: str(row[f"annotator_{fact}"]) for fact in DEMOGRAPHICS if row.get(f"annotator_{fact}")}
        context: list[dict[str, str]] = []
        for n, turn in enumerate(("first", "second", "third", "fourth")):
            question, preferred = clean(row.get(f"{turn}_turn_prompt")), row.get(f"{turn}_turn_preferred_response")
            replies = {f"response_{letter}": clean(row.get(f"{turn}_turn_response_{letter}")) for letter in "abcd"}
            if not question or not preferred:
                return  # the conversation ended
            if not replies.get(str(preferred)):
                raise BadRow(f"`{turn}_turn_preferred_response` is {preferred!r}, a reply that is missing")
            given = {name: reply for name, reply in replies.items() if reply}
            yield Vote(
                at=at,
                id=f"{origin}-t{n}",
                user=user,
                question=question,
                answers=list(given.values()),
                ranks=[int(name != preferred) for name in given],
                context=list(context),
                profile=about(user, facts),
                category=str(row.get("assigned_lang") or "conversation"),
                groups=facts,
                unit=origin,
            )
            context += [{"role": "user", "text": question}, {"role": "assistant", "text": replies[preferred]}]

    return VoteSource(source, votes, voting)


# CoVal and its predecessor Collective Alignment 1 (OpenAI, 2025): people ranking four replies to contested prompts.
# `comparisons.jsonl` holds one prompt per row with the assessments of all annotators, `annotators.jsonl` who they are.
# Each annotator ranked twice: what they prefer themselves (`personal`) and what is best for the world (`world`).


class CoValReply(Foreign):
    response_index: Id
    messages: Any


class CoValAssessment(Foreign):
    annotator_id: Id
    personal: str = Field("", validation_alias=AliasPath("ranking_blocks", "personal", 0, "ranking"))
    """`B>A=C>D`; empty where the annotator gave none."""
    world: str = Field("", validation_alias=AliasPath("ranking_blocks", "world", 0, "ranking"))


class Comparison(Foreign):
    prompt_id: Id
    messages: Any = Field(validation_alias=AliasPath("prompt", "messages"))
    responses: NotEmpty[CoValReply]
    assessments: NotEmpty[CoValAssessment] = Field(validation_alias=AliasPath("metadata", "assessments"))


@DATASETS.register("coval")
def coval(path: str, *, block: Literal["personal", "world"] = "personal", voting: Voting) -> Source:
    """An annotator's best reply against the others of their ranking; with mirror=true, annotators who disagree."""
    comparisons = main_file(path, "coval", "comparisons.jsonl")
    annotators = comparisons.with_name("annotators.jsonl")

    @cache
    def demographics() -> dict[str, dict[str, str]]:
        people = table(annotators, "annotator_id") if annotators.is_file() else ()
        facts_of = {str(row["annotator_id"]): row.get("demographics") for row in people}
        return {
            name: {key: str(value) for key, value in facts.items() if value}
            for name, facts in facts_of.items()
            if isinstance(facts, dict)
        }

    def votes(row: Row, at: RawRow) -> Iterator[Vote]:
        given = Comparison.read(row)
        asked = conversation(given.messages, "prompt.messages")
        replies = {r.response_index: turns(r.messages, "responses.messages")[-1]["text"] for r in given.responses}
        for n, assessment in enumerate(given.assessments):
            ranking = assessment.personal if block == "personal" else assessment.world
            levels = enumerate(ranking.split(">") if ranking else ())
            ranks = dict(sorted((label.strip(), rank) for rank, level in levels for label in level.split("=")))
            if unknown := [label for label in ranks if label not in replies]:
                raise BadRow(f"`ranking` {ranking!r} names {unknown[0]!r}, which is no response")
            if len(ranks) < 2:
                continue
            user = assessment.annotator_id
            facts = demographics().get(user, {})
            yield Vote(
                at=at,
                id=f"{given.prompt_id}-{n}",
                user=user,
                **asked,
                answers=[replies[label] for label in ranks],
                ranks=list(ranks.values()),
                profile=about(user, facts),
                category=block,
                groups=facts,
            )

    return VoteSource(file_source(comparisons), votes, voting)


# BESPOKE (arXiv 2509.21106): thirty people, their chat and search histories, and their scores of answers.
# Parquet tables in one folder: `meta_test_set` holds, per query, several answers that the user scored from 1 to 5 for
# need alignment, content depth, tone and explanation style; `chat_history` and `search_history` are the posts. The
# answer with the highest sum is preferred to those below. What the user needed to know is the hidden part.


class BespokeAnswer(Foreign):
    contents: Text
    need_alignment: Number = Field(validation_alias=AliasPath("need_alignment", "score"))
    content_depth: Number = Field(validation_alias=AliasPath("content_depth", "score"))
    tone: Number = Field(validation_alias=AliasPath("tone", "score"))
    explanation_style: Number = Field(validation_alias=AliasPath("explanation_style", "score"))


class BespokeTest(Foreign):
    query: Text
    gold_information_need: AnyText = ""
    response_list: NotEmpty[BespokeAnswer]


class BespokeRow(Foreign):
    user: Id
    query_id: Id = Field(alias="query-id")
    meta_test_set_value: Annotated[BespokeTest, Parsed]


@DATASETS.register("bespoke")
def bespoke(path: str) -> Source:
    """The answer a user scored highest against those they scored lower, with their chats and searches as posts."""
    folder = folder_of(path, "bespoke")

    def find(name: str) -> Path | None:
        return next((p for e in READERS for p in sorted(folder.rglob(f"{name}*{e}")) if p.is_file()), None)

    queries = find("meta_test")
    if queries is None:
        raise BadInput(f"dataset 'bespoke': {path} holds no meta_test_set table")

    @cache
    def posts_of() -> dict[str, list[dict[str, str]]]:
        by_user: dict[str, list[dict[str, str]]] = {}
        for kind in ("chat", "search"):
            file = find(f"{kind}_history")
            for row in table(file) if file else ():
                if row.get("user") and row.get("history"):
                    of_user = by_user.setdefault(str(row["user"]), [])
                    of_user += posts([str(row["history"])], f"{row['user']}-{kind}{len(of_user)}", kind)
        return by_user

    def votes(row: Row, at: RawRow) -> Iterator[Vote]:
        given = BespokeRow.read(row)
        test, user = given.meta_test_set_value, given.user
        answers = test.response_list
        yield Vote(
            at=at,
            id=f"{user}-{given.query_id}-{at.line}",
            user=user,
            question=test.query,
            answers=[answer.contents for answer in answers],
            ranks=ranks_by([a.need_alignment + a.content_depth + a.tone + a.explanation_style for a in answers]),
            profile=posts_of().get(user, []),
            category="bespoke",
            rubric=[{"aspect": test.gold_information_need}] if test.gold_information_need else [],
            narrative=test.gold_information_need,
            unit=given.query_id,
        )

    return VoteSource(file_source(queries), votes)


# PersonalLLM (arXiv 2409.20296): simulated users, each a mixture of ten reward models over eight answers per prompt.
# The table of answers and scores gives votes: every prompt goes to `raters` of the `users`, whose taste is drawn from a
# Dirichlet distribution (a small `alpha` makes users follow one reward model each); the answer with the highest
# weighted, standardized score is theirs.

SCALES = {
    "beaver_7b": (6.2335, 3.0126),
    "gemma_2b": (4.3304, 2.0386),
    "gemma_7b": (1.6260, 2.6097),
    "llama3_sfairx": (1.0638, 2.9530),
    "mistral_raft": (8.3092, 3.0728),
    "mistral_ray": (3.0136, 1.6903),
    "mistral_weqweasdas": (7.0711, 2.5786),
    "oasst_deberta_v3": (2.8977, 1.7208),
    "oasst_pythia_1b": (4.2939, 2.3018),
    "oasst_pythia_7b": (4.7064, 1.3659),
}
"""Mean and standard deviation of each reward model's scores, as published; the order is that of a user's weights."""


@DATASETS.register("personalllm")
def personalllm(
    path: str, *, users: Count = 1000, raters: Count = 1, alpha: Annotated[float, Field(gt=0)] = 0.01, voting: Voting
) -> Source:
    """The best of eight answers for a user who weighs ten reward models: simulated users, real reward models.

    raters: users per prompt, at most; with more than one, mirror=true finds couples.
    """
    source = open_rows(path)

    def votes(row: Row, at: RawRow) -> Iterator[Vote]:
        prompt, answers = text(row, "prompt"), {n: row.get(f"response_{n}") for n in range(1, 9)}
        given = {n: answer for n, answer in answers.items() if isinstance(answer, str) and answer.strip()}
        if len(given) < 2:
            raise BadRow("`response_1` … `response_8` must hold at least two answers")
        scores = [[number(row, f"response_{n}_{model}") for model in SCALES] for n in given]
        for user in dict.fromkeys(draw(voting.seed, "rater", prompt, n) % users for n in range(raters)):
            weights = taste(voting.seed, user, alpha)
            rewards = [
                sum(w * (s - mean) / sd for w, s, (mean, sd) in zip(weights, answer, SCALES.values(), strict=True))
                for answer in scores
            ]
            id_, ranks = f"u{user:04}", ranks_by(rewards)
            yield Vote(at, f"{at.line}-{id_}", id_, prompt, list(given.values()), ranks, category="personalllm")

    return VoteSource(source, votes, voting)


@lru_cache(maxsize=100_000)
def taste(seed: int, user: int, alpha: float) -> tuple[float, ...]:
    """Weights over the reward models, drawn from a symmetric Dirichlet distribution; in logs, since most are tiny."""
    dice = Random(draw(seed, "taste", user))  # noqa: S311 - a simulation, not a secret
    logs = [math.log(dice.gammavariate(alpha + 1, 1)) + math.log(1 - dice.random()) / alpha for _ in SCALES]
    weights = [math.exp(log - max(logs)) for log in logs]
    return tuple(weight / sum(weights) for weight in weights)
