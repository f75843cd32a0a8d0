"""An LLM as reward model: asked which of two answers this user would prefer, or for a rating of one.

Only the reply is parsed, so nothing in an answer can be taken for a verdict; and every quoted text stands between lines
with a code that it cannot contain. Styles are data, in `judge_parse`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from prb.config import Count, NonNegative, Size
from prb.errors import BadSpec, unknown
from prb.llm import LLM, Completion, Sampling, make_llm
from prb.llm.asking import Reader, Reply, T, ask
from prb.models import MODELS
from prb.models.judge_parse import STYLES, Parsed, Style, read_choice, read_rating, weigh_choice, weigh_rating
from prb.prompts import load, quote, quoted_history, quoted_question, slots, with_material
from prb.types import Ask, Duel, Failure, Query, Reward, RewardModel, Verdict, Winner

GREEDY = Sampling(max_tokens=1024)
LIKELIEST = 20
"""How many log-probabilities of the first token to ask for: as many as public endpoints return."""
AFTER_THINKING = 8
"""Tokens for the closing tag, blank lines and the label."""

_NAMES = {
    "plan": "what this person probably wants",
    "answer": "answer",
    "answer_a": "answer A",
    "answer_b": "answer B",
}
"""How quoted texts are introduced."""


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
    ) -> None:
        self._llm, self._style, self._weighed = llm, style, logprobs
        self._template = load(style.prompt) if template is None else template
        if logprobs:
            length = thinking + AFTER_THINKING if thinking else 1
            sampling = replace(sampling, max_tokens=length, top_logprobs=LIKELIEST)
        self._sampling = sampling
        self.remote = llm.remote
        settings = (style, self._template, load("material"), self._sampling)
        digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:12]
        self.fingerprint = f"{style.prompt}-{digest}-{llm.fingerprint}"

    def _ask(self, prompts: Sequence[str], read: Reader[T]) -> list[Reply[T] | Failure]:
        reminder = self._style.reminder
        return ask(self._llm, prompts, read, sampling=self._sampling, reminder=reminder, missing="no verdict")


class PairwiseJudge(Judge):
    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        prompts = [judge_prompt(self._template, d.query, answer_a=d.first, answer_b=d.second) for d in duels]
        return [
            reply
            if isinstance(reply, Failure)
            else Verdict(choice=reply.value.value, tokens=reply.tokens, cost=reply.cost, text=_text(reply))
            for reply in self._ask(prompts, self._read)
        ]

    def _read(self, reply: Completion) -> Parsed[Winner] | Failure | None:
        return weigh_choice(reply, self._style) if self._weighed else read_choice(reply, self._style)


class RatingJudge(Judge):
    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        prompts = [judge_prompt(self._template, a.query, answer=a.answer) for a in asks]
        return [
            reply
            if isinstance(reply, Failure)
            else Reward(reply.value.value, tokens=reply.tokens, cost=reply.cost, text=_text(reply))
            for reply in self._ask(prompts, self._read)
        ]

    def _read(self, reply: Completion) -> Parsed[float] | Failure | None:
        return weigh_rating(reply, self._style) if self._weighed else read_rating(reply, self._style)


def _text(reply: Reply[Parsed[Winner]] | Reply[Parsed[float]]) -> str:
    """The reply, and the log-probabilities it was read from if there are any."""
    return "\n".join(filter(None, (reply.text, reply.value.weights)))


def judge_prompt(template: str, query: Query, **answers: str) -> str:
    """The prompt, filled in one pass; a missing history or a missing plan leaves no trace.

    Slot `posts` holds the whole history, past choices too, and `question` the turns before it: a custom prompt shows
    everything that a query has.
    """
    material = {"question": quoted_question(query)}
    material |= {slot: quote(_NAMES[slot], text) for slot, text in answers.items()}
    if query.posts or query.choices:
        material["posts"] = quoted_history(query.posts, query.choices)
    if query.plan:
        material["plan"] = quote(_NAMES["plan"], "\n".join(f"- {aspect}" for aspect in query.plan))
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
    temperature: NonNegative = 0.0,
    seed: int = 0,
) -> RewardModel:
    """An LLM asked which answer this user would prefer, or (style=rating) to rate one.

    A verdict is read after the thinking of models that think; `thinking` is how many tokens they may think before it,
    on top of `max_tokens` or, with logprobs=true, of the one token that is weighed.
    """
    if style not in STYLES:
        raise unknown("style of judge", style, STYLES)
    chosen = STYLES[style]
    if logprobs and not chosen.direct:
        direct = " or ".join(f"style={name}" for name, other in STYLES.items() if other.direct)
        raise BadSpec(f"logprobs=true reads the first token of the reply, so it needs {direct}, not style={style}")
    template = None if prompt is None else read_template(prompt, chosen.slots)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens + thinking, seed=seed)
    make = PairwiseJudge if chosen.kind == "pairwise" else RatingJudge
    return make(make_llm(llm), chosen, template=template, sampling=sampling, logprobs=logprobs, thinking=thinking)


def read_template(path: Path, expected: Set[str], renamed: Mapping[str, str] = MappingProxyType({})) -> str:
    """A custom prompt: it must have these slots, and no others; a slot may also have one of the `renamed` names."""
    try:
        template = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"prompt {path} cannot be read: {error}") from None
    for other, name in renamed.items():
        template = template.replace(f"{{{other}}}", f"{{{name}}}")
    unknown_slots, missing_slots = slots(template) - expected, expected - slots(template)
    if unknown_slots:
        raise BadSpec(f"prompt {path}: unknown slots {_braced(unknown_slots)}; known are {_braced(expected)}")
    if missing_slots:
        raise BadSpec(f"prompt {path} lacks {_braced(missing_slots)}, so the judge would not see it")
    return template


def _braced(names: Set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))
