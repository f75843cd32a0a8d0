"""An LLM as reward model: asked which of two answers this user would prefer, or for a rating of one.

Only the reply is parsed, so nothing in an answer can be taken for a verdict; and every quoted text stands between lines
with a code that it cannot contain. A style says how a judge is asked and how its reply ends: with JSON, or with a line
that one anchored expression matches. Any other reply has no verdict, and the judge is reminded once of the form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np

from prb.config import Count, NonNegative
from prb.errors import BadSpec, unknown
from prb.hashing import settings_digest
from prb.llm import LLM, Chat, Completion, Sampling, make_llm
from prb.llm.asking import Reader, ask, without_thinking
from prb.models import MODELS
from prb.prompts import load, quote, quoted_history, quoted_question, slots, with_material
from prb.registry import split_outside, without_parentheses
from prb.types import (
    Ask,
    Comparer,
    Duel,
    Failure,
    Query,
    Recorded,
    Reward,
    RewardModel,
    Role,
    Scorer,
    Turn,
    Verdict,
    Winner,
    is_remote,
)

GREEDY = Sampling(max_tokens=1024)
LIKELIEST = 20
"""How many log-probabilities of the first token to ask for: as many as public endpoints return."""
ANSWER_NAMES = {"answer": "answer", "answer_a": "answer A", "answer_b": "answer B"}
"""How the answer in each slot is introduced."""
BETWEEN_VOTES = "\n\n--- another vote ---\n\n"
NO_CHECKLIST = Failure("no checklist", "this style needs a plan: --condition plan --planner checklist?llm=…, or oracle")

AB: dict[str, Winner] = {"A": "first", "B": "second"}
TIES: dict[str, Winner] = {"TIE": "tie", "DRAW": "tie"}


@dataclass(frozen=True, kw_only=True)
class Style:
    """One way of asking; a pairwise style has labels or keys, a rating style has a scale."""

    prompt: str
    """Name of the prompt file."""
    verdict: str = ""
    """Expression of the line with the verdict; group 1 is a label or a number, group 2 the maximum it is out of."""
    reminder: str
    """Appended to the prompt if the first reply had no verdict."""
    labels: Mapping[str, Winner] = field(default_factory=dict)
    scale: tuple[int, int] = (0, 0)
    keys: tuple[str, str] | None = field(default=None, repr=False)
    """Under which keys of a JSON object the scores of both answers stand; the higher one wins."""
    items: bool = field(default=False, repr=False)
    """Whether every item of the plan is checked on its own."""
    direct: bool = False
    """Whether the reply begins with the label, so that its first token's log-probabilities can be used."""

    @property
    def kind(self) -> Literal["pairwise", "rating", "checklist"]:
        if self.items:
            return "checklist"
        return "pairwise" if self.labels or self.keys else "rating"

    @property
    def slots(self) -> frozenset[str]:
        """What a prompt of this style must contain."""
        if self.items:  # what is known of the user went into the list
            return frozenset({"plan", "question", "answer"})
        answers = ("answer_a", "answer_b") if self.kind == "pairwise" else ("answer",)
        return frozenset({"posts", "plan", "question", *answers})


def final(marker: str, value: str) -> str:
    """A line that ends with a value after the marker, which stands there once: a list of options is no choice."""
    return rf"^(?:(?!{marker}).)*{marker}[ \[({{]*{value}[ \])}}.!]*$"


LABEL = r"(?:(?:answer|response|assistant|option) )?(?:an? (?=tie|draw))?(A|B|tie|draw)"
NUMBER = r"(-?[0-9]+(?:[.,][0-9]{1,2})?)(?: ?(?:/|(?:[a-z]+ )?out of|of) ?([0-9]+))?"

