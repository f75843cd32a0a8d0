"""People who chose among the replies of models, in conversations of their own or on the same prompts.

PRISM, PersonalRewardBench, Community Alignment, CoVal and BESPOKE, read as published. A user's other choices are the
history of a row (`prb.data.votes`); there is no rubric, except what BESPOKE's users needed to know, so condition
`oracle` and the ceiling of an audit are not available.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from prb.data.schema import (
    about,
    conversation,
    converted,
    field,
    folder_of,
    identifier,
    items,
    literal,
    main_file,
    number,
    posts,
    spec_name,
    split_of,
    text,
    turns,
)
from prb.data.source import DATASETS, READERS, BadRow, RawRow, Row, Source, file_source, open_rows
from prb.data.votes import Size, Vote, VoteSource, Voting, ranks_by
from prb.errors import BadInput

# PRISM (Kirk et al., arXiv 2404.16019): people from 75 countries rating the replies of models in live conversations.
# `conversations.jsonl` holds one conversation per row, `survey.jsonl` one user. Every turn is a pair: the reply that
# the user continued with against those they scored lower, after the turns before. A user's posts are what they wrote:
# how they describe themselves and what they expect of an assistant, and their messages in their *other* conversations.

SURVEY_TEXTS = ("self_description", "system_string")
SURVEY_GROUPS = ("age", "gender", "education", "employment_status", "english_proficiency")
NO_REPLY = frozenset({"", "EMPTY STRING", "ERROR"})
"""Placeholders for a missing reply."""


@DATASETS.register("prism")
def prism(path: str, history: Size = 16) -> Source:
    """Users' own ratings of replies, turn by turn: path=FOLDER with conversations.jsonl and survey.jsonl, or hub:…."""
    conversations = main_file(path, "prism", "conversations.jsonl")
    name, convert = spec_name(prism, path, history=history), Prism(conversations).votes
    return VoteSource(name, file_source(conversations), convert, Voting(history=history))


@dataclass(frozen=True)
class Prism:
    path: Path

    @cached_property
    def _surveys(self) -> dict[str, Row]:
        survey = self.path.with_name("survey.jsonl")
        rows = file_source(survey).rows() if survey.is_file() else ()
        return {str(r.data["user_id"]): r.data for r in rows if isinstance(r.data, dict) and "user_id" in r.data}

    @cached_property
    def _posts(self) -> dict[str, list[tuple[str, dict[str, str]]]]:
        """By user: messages with the conversation they are from."""

        def messages(row: Row, at: RawRow) -> Iterator[tuple[str, str, dict[str, str]]]:  # noqa: ARG001
            origin, user = identifier(row, "conversation_id"), identifier(row, "user_id")
            history = turns(row.get("conversation_history"), "conversation_history")
            pairs = zip(history, row["conversation_history"], strict=True)
            texts = [turn["text"] for turn, message in pairs if message.get("role") == "user"]
            yield from ((user, origin, post) for post in posts(texts, origin, _prism_kind(row)))

        by_user: dict[str, list[tuple[str, dict[str, str]]]] = {}
        for made in converted(file_source(self.path), messages):
            if not isinstance(made, RawRow):
                by_user.setdefault(made[0], []).append(made[1:])
        return by_user

    def votes(self, row: Row, at: RawRow) -> Iterator[Vote]:
        origin, user = identifier(row, "conversation_id"), identifier(row, "user_id")
        survey = self._surveys.get(user, {})
        known = [key for key in SURVEY_TEXTS if survey.get(key)]
        profile = [{"id": f"{user}-{key}", "category": "survey", "text": str(survey[key])} for key in known]
        profile += [post for place, post in self._posts.get(user, []) if place != origin]
        for turn, context, question, replies in _prism_turns(row):
            yield Vote(
                at=at,
                id=f"{origin}-t{turn}",
                user=user,
                question=question,
                answers=[reply["content"] for reply in replies],
                ranks=[int(not reply.get("if_chosen")) for reply in replies],
                context=context,
                profile=profile,
                category=_prism_kind(row),
                groups={key: survey[key] for key in SURVEY_GROUPS if isinstance(survey.get(key), str)},
                unit=origin,
            )


def _prism_kind(row: Row) -> str:
    return str(row.get("conversation_type") or "conversation")


