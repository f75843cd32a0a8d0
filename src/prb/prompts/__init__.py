"""Prompts are text files in this folder; filling one is a single pass."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from prb.errors import unknown
from prb.types import Query

_SLOT = re.compile(r"\{(\w+)\}")


def fill(template: str, **fields: str) -> str:
    """Replace each `{name}` once, so text inside an answer is never read as a placeholder."""
    return _SLOT.sub(lambda slot: fields[slot[1]], template)


@cache
def load(name: str) -> str:
    folder = files(__name__)
    known = {entry.name.removesuffix(".txt") for entry in folder.iterdir() if entry.name.endswith(".txt")}
    if name not in known:
        raise unknown("prompt", name, known)
    return (folder / f"{name}.txt").read_text("utf-8")


def render(query: Query) -> str:
    """A query as the text a language model reads; parts that are not there leave no trace."""
    parts = [fill(load("question"), question=query.question)]
    if query.plan:
        parts.insert(0, fill(load("plan"), aspects="\n".join(f"- {aspect}" for aspect in query.plan)))
    if query.posts:
        posts = "\n\n".join(post.text for post in query.posts)
        parts.insert(0, fill(load("posts"), posts=posts))
    return "\n\n".join(part.strip() for part in parts)
