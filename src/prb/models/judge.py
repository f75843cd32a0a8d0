"""An LLM as reward model: asked which of two answers this user would prefer, or for a rating of one.

Only the reply is parsed, so nothing in an answer can be taken for a verdict; and every quoted text stands between lines
with a code that it cannot contain. A style says how a judge is asked and how its reply ends: with JSON, or with a line
that one anchored expression matches. Any other reply has no verdict, and the judge is reminded once of the form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from prb.config import Count, NonNegative, Size
from prb.errors import BadSpec, unknown
from prb.hashing import settings_digest
from prb.llm import LLM, Chat, Completion, Sampling, make_llm
from prb.llm.asking import Reader, Reply, ask, without_thinking
from prb.models import MODELS
from prb.prompts import flat, load, quote, quoted_history, quoted_question, slots, with_material
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

AB: dict[str, Winner] = {"A": "first", "B": "second"}
TIES: dict[str, Winner] = {"TIE": "tie", "DRAW": "tie"}
GRADES: dict[str, Winner] = {"A>>B": "first", "A>B": "first", "A=B": "tie", "B>A": "second", "B>>A": "second"}

Shape = Literal["message", "system", "json"]
"""How a judge is addressed: by one user message; by a system and a user message, which a line of equals signs separates
in the prompt file; by a JSON object with a principle (the prompt file), the question and the answers."""


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
    shape: Shape = field(default="message", repr=False)
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
        if self.shape == "json":  # which has the question and the answers under keys of their own
            return frozenset({"posts", "plan"})
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
    "arena-hard": Style(
        prompt="judge_arena_hard",
        verdict=final(r"\[\[", "(A ?> ?> ?B|A ?> ?B|A ?= ?B|B ?> ?A|B ?> ?> ?A)"),
        reminder="Your reply must finish with one of these grades: [[A>>B]], [[A>B]], [[A=B]], [[B>A]] or [[B>>A]].",
        labels=GRADES,
    ),
    "rm-r1": Style(
        prompt="judge_rm_r1",
        verdict=final("<answer>", r"([AB]) ?\]\] ?</answer>"),
        reminder="Your reply must finish with <answer>[[A]]</answer> or <answer>[[B]]</answer>.",
        labels=AB,
        shape="system",
    ),
    "p-genrm": Style(
        prompt="judge_p_genrm",
        reminder="Your reply must finish with the JSON object that has a score for response_1 and for response_2.",
        keys=("response_1", "response_2"),
        scale=(0, 10),
        shape="system",
    ),
    "rewardanything": Style(
        prompt="judge_rewardanything",
        reminder="Your reply must be the JSON object with the scores of model-1 and model-2.",
        keys=("model-1", "model-2"),
        scale=(1, 5),
        shape="json",
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
    "rating-prometheus": Style(
        prompt="judge_rating_prometheus",
        verdict=final(r"\[result\]:?", NUMBER),
        reminder="Your reply must finish with [RESULT] and a whole number from 1 to 5.",
        scale=(1, 5),
    ),
}

Opinion = TypeVar("Opinion", Verdict, Reward)
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def winner(first: float, second: float) -> Winner:
    """The answer with the higher score."""
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
    if not matches or len({_label(match[1]) for match in matches if match}) > 1:
        return None
    return matches[0 if style.direct else -1]


def _label(text: str) -> str:
    return text.replace(" ", "").upper()


def read_choice(reply: Completion, style: Style) -> Verdict | Failure | None:
    if not style.keys:
        match = find_verdict(reply, style)
        choice = style.labels.get(_label(match[1])) if match else None
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
    logprobs = _label_logprobs(reply.first, list(style.labels), all_needed=True)
    if isinstance(logprobs, Failure):
        return logprobs
    log_odds = logprobs["A"] - logprobs["B"]
    finite = log_odds if math.isfinite(log_odds) else None
    return Verdict(choice=winner(log_odds, 0), log_odds=finite, text=_shown(logprobs))


def weigh_rating(reply: Completion, style: Style) -> Reward | Failure:
    """The mean of the scale's digits, weighted by how likely each is to come first."""
    low, high = style.scale
    logprobs = _label_logprobs(reply.first, [str(n) for n in range(low, high + 1)], all_needed=False)
    if isinstance(logprobs, Failure):
        return logprobs
    top = max(logprobs.values())
    weights = {int(digit): math.exp(value - top) for digit, value in logprobs.items()}
    mean = sum(digit * weight for digit, weight in weights.items()) / sum(weights.values())
    return Reward(mean, text=_shown(logprobs))