STYLES: dict[str, Style] = {
    "pairwise": Style(
        prompt="judge_pairwise",
        verdict=final(r"\bresult ?[:=]", LABEL),
        reminder="Your reply must finish with one of these lines: Result: A, Result: B or Result: tie.",
        labels={**AB, **TIES},
    ),
    "pairwise-direct": Style(
        prompt="judge_pairwise_direct",
        verdict=rf"^(?:answer ?: ?)?[ \[(]*{LABEL}[ \])}}.!]*$",
        reminder="Your whole reply must be one letter: A or B.",
        labels=AB,
        direct=True,
    ),
    "mtbench": Style(
        prompt="judge_mtbench",
        verdict=final(r"\[\[", "([ABC])"),
        reminder="Your reply must finish with one of these verdicts: [[A]], [[B]] or [[C]].",
        labels={**AB, "C": "tie"},
    ),
    "prometheus": Style(
        prompt="judge_prometheus",
        verdict=final(r"\[result\]:?", LABEL),
        reminder="Your reply must finish with [RESULT] A or [RESULT] B.",
        labels=AB,
    ),
    "rm-r1": Style(
        prompt="judge_rm_r1",
        verdict=final("<answer>", r"([AB]) ?\]\] ?</answer>"),
        reminder="Your reply must finish with <answer>[[A]]</answer> or <answer>[[B]]</answer>.",
        labels=AB,
    ),
    "p-genrm": Style(
        prompt="judge_p_genrm",
        reminder="Your reply must finish with the JSON object that has a score for response_1 and for response_2.",
        keys=("response_1", "response_2"),
        scale=(0, 10),
    ),
    "rating": Style(
        prompt="judge_rating",
        verdict=final(r"(?:\brating ?[:=]|\[\[)", NUMBER),
        reminder="Your reply must finish with a line like Rating: [[n]], where n is a whole number from 1 to 10.",
        scale=(1, 10),
    ),
    "checklist": Style(
        prompt="judge_checklist",
        verdict=r"^\W*([0-9]{1,2})\W+(yes|no)\b",
        reminder="Your reply must have one line per item of the checklist: its number, a colon, and yes or no.",
        scale=(0, 1),
        items=True,
    ),
    "rating-direct": Style(
        prompt="judge_rating_direct",
        verdict=rf"^(?:rating ?: ?)?[ \[(]*{NUMBER}[ \])}}.!]*$",
        reminder="Your whole reply must be one digit from 1 to 9.",
        scale=(1, 9),
        direct=True,
    ),
}

Opinion = TypeVar("Opinion", Verdict, Reward)
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def winner(first: float, second: float) -> Winner:
    return "tie" if first == second else "first" if first > second else "second"


def find_verdict(reply: Completion, style: Style) -> re.Match[str] | None:
    """The line with the verdict: the last one that has any text, the first one of a style that is `direct`.

    Thinking is left out, and so are blocks of code of several lines, since they quote. If another line has another
    verdict, there is none. A truncated reply has not reached its verdict.
    """
    if reply.truncated and not style.direct:
        return None
    text = _FENCE.sub(lambda fence: "\n" if "\n" in fence[2].strip() else fence[2], without_thinking(reply.text))
    plain = (re.sub(r"[*_`\"'“”‘’]+", "", line.strip().lstrip("#> ")) for line in text.splitlines())
    lines = [" ".join(line.split()) for line in plain if re.search(r"\w", line)]
    matches = [re.match(style.verdict, line, re.IGNORECASE) for line in lines]
    if not matches or len({match[1].upper() for match in matches if match}) > 1:
        return None
    return matches[0 if style.direct else -1]


def read_choice(reply: Completion, style: Style) -> Verdict | Failure | None:
    if not style.keys:
        match = find_verdict(reply, style)
        choice = style.labels.get(match[1].upper()) if match else None
        return Verdict(choice=choice) if choice else None
    # scores in a JSON object, or nearly one: models write single quotes, trailing commas and numbers as texts
    number = r"""["']?\s*:\s*["']?(-?[0-9]+(?:\.[0-9]+)?)(?![0-9./])"""
    scores = [re.findall(rf"""["']?{key}{number}""", without_thinking(reply.text)) for key in style.keys]
    if reply.truncated or not all(scores):
        return None
    first, second = (float(of_one[-1]) for of_one in scores)
    low, high = style.scale
    if not (low <= first <= high and low <= second <= high):
        return Failure("rating outside the scale", f"{first:g} and {second:g}, expected {low} to {high}")
    return Verdict(choice=winner(first, second))


