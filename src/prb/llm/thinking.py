"""Replies of models that think first: where the thinking ends and the answer begins.

Thinking stands between tags; a chat template may already have written the opening one, so a closing tag alone counts
too. What is read from a reply, its verdict or the log-probabilities of its first token, is read after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

_TAG = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.IGNORECASE)
_OPENED = re.compile(r"(?:<(?:think|thinking|reasoning)>\s*)?\Z", re.IGNORECASE)


def without_thinking(text: str) -> str:
    """The reply without its thinking: tagged blocks, an unclosed one to the end, all before a stray closing tag."""
    kept: list[str] = []
    since, thinking = 0, False
    for tag in _TAG.finditer(text):
        if tag[1]:
            if not thinking:
                kept.clear()
            since, thinking = tag.end(), False
        elif not thinking:
            kept.append(text[since : tag.start()])
            thinking = True
    return "".join(kept if thinking else [*kept, text[since:]])


def opened_by(prompt: str) -> str:
    """The opening tag at the end of a prompt, for templates that write it themselves."""
    found = _OPENED.search(prompt)
    return found[0] if found else ""


def still_thinking(text: str) -> bool:
    """Whether the last tag opens."""
    tags = _TAG.findall(text)
    return bool(tags) and not tags[-1]


def answer_is_next(text: str) -> bool:
    """Whether what follows this beginning of a reply is the first token of its answer, as far as one can tell: at the
    very start, and after the thinking as long as only blanks were written."""
    if not _TAG.search(text):
        return not text
    return not still_thinking(text) and not without_thinking(text).strip()


def answer_token(tokens: Sequence[str]) -> int | None:
    """Which token begins the answer: the first that is not blank after the thinking, the very first without any.

    `None` if the tokens end before that.
    """
    text = "".join(tokens)
    if still_thinking(text):
        return None
    closing = [tag.end() for tag in _TAG.finditer(text) if tag[1]]
    if not closing:
        return 0 if tokens else None
    begin = closing[-1] + len(text[closing[-1] :]) - len(text[closing[-1] :].lstrip())
    return next((n for n, end in enumerate(accumulate(map(len, tokens))) if end > begin), None)
