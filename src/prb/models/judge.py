"""An LLM as reward model: asked which of two answers this user would prefer, or for a rating of one.

Only the reply is parsed, so nothing in an answer can be taken for a verdict; and every quoted text stands between lines
with a code that it cannot contain. Styles are data, in `judge_styles`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, TypeVar, cast

from prb.config import Count, NonNegative, Size
from prb.errors import BadSpec, unknown
from prb.hashing import settings_digest
from prb.llm import LLM, Chat, Completion, Sampling, make_llm
from prb.llm.asking import Reader, Reply, T, ask
from prb.models import MODELS
from prb.models.judge_styles import (
    STYLES,
    Parsed,
    Shape,
    Style,
    read_choice,
    read_items,
    read_rating,
    weigh_choice,
    weigh_rating,
    winner,
)
from prb.prompts import flat, load, quote, quoted_history, quoted_question, slots, with_material
from prb.types import (
    Ask,
    Comparer,
    Duel,
    Failure,
    Query,
    Recorded,
    Reward,
    RewardModel,
    Scorer,
    Turn,
    Verdict,
    Winner,
    is_remote,
)

GREEDY = Sampling(max_tokens=1024)
LIKELIEST = 20
"""How many log-probabilities of the first token to ask for: as many as public endpoints return."""
AFTER_THINKING = 8
"""Tokens for the closing tag, blank lines and the label."""

ANSWER_NAMES = {"answer": "answer", "answer_a": "answer A", "answer_b": "answer B"}
"""How the answer in each slot is introduced."""
BETWEEN_VOTES = "\n\n--- another vote ---\n\n"
NO_CHECKLIST = Failure("no checklist", "this style needs a plan: --condition plan --planner checklist?llm=…, or oracle")


class Judge:
    """What judges share: the prompt, the LLM and its sampling."""

    def __init__(
        self,
        llm: LLM,
        style: Style,
        *,
        template: str | None = None,
        sampling: Sampling = GREEDY,
        logprobs: bool = False,
        thinking: int = 0,
        votes: int = 1,
    ) -> None:
        self._llm, self._style, self._weighed, self._votes = llm, style, logprobs, votes
        self._template = load(style.prompt) if template is None else template
        if logprobs:
            length = thinking + AFTER_THINKING if thinking else 1
            sampling = replace(sampling, max_tokens=length, top_logprobs=LIKELIEST)
        self._sampling = sampling
        self.remote = llm.remote
        newer = [setting for setting in (votes, style.keys) if setting not in (1, None)]  # old judges keep their names
        settings = (style, self._template, load("material"), self._sampling, *newer)
        self.fingerprint = f"{style.prompt}-{settings_digest(settings)}-{llm.fingerprint}"

    def _ask(
        self, prompts: Sequence[str | Chat], read: Reader[T] | Sequence[Reader[T]]
    ) -> list[list[Reply[T] | Failure]]:
        """For each prompt as many replies as there are votes, with every second seed: reminders take the others."""
        rounds = [
            ask(
                self._llm,
                prompts,
                read,
                sampling=replace(self._sampling, seed=self._sampling.seed + 2 * n),
                reminder=self._style.reminder,
                missing="no verdict",
            )
            for n in range(self._votes)
        ]
        return [list(replies) for replies in zip(*rounds, strict=True)]


class PairwiseJudge(Judge):
    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        shape = self._style.shape
        prompts = [judge_chat(shape, self._template, d.query, answer_a=d.first, answer_b=d.second) for d in duels]
        return [vote([_verdict(reply) for reply in replies]) for replies in self._ask(prompts, self._read)]

    def _read(self, reply: Completion) -> Parsed[Winner] | Failure | None:
        return weigh_choice(reply, self._style) if self._weighed else read_choice(reply, self._style)


class RatingJudge(Judge):
    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        prompts = [judge_chat(self._style.shape, self._template, a.query, answer=a.answer) for a in asks]
        return [mean_reward([_reward(reply) for reply in replies]) for replies in self._ask(prompts, self._read)]

    def _read(self, reply: Completion) -> Parsed[float] | Failure | None:
        return weigh_rating(reply, self._style) if self._weighed else read_rating(reply, self._style)


class ChecklistJudge(Judge):
    """Checks every item of a plan, as the planner `checklist` writes it, without knowing whose it is."""

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        planned = [a for a in asks if a.query.plan]
        prompts = [judge_prompt(self._template, a.query, numbered=True, answer=a.answer) for a in planned]
        readers = [partial(read_items, style=self._style, count=len(a.query.plan)) for a in planned]
        replies = self._ask(prompts, readers)
        rewards = iter([mean_reward([_reward(reply) for reply in of_one]) for of_one in replies])
        return [next(rewards) if a.query.plan else NO_CHECKLIST for a in asks]


def _verdict(reply: Reply[Parsed[Winner]] | Failure) -> Verdict | Failure:
    if isinstance(reply, Failure):
        return reply
    return Verdict(choice=reply.value.value, tokens=reply.tokens, cost=reply.cost, text=_text(reply))


def _reward(reply: Reply[Parsed[float]] | Failure) -> Reward | Failure:
    if isinstance(reply, Failure):
        return reply
    return Reward(reply.value.value, tokens=reply.tokens, cost=reply.cost, text=_text(reply))


def _text(reply: Reply[Parsed[Winner]] | Reply[Parsed[float]]) -> str:
    """The reply, and the log-probabilities it was read from if there are any."""
    return "\n".join(filter(None, (reply.text, reply.value.weights)))


def judge_chat(shape: Shape, template: str, query: Query, **answers: str) -> Chat:
    """What a judge reads. The template is split before it is filled, so no text can begin another message."""
    if shape == "json":
        responses = {f"model-{n}": answer for n, answer in enumerate(answers.values(), 1)}
        body = {"principle": judge_prompt(template, query), "prompt": flat(query.blind), "responses": responses}
        return (Turn("user", json.dumps(body, ensure_ascii=False, indent=2)),)
    if shape == "message":
        return (Turn("user", judge_prompt(template, query, numbered=False, **answers)),)
    system, user = re.split(r"^=+$", template, maxsplit=1, flags=re.MULTILINE)
    used = {name: text for name, text in answers.items() if name in slots(user)}
    return Turn("system", judge_prompt(system, query)), Turn("user", judge_prompt(user, query, numbered=False, **used))


def judge_prompt(template: str, query: Query, *, numbered: bool = False, **answers: str) -> str:
    """The prompt, filled in one pass; a missing history or a missing plan leaves no trace.

    Slot `posts` holds the whole history, past choices too, and `question` the turns before it: a custom prompt shows
    everything that a query has.
    """
    material = {"question": quoted_question(query)}
    material |= {slot: quote(ANSWER_NAMES[slot], text) for slot, text in answers.items()}
    if query.posts or query.choices:
        material["posts"] = quoted_history(query.posts, query.choices)
    if query.plan:
        items = [f"{n}. {item}" if numbered else f"- {item}" for n, item in enumerate(query.plan, 1)]
        material["plan"] = quote("checklist" if numbered else "what this person probably wants", "\n".join(items))
    for absent in {"posts", "plan"} - material.keys():
        template = re.sub(rf"\{{{absent}\}}\s*", "", template)
    return with_material(template, **material)


@MODELS.register("judge")
def judge(
    llm: str,
    style: str = "pairwise",
    logprobs: bool = False,
    prompt: Path | None = None,
    max_tokens: Count = 1024,
    thinking: Size = 0,
    votes: Count = 1,
    temperature: NonNegative = 0.0,
    seed: int = 0,
) -> RewardModel:
    """An LLM asked which answer this user would prefer, or (style=rating) to rate one.

    A verdict is read after the thinking of models that think; `thinking` is how many tokens they may think before it,
    on top of `max_tokens` or, with logprobs=true, of the one token that is weighed. With `votes`, every question is
    asked so many times at a temperature above 0: the majority decides, ratings are averaged, and all replies are paid.
    """
    if style not in STYLES:
        raise unknown("style of judge", style, STYLES)
    chosen = STYLES[style]
    if logprobs and not chosen.direct:
        direct = " or ".join(f"style={name}" for name, other in STYLES.items() if other.direct)
        raise BadSpec(f"logprobs=true reads the first token of the reply, so it needs {direct}, not style={style}")
    if votes > 1 and (logprobs or not temperature):
        raise BadSpec(f"votes={votes} samples replies, so it needs a temperature above 0, and no logprobs")
    template = None if prompt is None else read_template(prompt, chosen.slots)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens + thinking, seed=seed)
    kinds: dict[str, type[PairwiseJudge | RatingJudge | ChecklistJudge]] = {
        "pairwise": PairwiseJudge,
        "rating": RatingJudge,
        "checklist": ChecklistJudge,
    }
    return kinds[chosen.kind](
        make_llm(llm), chosen, template=template, sampling=sampling, logprobs=logprobs, thinking=thinking, votes=votes
    )


def read_template(path: Path, expected: Set[str], renamed: Mapping[str, str] = MappingProxyType({})) -> str:
    """A custom prompt: it must have these slots, and no others; a slot may also have one of the `renamed` names."""
    try:
        template = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"prompt {path} cannot be read: {error}") from None
    for alias, name in renamed.items():
        template = template.replace(f"{{{alias}}}", f"{{{name}}}")
    unknown_slots, missing_slots = slots(template) - expected, expected - slots(template)
    if unknown_slots:
        raise BadSpec(f"prompt {path}: unknown slots {_braced(unknown_slots)}; known are {_braced(expected)}")
    if missing_slots:
        raise BadSpec(f"prompt {path} lacks {_braced(missing_slots)}, so the judge would not see it")
    return template


def _braced(names: Set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))


Opinion = TypeVar("Opinion", Verdict, Reward)


def vote(opinions: Sequence[Verdict | Failure]) -> Verdict | Failure:
    """The verdict of the majority; as many for the one as for the other answer is a tie."""
    verdicts = _quorum(opinions)
    if not isinstance(verdicts, list):
        return verdicts
    choices = [verdict.choice for verdict in verdicts]
    return Verdict(choice=winner(choices.count("first"), choices.count("second")), **_spent(opinions, verdicts))


def mean_reward(opinions: Sequence[Reward | Failure]) -> Reward | Failure:
    rewards = _quorum(opinions)
    return Reward(fmean(rewards), **_spent(opinions, rewards)) if isinstance(rewards, list) else rewards


def _quorum(opinions: Sequence[Opinion | Failure]) -> list[Opinion] | Opinion | Failure:
    """The opinions if at least half of the votes gave one, else the first failure with the cost of all. A single vote
    is what it is."""
    if len(opinions) == 1:
        return opinions[0]
    given = [opinion for opinion in opinions if not isinstance(opinion, Failure)]
    failures = [opinion for opinion in opinions if isinstance(opinion, Failure)]
    if len(given) >= len(failures):
        return given
    return replace(
        failures[0],
        detail=f"{len(given)} of {len(opinions)} votes; {failures[0].detail}",
        prompt_tokens=sum(f.prompt_tokens for f in failures) + sum(opinion.tokens for opinion in given),
        completion_tokens=sum(f.completion_tokens for f in failures),
        cost=sum(opinion.cost for opinion in opinions),
    )


def _spent(opinions: Sequence[Verdict | Reward | Failure], given: Sequence[Verdict | Reward]) -> dict[str, Any]:
    """What a vote of several cost, failures included, and what was written."""
    wasted = sum(o.prompt_tokens + o.completion_tokens for o in opinions if isinstance(o, Failure))
    return {
        "tokens": wasted + sum(opinion.tokens for opinion in given),
        "cut": max(opinion.cut for opinion in given),
        "cost": sum(opinion.cost for opinion in opinions),
        "text": BETWEEN_VOTES.join(opinion.text for opinion in given),
    }


class Panel:
    """Every member has one vote: judges by their verdict, scorers by which answer they score higher."""

    def __init__(self, members: Sequence[Scorer | Comparer]) -> None:
        self._members = members
        self.fingerprint = "panel-" + "+".join(member.fingerprint for member in members)
        self.remote = any(map(is_remote, members))

    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        ballots = [_verdicts(member, duels) for member in self._members]
        return [vote(opinions) for opinions in zip(*ballots, strict=True)]


@MODELS.register("panel")
def panel(models: str) -> Comparer:
    """Majority vote of several models: models=SPEC|SPEC|… (their ? and & written %3F and %26)."""
    made = [MODELS.make(spec) for spec in models.split("|")]
    members = [member for member in made if not isinstance(member, Recorded)]
    if len(members) < 2 or len(members) < len(made):
        raise BadSpec("a panel needs two or more models that can judge new answers: models=SPEC|SPEC")
    return Panel(members)


def _verdicts(member: Scorer | Comparer, duels: Sequence[Duel]) -> list[Verdict | Failure]:
    if not isinstance(member, Scorer):
        return list(member.prefer(duels))
    scores = member.score([Ask(duel.query, answer) for duel in duels for answer in (duel.first, duel.second)])
    verdicts: list[Verdict | Failure] = []
    for first, second in zip(scores[::2], scores[1::2], strict=True):
        if isinstance(first, Failure) or isinstance(second, Failure):
            verdicts.append(first if isinstance(first, Failure) else cast(Failure, second))
            continue
        rewards = [score for score in (first, second) if isinstance(score, Reward)]
        verdicts.append(
            Verdict(
                choice=winner(first, second),
                tokens=sum(reward.tokens for reward in rewards),
                cut=max((reward.cut for reward in rewards), default=0),
                cost=sum(reward.cost for reward in rewards),
                text=f"{float(first):.4g} : {float(second):.4g}",
            )
        )
    return verdicts
