"""How judges are asked and how their replies are parsed: one table of styles, pure functions, no guessing.

Reasoning is removed first. Then code fences, since they quote, unless a fence holds the verdict and nothing else. Of
what is left the last verdict counts; where contradicting verdicts stand side by side (on one line, or with no word
between them) there is none, since that is the list of options and not a choice from it. For the same reason a verdict
that is followed by nothing but other labels or numbers (`A; B`, `A (tie)`, `5, 6`), or taken back on its line
(`A. No, wait: B`, `5 (maybe 6)`), is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

from prb.llm import Completion
from prb.llm.asking import without_thinking
from prb.types import Failure, Winner

V = TypeVar("V")

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
    """Regular expression of a verdict; group 1 is a label or a number, group 2 the maximum it is out of."""
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


_CLOSE = r"""[*_"'`”’\])}>]*"""
_ANY = r"""[\s:=*_"'`“”‘’\[\](){}<>]*"""
"""One class, not several in a row, which would backtrack for hours on a reply of a thousand asterisks."""
_COLON = r"""[\s*_"'`”’\])}]*[:=]""" + _ANY
_RESULT = rf"\[\s*result\s*\]{_ANY}"
_NOUN = rf"(?:(?:answer|response|assistant|option)\b{_ANY})?"
_TIE = r"(?:an?\s+(?=tie|draw))?(tie|draw|[AB])"
_REASON = r"because|since|due|between|wins|as\s+(?:it|the|this|that)|is\s+(?:the\s+)?(?:better|best|preferred)"
_AFTER = rf",(?!\s*(?:or|and|[AB]|tie)\b)|\s*\((?!\s*or\b)|\s*[–—-](?!\s*[AB]\b)|\s+(?:{_REASON})\b"
_END = rf"(?={_CLOSE}(?:\s*$|[.;:!]|{_AFTER}))"
"""A letter is a label only if it ends there: `A careful reader`, `A or B`, `A/B`, `A > B` are not verdicts."""
_OUT_OF = r"(?:[\s(*_-]*(?:[a-z]+[\s-]+){0,2}(?:/|out[\s-]+of|of)[\s-]*([0-9]+))?"
"""`3/5`, `3 out of 5`, `3 stars out of 5`."""
_NUMBER = (
    rf"(-?[0-9]+(?:\.[0-9]+|,[0-9]{{1,2}})?)(?![0-9]){_OUT_OF}"
    r"(?![0-9+]|e[+-]?[0-9]|\s*(?:%|percent\b)|[.,][0-9]|\s*[-–—,;/&]\s*[0-9]|\s+(?:to|or|and)\s+[0-9])"
)
"""A comma before three digits separates thousands, so `1,000` is not 1; nor are `1e1`, `1 %` and `1+`."""
_DOUBT = r"[\W_]*(?:or|no(?!\s+doubt)|wait|rather|perhaps|maybe|sorry|correction|i\s+mean|make\s+that)\b"

STYLES: dict[str, Style] = {
    "pairwise": Style(
        prompt="judge_pairwise",
        verdict=rf"\bresult\b{_COLON}{_NOUN}{_TIE}{_END}",
        reminder="Your reply must finish with one of these lines: Result: A, Result: B or Result: tie.",
        labels={**AB, **TIES},
    ),
    "pairwise-direct": Style(
        prompt="judge_pairwise_direct",
        verdict=rf"\A{_ANY}{_NOUN}([AB]){_END}",
        reminder="Your whole reply must be one letter: A or B.",
        labels=AB,
        direct=True,
    ),
    "mtbench": Style(
        prompt="judge_mtbench",
        verdict=r"\[\[[\s*_]*([ABC])[\s*_]*\]\]",
        reminder="Your reply must finish with one of these verdicts: [[A]], [[B]] or [[C]].",
        labels={**AB, "C": "tie"},
    ),
    "prometheus": Style(
        prompt="judge_prometheus",
        verdict=rf"{_RESULT}{_NOUN}([AB]){_END}",
        reminder="Your reply must finish with [RESULT] A or [RESULT] B.",
        labels=AB,
    ),
    "arena-hard": Style(
        prompt="judge_arena_hard",
        verdict=r"\[\[\s*(A\s*>\s*>\s*B|A\s*>\s*B|A\s*=\s*B|B\s*>\s*A|B\s*>\s*>\s*A)\s*\]\]",
        reminder="Your reply must finish with one of these grades: [[A>>B]], [[A>B]], [[A=B]], [[B>A]] or [[B>>A]].",
        labels=GRADES,
    ),
    "rm-r1": Style(
        prompt="judge_rm_r1",
        verdict=r"<answer>\s*\[\[\s*([AB])\s*\]\]\s*</answer>",
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
        verdict=rf"(?:\brating\b{_COLON}|\[\[\s*){_NUMBER}",
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
        verdict=rf"\A{_ANY}(?:rating\b{_COLON})?{_NUMBER}",
        reminder="Your whole reply must be one digit from 1 to 9.",
        scale=(1, 9),
        direct=True,
    ),
    "rating-prometheus": Style(
        prompt="judge_rating_prometheus",
        verdict=rf"{_RESULT}{_NUMBER}",
        reminder="Your reply must finish with [RESULT] and a whole number from 1 to 5.",
        scale=(1, 5),
    ),
}

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


class Parsed(NamedTuple, Generic[V]):
    """The value of a reply, and the log-probabilities it was read from, which are not in its text."""

    value: V
    weights: str = ""


def winner(first: float, second: float) -> Winner:
    """The answer with the higher score."""
    return "tie" if first == second else "first" if first > second else "second"


def read_choice(reply: Completion, style: Style) -> Parsed[Winner] | Failure | None:
    if style.keys:
        return _read_two_scores(reply, style.keys, style.scale)
    verdict = _verdict(reply, style)
    return None if verdict is None else Parsed(style.labels[_label(verdict[0])])


def _read_two_scores(
    reply: Completion, keys: tuple[str, str], scale: tuple[int, int]
) -> Parsed[Winner] | Failure | None:
    """Of a JSON object, or nearly one: models write single quotes, trailing commas and numbers as texts."""
    text = without_thinking(reply.text)
    scores = [re.findall(rf"""["']?{key}["']?\s*:\s*["']?(-?[0-9]+(?:\.[0-9]+)?)(?![0-9./])""", text) for key in keys]
    if reply.truncated or not all(scores):
        return None
    first, second = (float(of_one[-1]) for of_one in scores)
    low, high = scale
    if not (low <= first <= high and low <= second <= high):
        return Failure("rating outside the scale", f"{first:g} and {second:g}, expected {low} to {high}")
    return Parsed(winner(first, second))


def read_rating(reply: Completion, style: Style) -> Parsed[float] | Failure | None:
    verdict = _verdict(reply, style)
    if verdict is None:
        return None
    number, out_of = verdict
    low, high = style.scale
    value = float(number.replace(",", "."))
    if not low <= value <= high or (out_of and float(out_of) != high):
        shown = f"{number}/{out_of}" if out_of else number
        return Failure("rating outside the scale", f"{shown[:20]}, expected {low} to {high}")
    return Parsed(value)


def read_items(reply: Completion, style: Style, count: int) -> Parsed[float] | None:
    """The share of items that were checked; every item must have been, and once, or always with the same result."""
    checked: dict[int, set[str]] = {}
    for number, mark in re.findall(style.verdict, without_thinking(reply.text), re.IGNORECASE | re.MULTILINE):
        checked.setdefault(int(number), set()).add(mark.lower())
    if reply.truncated or checked.keys() != set(range(1, count + 1)) or any(len(m) > 1 for m in checked.values()):
        return None
    return Parsed(sum(marks == {"yes"} for marks in checked.values()) / count)


def weigh_choice(reply: Completion, style: Style) -> Parsed[Winner] | Failure:
    """The label more likely to come first; equally likely ones tie."""
    logprobs = _label_logprobs(reply.first, list(style.labels), all_needed=True)
    if isinstance(logprobs, Failure):
        return logprobs
    best = max(logprobs.values())
    leading = [label for label in style.labels if logprobs[label] == best]
    return Parsed(style.labels[leading[0]] if len(leading) == 1 else "tie", _shown(logprobs))


def weigh_rating(reply: Completion, style: Style) -> Parsed[float] | Failure:
    """The mean of the scale's digits, weighted by how likely each is to come first."""
    low, high = style.scale
    logprobs = _label_logprobs(reply.first, [str(n) for n in range(low, high + 1)], all_needed=False)
    if isinstance(logprobs, Failure):
        return logprobs
    top = max(logprobs.values())
    weights = {int(digit): math.exp(value - top) for digit, value in logprobs.items()}
    mean = sum(digit * weight for digit, weight in weights.items()) / sum(weights.values())
    return Parsed(mean, _shown(logprobs))


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


def _verdict(reply: Completion, style: Style) -> tuple[str, str] | None:
    """Label or number, and what a number is out of. A truncated reply has not reached its verdict."""
    if reply.truncated and not style.direct:
        return None
    pattern = re.compile(style.verdict, re.IGNORECASE | re.MULTILINE)

    def unless_quotation(fence: re.Match[str]) -> str:
        body = fence[2]
        return "\n" if re.search(r"\w", pattern.sub("", body)) or not pattern.search(body) else body

    text = _FENCE.sub(unless_quotation, without_thinking(reply.text))
    matches = list(pattern.finditer(text))
    if not matches:
        return None
    side_by_side = {_label(matches[-1][1])}
    for earlier, later in zip(matches[-2::-1], matches[:0:-1], strict=True):
        between = text[earlier.end() : later.start()]
        if "\n" in between and re.search(r"\w", between):
            break
        side_by_side.add(_label(earlier[1]))
    if len(side_by_side) > 1 or _continued(text[matches[-1].end() :], matches[-1][1], style):
        return None
    return matches[-1][1], (matches[-1][2] or "") if pattern.groups > 1 else ""


def _continued(rest: str, verdict: str, style: Style) -> bool:
    """Whether what follows a verdict, on its line or in all, is nothing but other labels or numbers, or whether its
    line goes on with a doubt and another one."""
    names = [*style.labels, "A", "B", "tie", "draw"] if style.labels else []
    item = "|".join(map(re.escape, sorted(set(names), key=len, reverse=True))) or r"-?[0-9]+(?:[.,][0-9]+)?"
    line = rest.partition("\n")[0]
    for part in (line, rest):
        doubted = part is line and re.match(_DOUBT, line, re.IGNORECASE)
        if doubted or re.fullmatch(rf"[\W_]*(?:\b(?:{item}|or|and)\b[\W_]*)*", part, re.IGNORECASE):
            others = re.findall(rf"\b(?:{item})\b", part, re.IGNORECASE)
            if any(_label(other) != _label(verdict) for other in others):
                return True
    return False


def _label(text: str) -> str:
    return re.sub(r"\s+", "", text).upper()