def _label_logprobs(first: Mapping[str, float], labels: list[str], *, all_needed: bool) -> dict[str, float] | Failure:
    """Log-probability of each label that is there, summed over its spellings with and without a leading space."""
    if not first:
        return Failure("no log-probabilities", "the backend returned none for the first token")
    logprobs = {}
    for label in labels:
        spellings = [value for token, value in first.items() if token.strip(" \t\n▁Ġ") == label]
        if spellings:
            top = max(spellings)
            finite = math.isfinite(top)
            logprobs[label] = top + math.log(sum(math.exp(value - top) for value in spellings)) if finite else top
    missing = [label for label in labels if label not in logprobs]
    if not logprobs or (missing and all_needed):
        likeliest = ", ".join(repr(token) for token in sorted(first, key=lambda token: -first[token])[:5])
        return Failure("label not among the first tokens", f"no {', '.join(missing)}; likeliest: {likeliest}")
    if not math.isfinite(max(logprobs.values())):
        return Failure("no usable log-probabilities", _shown(logprobs))
    return logprobs


def _shown(logprobs: Mapping[str, float]) -> str:
    return "log-probabilities: " + ", ".join(f"{label} {value:.4f}" for label, value in logprobs.items())


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
        self.at_once: int | None = getattr(llm, "at_once", None)
        weighed = "log-odds" if logprobs and style.kind == "pairwise" else None
        # judges without these settings keep the fingerprints they had before there were any
        newer = [setting for setting in (votes, style.keys, weighed) if setting not in (1, None)]
        settings = (style, self._template, load("material"), self._sampling, *newer)
        self.fingerprint = f"{style.prompt}-{settings_digest(settings)}-{llm.fingerprint}"

    def _opinions(
        self, prompts: Sequence[str | Chat], read: Reader[Opinion] | Sequence[Reader[Opinion]]
    ) -> list[list[Opinion | Failure]]:
        """For each prompt as many as there are votes, with every second seed: reminders take the others."""

        def opinion(reply: Reply[Opinion] | Failure) -> Opinion | Failure:
            """With what it cost; log-probabilities that it was read from follow the text."""
            if isinstance(reply, Failure):
                return reply
            text = "\n".join(filter(None, (reply.text, reply.value.text)))
            if isinstance(reply.value, Reward):
                return Reward(reply.value, tokens=reply.tokens, cost=reply.cost, text=text)
            return replace(reply.value, tokens=reply.tokens, cost=reply.cost, text=text)

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
        return [[opinion(reply) for reply in replies] for replies in zip(*rounds, strict=True)]


class PairwiseJudge(Judge):
    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        read = partial(weigh_choice if self._weighed else read_choice, style=self._style)
        shape = self._style.shape
        prompts = [judge_chat(shape, self._template, d.query, answer_a=d.first, answer_b=d.second) for d in duels]
        return [vote(opinions) for opinions in self._opinions(prompts, read)]


class RatingJudge(Judge):
    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        read = partial(weigh_rating if self._weighed else read_rating, style=self._style)
        prompts = [judge_chat(self._style.shape, self._template, a.query, answer=a.answer) for a in asks]
        return [mean_reward(opinions) for opinions in self._opinions(prompts, read)]