def _prism_turns(row: Row) -> Iterator[tuple[int, list[dict[str, str]], str, list[Row]]]:
    """Of each turn with a choice: its number, the turns before, the question, the chosen replies and the lower ones."""
    turns(items(row, "conversation_history"), "conversation_history")
    by_turn: dict[int, list[Row]] = {}
    for n, message in enumerate(row["conversation_history"]):
        turn = message.get("turn", 0)
        if not isinstance(turn, int):
            raise BadRow(f"`conversation_history.{n}.turn` must be an integer")
        by_turn.setdefault(turn, []).append(message)

    def score(reply: Row) -> float:
        given = reply.get("score")
        return float(given) if isinstance(given, (int, float)) else 0.0

    context: list[dict[str, str]] = []
    for turn, messages in sorted(by_turn.items()):
        question = next((m["content"] for m in messages if m.get("role") == "user"), "")
        replies = [m for m in messages if m.get("role") != "user" and m["content"].strip() not in NO_REPLY]
        chosen = [m for m in replies if m.get("if_chosen")]
        if not chosen or not question.strip():
            return  # nothing to continue from
        lower = [m for m in replies if not m.get("if_chosen") and score(m) < min(map(score, chosen))]
        yield turn, list(context), question, [*chosen, *lower]
        context += [{"role": "user", "text": question}, {"role": "assistant", "text": chosen[0]["content"]}]


# PersonalRewardBench (SynthesizeMe, arXiv 2506.05598): PRISM and Chatbot Arena users with several choices each.


@DATASETS.register("personalrewardbench")
def personalrewardbench(path: str, history: Size = 64) -> Source:
    """One reply against another in a user's own conversation; past choices are the user's train and validation rows."""
    source = open_rows(path)
    name = spec_name(personalrewardbench, source.name, history=history)
    return VoteSource(name, source, _personalrewardbench_vote, Voting(history=history))


def _personalrewardbench_vote(row: Row, at: RawRow) -> Iterator[Vote]:
    asked = conversation(field(row, "context"), "context")
    replies = [turns([field(row, name)], name)[0]["text"] for name in ("chosen", "rejected")]
    for name, reply in zip(("chosen", "rejected"), replies, strict=True):
        if not reply.strip():
            raise BadRow(f"`{name}` is empty")
    origin, user = identifier(row, "conversation_id"), identifier(row, "user_id")
    split = split_of({"split": field(row, "split")})["split"]
    if split not in ("train", "validation", "test"):
        raise BadRow(f"`split` is {split!r}; must be train, val or test")
    yield Vote(
        at=at,
        id=f"{origin}-{split}-{at.line}",
        user=user,
        **asked,
        answers=replies,
        ranks=(0, 1),
        category=str(row.get("type") or "conversation"),
        split=split,
        unit=origin,
    )


# Community Alignment (Meta, 2025): people in five countries choosing one of four replies, turn by turn.

DEMOGRAPHICS = ("age", "gender", "education_level", "political", "ethnicity", "country")


@DATASETS.register("community-alignment")
def community_alignment(path: str, voting: Voting) -> Source:
    """The preferred one of four replies, turn by turn; with mirror=true, annotators who chose different replies."""
    source = open_rows(path)
    return VoteSource(spec_name(community_alignment, source.name, voting), source, _community_votes, voting)


def _community_votes(row: Row, at: RawRow) -> Iterator[Vote]:
    def clean(value: Any) -> str:
        if value is not None and not isinstance(value, str):
            raise BadRow("prompts and responses must be text")
        return (value or "").strip().removesuffix("<|end_of_text|>").strip()

    if row.get("split") == "filtered":  # in version 1.0 a part of `full`
        return
    origin, user = identifier(row, "conversation_id"), identifier(row, "annotator_id")
    facts = {fact: str(row[f"annotator_{fact}"]) for fact in DEMOGRAPHICS if row.get(f"annotator_{fact}")}
    context: list[dict[str, str]] = []
    for n, turn in enumerate(("first", "second", "third", "fourth")):
        question = clean(row.get(f"{turn}_turn_prompt"))
        replies = {f"response_{letter}": clean(row.get(f"{turn}_turn_response_{letter}")) for letter in "abcd"}
        preferred = row.get(f"{turn}_turn_preferred_response")
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


# CoVal and its predecessor Collective Alignment 1 (OpenAI, 2025): people ranking four replies to contested prompts.
# `comparisons.jsonl` holds one prompt per row with the assessments of all annotators, `annotators.jsonl` who they are.
# Each annotator ranked twice: what they prefer themselves (`personal`) and what is best for the world (`world`).


@DATASETS.register("coval")
def coval(path: str, *, block: Literal["personal", "world"] = "personal", voting: Voting) -> Source:
    """An annotator's best reply against the others of their ranking; with mirror=true, annotators who disagree."""
    comparisons = main_file(path, "coval", "comparisons.jsonl")
    name = spec_name(coval, path, voting, block=block)
    return VoteSource(name, file_source(comparisons), CoVal(comparisons, block).votes, voting)