def read_rating(reply: Completion, style: Style) -> Reward | Failure | None:
    match = find_verdict(reply, style)
    if match is None:
        return None
    (number, out_of), (low, high) = match.groups(), style.scale
    value = float(number.replace(",", "."))
    if not low <= value <= high or (out_of and float(out_of) != high):
        shown = f"{number}/{out_of}" if out_of else number
        return Failure("rating outside the scale", f"{shown[:20]}, expected {low} to {high}")
    return Reward(value)


def read_items(reply: Completion, style: Style, count: int) -> Reward | None:
    """The share of items that were checked; every item must have been, and once, or always with the same result."""
    checked: dict[int, set[str]] = {}
    for number, mark in re.findall(style.verdict, without_thinking(reply.text), re.IGNORECASE | re.MULTILINE):
        checked.setdefault(int(number), set()).add(mark.lower())
    if reply.truncated or checked.keys() != set(range(1, count + 1)) or any(len(m) > 1 for m in checked.values()):
        return None
    return Reward(sum(marks == {"yes"} for marks in checked.values()) / count)


def weigh_choice(reply: Completion, style: Style) -> Verdict | Failure:
    """The label more likely to come first; equally likely ones tie."""
    weighed = _label_logprobs(reply.first, list(style.labels), all_needed=True)
    if isinstance(weighed, Failure):
        return weighed
    logprobs, text = weighed
    log_odds = logprobs["A"] - logprobs["B"]
    return Verdict(choice=winner(log_odds, 0), log_odds=log_odds if math.isfinite(log_odds) else None, text=text)


def weigh_rating(reply: Completion, style: Style) -> Reward | Failure:
    """The mean of the scale's digits, weighted by how likely each is to come first."""
    low, high = style.scale
    weighed = _label_logprobs(reply.first, [str(n) for n in range(low, high + 1)], all_needed=False)
    if isinstance(weighed, Failure):
        return weighed
    logprobs, text = weighed
    weights = np.exp(np.array(list(logprobs.values())) - max(logprobs.values()))
    return Reward(float(np.average(list(map(int, logprobs)), weights=weights)), text=text)