class ChecklistJudge(Judge):
    """Checks every item of a plan, as the planner `checklist` writes it, without knowing whose it is."""

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        planned = [a for a in asks if a.query.plan]
        prompts = [judge_prompt(self._template, a.query, numbered=True, answer=a.answer) for a in planned]
        readers = [partial(read_items, style=self._style, count=len(a.query.plan)) for a in planned]
        rewards = iter([mean_reward(opinions) for opinions in self._opinions(prompts, readers)])
        return [next(rewards) if a.query.plan else NO_CHECKLIST for a in asks]


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
    given = slots(template)
    extra, lacking, known = (
        ", ".join(f"{{{name}}}" for name in sorted(names)) for names in (given - expected, expected - given, expected)
    )
    if extra:
        raise BadSpec(f"prompt {path}: unknown slots {extra}; known are {known}")
    if lacking:
        raise BadSpec(f"prompt {path} lacks {lacking}, so the judge would not see it")
    return template


def vote(opinions: Sequence[Verdict | Failure]) -> Verdict | Failure:
    """The verdict of the majority; as many for the one as for the other answer is a tie."""

    def majority(verdicts: Sequence[Verdict], **spent: Any) -> Verdict:
        choices = [verdict.choice for verdict in verdicts]
        return Verdict(choice=winner(choices.count("first"), choices.count("second")), **spent)

    return _pooled(opinions, majority)


def mean_reward(opinions: Sequence[Reward | Failure]) -> Reward | Failure:
    return _pooled(opinions, lambda rewards, **spent: Reward(fmean(rewards), **spent))


def _pooled(opinions: Sequence[Opinion | Failure], decide: Callable[..., Opinion]) -> Opinion | Failure:
    """What at least half of the votes decide, else the first failure; both with the cost of all. A single vote is what
    it is."""
    if len(opinions) == 1:
        return opinions[0]
    given = [opinion for opinion in opinions if not isinstance(opinion, Failure)]
    failures = [opinion for opinion in opinions if isinstance(opinion, Failure)]
    tokens, cost = sum(opinion.tokens for opinion in given), sum(opinion.cost for opinion in opinions)
    read, written = (sum(getattr(f, name) for f in failures) for name in ("prompt_tokens", "completion_tokens"))
    if len(given) >= len(failures):
        text = BETWEEN_VOTES.join(opinion.text for opinion in given)
        cut = max(opinion.cut for opinion in given)
        return decide(given, tokens=tokens + read + written, cut=cut, cost=cost, text=text)
    detail = f"{len(given)} of {len(opinions)} votes; {failures[0].detail}"
    return replace(failures[0], detail=detail, prompt_tokens=tokens + read, completion_tokens=written, cost=cost)


class Panel:
    """Every member has one vote: judges by their verdict, scorers by which answer they score higher."""

    def __init__(self, members: Sequence[Scorer | Comparer]) -> None:
        self._members = members
        self.fingerprint = "panel-" + "+".join(member.fingerprint for member in members)
        self.remote = any(map(is_remote, members))

    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        asks = [Ask(duel.query, answer) for duel in duels for answer in (duel.first, duel.second)]
        ballots = []
        for member in self._members:
            if isinstance(member, Scorer):
                scores = member.score(asks)
                ballots.append([compare_scores(*both) for both in zip(scores[::2], scores[1::2], strict=True)])
            else:
                ballots.append(list(member.prefer(duels)))
        return [vote(opinions) for opinions in zip(*ballots, strict=True)]


def compare_scores(first: float | Failure, second: float | Failure) -> Verdict | Failure:
    if isinstance(first, Failure) or isinstance(second, Failure):
        return first if isinstance(first, Failure) else second  # type: ignore[return-value]
    rewards = [score for score in (first, second) if isinstance(score, Reward)]
    return Verdict(
        choice=winner(first, second),
        tokens=sum(reward.tokens for reward in rewards),
        cut=max((reward.cut for reward in rewards), default=0),
        cost=sum(reward.cost for reward in rewards),
        text=f"{first:.4g} : {second:.4g}",
    )


@MODELS.register("panel")
def panel(models: str) -> Comparer:
    """Majority vote of several models: models=SPEC|SPEC|…, each in parentheses if it has options."""
    made = [MODELS.make(without_parentheses(spec)) for spec in split_outside(models, "|")]
    members = [member for member in made if not isinstance(member, Recorded)]
    if len(members) < 2 or len(members) < len(made):
        raise BadSpec("a panel needs two or more models that can judge new answers: models=SPEC|SPEC")
    return Panel(members)