@dataclass(frozen=True)
class CoVal:
    path: Path
    block: str

    @cached_property
    def _demographics(self) -> dict[str, dict[str, str]]:
        annotators = self.path.with_name("annotators.jsonl")
        facts_of = {}
        for row in file_source(annotators).rows() if annotators.is_file() else ():
            facts = row.data.get("demographics") if isinstance(row.data, dict) else None
            if isinstance(facts, dict):
                facts_of[str(row.data.get("annotator_id"))] = {key: str(value) for key, value in facts.items() if value}
        return facts_of

    def votes(self, row: Row, at: RawRow) -> Iterator[Vote]:
        asked = conversation(field(field(row, "prompt"), "messages"), "prompt.messages")
        replies = {
            identifier(reply, "response_index"): turns(field(reply, "messages"), "responses.messages")[-1]["text"]
            for reply in items(row, "responses")
        }
        for n, assessment in enumerate(items(field(row, "metadata"), "assessments")):
            user = identifier(assessment, "annotator_id")
            ranks = _coval_ranks(assessment, self.block, replies.keys())
            if len(ranks) < 2:
                continue
            facts = self._demographics.get(user, {})
            yield Vote(
                at=at,
                id=f"{identifier(row, 'prompt_id')}-{n}",
                user=user,
                **asked,
                answers=[replies[label] for label in ranks],
                ranks=list(ranks.values()),
                profile=about(user, facts),
                category=self.block,
                groups=facts,
            )


def _coval_ranks(assessment: Row, block: str, labels: Collection[str]) -> dict[str, int]:
    """Label to rank in `B>A=C>D`; nothing where the annotator gave no ranking of this kind."""
    blocks = assessment.get("ranking_blocks")
    given = blocks.get(block) if isinstance(blocks, dict) else None
    ranking = given[0].get("ranking") if isinstance(given, list) and given and isinstance(given[0], dict) else None
    if not ranking:
        return {}
    ranks = {x.strip(): rank for rank, level in enumerate(str(ranking).split(">")) for x in level.split("=")}
    if unknown := [label for label in ranks if label not in labels]:
        raise BadRow(f"`ranking` {ranking!r} names {unknown[0]!r}, which is no response")
    return dict(sorted(ranks.items()))


# BESPOKE (arXiv 2509.21106): thirty people, their chat and search histories, and their scores of answers.
# Parquet tables in one folder: `meta_test_set` holds, per query, several answers that the user scored from 1 to 5 for
# need alignment, content depth, tone and explanation style; `chat_history` and `search_history` are the posts. The
# answer with the highest sum is preferred to those below. What the user needed to know is the hidden part.

SCORES = ("need_alignment", "content_depth", "tone", "explanation_style")


@DATASETS.register("bespoke")
def bespoke(path: str, history: Size = 16) -> Source:
    """The answer a user scored highest against those they scored lower, with their chats and searches as posts."""
    tables = Bespoke(folder_of(path, "bespoke"))
    queries = tables.find("meta_test")
    if queries is None:
        raise BadInput(f"dataset 'bespoke': {path} holds no meta_test_set table")
    name = spec_name(bespoke, path, history=history)
    return VoteSource(name, file_source(queries), tables.votes, Voting(history=history))


@dataclass(frozen=True)
class Bespoke:
    folder: Path

    def find(self, name: str) -> Path | None:
        return next((p for e in READERS for p in sorted(self.folder.rglob(f"{name}*{e}")) if p.is_file()), None)

    @cached_property
    def _posts(self) -> dict[str, list[dict[str, str]]]:
        texts: dict[str, list[tuple[str, str]]] = {}
        for kind in ("chat", "search"):
            path = self.find(f"{kind}_history")
            for row in file_source(path).rows() if path else ():
                if isinstance(row.data, dict) and row.data.get("user") and row.data.get("history"):
                    texts.setdefault(str(row.data["user"]), []).append((kind, str(row.data["history"])))
        return {
            user: [post for n, (kind, t) in enumerate(history) for post in posts([t], f"{user}-{kind}{n}", kind)]
            for user, history in texts.items()
        }

    def votes(self, row: Row, at: RawRow) -> Iterator[Vote]:
        user, query = identifier(row, "user"), identifier(row, "query-id")
        value = literal(field(row, "meta_test_set_value"))
        if not isinstance(value, dict):
            raise BadRow("`meta_test_set_value` must be an object in JSON")
        responses = items(value, "response_list")
        answers = [text(response, "contents") for response in responses]
        totals = [sum(number(field(response, name), "score") for name in SCORES) for response in responses]
        need = str(value.get("gold_information_need") or "")
        yield Vote(
            at=at,
            id=f"{user}-{query}-{at.line}",
            user=user,
            question=text(value, "query"),
            answers=answers,
            ranks=ranks_by(totals),
            profile=self._posts.get(user, []),
            category="bespoke",
            rubric=[{"aspect": need}] if need else [],
            narrative=need,
            unit=query,
        )