def _label_logprobs(
    first: Mapping[str, float], labels: list[str], *, all_needed: bool
) -> tuple[dict[str, float], str] | Failure:
    """Log-probability of each label that is there, summed over its spellings with and without a leading space; and all
    of them as a text."""
    if not first:
        return Failure("no log-probabilities", "the backend returned none for the first token")
    logprobs: dict[str, float] = {}
    for label in labels:
        if spellings := [value for token, value in first.items() if token.strip(" \t\n▁Ġ") == label]:
            logprobs[label] = float(np.logaddexp.reduce(spellings))
    missing = [label for label in labels if label not in logprobs]
    if not logprobs or (missing and all_needed):
        likeliest = ", ".join(repr(token) for token in sorted(first, key=lambda token: -first[token])[:5])
        return Failure("label not among the first tokens", f"no {', '.join(missing)}; likeliest: {likeliest}")
    text = "log-probabilities: " + ", ".join(f"{label} {value:.4f}" for label, value in logprobs.items())
    return (logprobs, text) if math.isfinite(max(logprobs.values())) else Failure("no usable log-probabilities", text)


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
    ) -> None:
        self._llm, self._style, self._weighed = llm, style, logprobs
        self._template = load(style.prompt) if template is None else template
        if logprobs:
            sampling = replace(sampling, max_tokens=1, top_logprobs=LIKELIEST)
        self._sampling = sampling
        self.remote = llm.remote
        self.at_once: int | None = getattr(llm, "at_once", None)
        weighed = "log-odds" if logprobs and style.kind == "pairwise" else None
        # judges without these settings keep the fingerprints they had before there were any
        newer = [setting for setting in (style.keys, weighed) if setting]
        settings = (style, self._template, load("material"), self._sampling, *newer)
        self.fingerprint = f"{style.prompt}-{settings_digest(settings)}-{llm.fingerprint}"

    def _opinions(
        self, prompts: Sequence[Chat], read: Reader[Opinion] | Sequence[Reader[Opinion]]
    ) -> list[Opinion | Failure]:
        """Verdicts or rewards with what they cost; log-probabilities that they were read from follow the text."""
        opinions: list[Opinion | Failure] = []
        reminder = self._style.reminder
        for reply in ask(self._llm, prompts, read, sampling=self._sampling, reminder=reminder, missing="no verdict"):
            if isinstance(reply, Failure):
                opinions.append(reply)
                continue
            text = "\n".join(filter(None, (reply.text, reply.value.text)))
            if isinstance(reply.value, Reward):
                opinions.append(Reward(reply.value, tokens=reply.tokens, cost=reply.cost, text=text))
            else:
                opinions.append(replace(reply.value, tokens=reply.tokens, cost=reply.cost, text=text))
        return opinions


class PairwiseJudge(Judge):
    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        read = partial(weigh_choice if self._weighed else read_choice, style=self._style)
        return self._opinions(
            [judge_chat(self._template, d.query, answer_a=d.first, answer_b=d.second) for d in duels], read
        )


class RatingJudge(Judge):
    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        read = partial(weigh_rating if self._weighed else read_rating, style=self._style)
        return [*self._opinions([judge_chat(self._template, a.query, answer=a.answer) for a in asks], read)]


class ChecklistJudge(Judge):
    """Checks every item of a plan, as the planner `checklist` writes it, without knowing whose it is."""

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        planned = [a for a in asks if a.query.plan]
        prompts = [judge_chat(self._template, a.query, numbered=True, answer=a.answer) for a in planned]
        readers = [partial(read_items, style=self._style, count=len(a.query.plan)) for a in planned]
        rewards = iter(self._opinions(prompts, readers))
        return [next(rewards) if a.query.plan else NO_CHECKLIST for a in asks]


def judge_chat(template: str, query: Query, *, numbered: bool = False, **answers: str) -> Chat:
    """What a judge reads; a line of equals signs in the template ends a system message. The template is split before it
    is filled, so no text can begin another message."""
    parts = re.split(r"^=+$", template, maxsplit=1, flags=re.MULTILINE)
    roles: tuple[Role, ...] = ("system", "user")
    return tuple(
        Turn(role, judge_prompt(part, query, numbered=numbered, **answers))
        for role, part in zip(roles[-len(parts) :], parts, strict=True)
    )


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
    temperature: NonNegative = 0.0,
    seed: int = 0,
) -> RewardModel:
    """An LLM asked which answer this user would prefer, or (style=rating) to rate one.

    A verdict is read after the thinking of models that think, for which `max_tokens` must leave room. With
    logprobs=true the first token is weighed, so nothing can be thought before it.
    """
    if style not in STYLES:
        raise unknown("style of judge", style, STYLES)
    chosen = STYLES[style]
    if logprobs and not chosen.direct:
        direct = " or ".join(f"style={name}" for name, other in STYLES.items() if other.direct)
        raise BadSpec(f"logprobs=true reads the first token of the reply, so it needs {direct}, not style={style}")
    template = None if prompt is None else read_template(prompt, chosen.slots)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
    kinds: dict[str, type[PairwiseJudge | RatingJudge | ChecklistJudge]] = {
        "pairwise": PairwiseJudge,
        "rating": RatingJudge,
        "checklist": ChecklistJudge,
    }
    return kinds[chosen.kind](make_llm(llm), chosen, template=template, sampling=sampling, logprobs=logprobs)


def read_template(path: Path, expected: Set[str], renamed: Mapping[str, str] = MappingProxyType({})) -> str:
    """A custom prompt: it must have these slots, and no others; a slot may also have one of the `renamed` names."""
    try:
        template = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"prompt {path} cannot be read: {error}") from None
    for alias, name in renamed.items():
        template = template.replace(f"{{{alias}}}", f"{{{name}}}")
    given = slots(template)
    extra, lacking, known = (
        ", ".join(f"{{{name}}}" for name in sorted(names)) for names in (given - expected, expected - given, expected)
    )
    if extra:
        raise BadSpec(f"prompt {path}: unknown slots {extra}; known are {known}")
    if lacking:
        raise BadSpec(f"prompt {path} lacks {lacking}, so the judge would not see it")
    return template


class Panel:
    """Every member has one vote: judges by their verdict, scorers by which answer they score higher."""

    def __init__(self, members: Sequence[Scorer | Comparer]) -> None:
        self._members = members
        self.fingerprint = "panel-" + "+".join(member.fingerprint for member in members)
        self.remote = any(map(is_remote, members))

    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        asks = [Ask(duel.query, answer) for duel in duels for answer in (duel.first, duel.second)]
        ballots: list[list[Verdict | Failure]] = []
        for member in self._members:
            if isinstance(member, Scorer):
                scores = member.score(asks)
                ballots.append(
                    [_compared(first, second) for first, second in zip(scores[::2], scores[1::2], strict=True)]
                )
            else:
                ballots.append(list(member.prefer(duels)))
        return [vote(opinions) for opinions in zip(*ballots, strict=True)]


def _compared(first: float | Failure, second: float | Failure) -> Verdict | Failure:
    if isinstance(first, Failure):
        return first
    if isinstance(second, Failure):
        return second
    rewards = [score for score in (first, second) if isinstance(score, Reward)]
    return Verdict(
        choice=winner(first, second),
        tokens=sum(reward.tokens for reward in rewards),
        cut=max((reward.cut for reward in rewards), default=0),
        cost=sum(reward.cost for reward in rewards),
        text=f"{first:.4g} : {second:.4g}",
    )


def vote(opinions: Sequence[Verdict | Failure]) -> Verdict | Failure:
    """The verdict of the majority, as many for the one as for the other answer being a tie; the first failure if less
    than half have one. Both with the cost of all."""
    verdicts = [opinion for opinion in opinions if isinstance(opinion, Verdict)]
    failures = [opinion for opinion in opinions if isinstance(opinion, Failure)]
    tokens, cost = sum(opinion.tokens for opinion in opinions), sum(opinion.cost for opinion in opinions)
    if len(verdicts) < len(failures):
        detail = f"{len(verdicts)} of {len(opinions)} votes; {failures[0].detail}"
        return replace(failures[0], detail=detail, prompt_tokens=tokens, completion_tokens=0, cost=cost)
    choices = [verdict.choice for verdict in verdicts]
    return Verdict(
        choice=winner(choices.count("first"), choices.count("second")),
        tokens=tokens,
        cut=max(verdict.cut for verdict in verdicts),
        cost=cost,
        text=BETWEEN_VOTES.join(verdict.text for verdict in verdicts),
    )


@MODELS.register("panel")
def panel(models: str) -> Comparer:
    """Majority vote of several models: models=SPEC|SPEC|…, each in parentheses if it has options."""
    made = [MODELS.make(without_parentheses(spec)) for spec in split_outside(models, "|")]
    members = [member for member in made if not isinstance(member, Recorded)]
    if len(members) < 2 or len(members) < len(made):
        raise BadSpec("a panel needs two or more models that can judge new answers: models=SPEC|SPEC")
    return Panel(members)
