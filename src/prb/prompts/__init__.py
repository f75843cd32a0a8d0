"""Prompts are text files in this folder; filling one is a single pass."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Literal

from prb.errors import unknown
from prb.types import Query

PolicyPrompt = Literal["prb", "paper"]
_SLOT = re.compile(r"\{(\w+)\}")


def fill(template: str, **fields: str) -> str:
    """Replace each `{name}` once, so text inside an answer is never read as a placeholder."""
    return _SLOT.sub(lambda slot: fields[slot[1]], template)


def slots(template: str) -> set[str]:
    return set(_SLOT.findall(template))


def quote(name: str, text: str) -> str:
    """The text between two lines with a code derived from it, so that nothing in it can imitate its end.

    The code depends on nothing else, so equal beginnings of prompts stay equal and servers can reuse them.
    """
    code = _code(text)
    return f"<<{name} {code}>>\n{text}\n<<end of {name} {code}>>"


def with_material(template: str, **fields: str) -> str:
    """A prompt with quoted texts: first how to treat them, then the filled template."""
    return f"{load('material').strip()}\n\n{fill(template.strip(), **fields)}"


def _code(text: str, salt: int = 0) -> str:
    code = hashlib.blake2b(f"{salt}:{text}".encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return _code(text, salt + 1) if code in text else code


@cache
def load(name: str) -> str:
    folder = files(__name__)
    known = {entry.name.removesuffix(".txt") for entry in folder.iterdir() if entry.name.endswith(".txt")}
    if name not in known:
        raise unknown("prompt", name, known)
    return (folder / f"{name}.txt").read_text("utf-8")


def render(query: Query) -> str:
    """A query as the text an LLM reads; missing parts leave no trace."""
    if not query.plan and not query.posts:
        return query.question  # the user's bare message, as reward models were trained on it and others score it
    parts = [fill(load("question"), question=query.question)]
    if query.plan:
        parts.insert(0, fill(load("plan"), aspects="\n".join(f"- {aspect}" for aspect in query.plan)))
    if query.posts:
        posts = "\n\n".join(post.text for post in query.posts)
        parts.insert(0, fill(load("posts"), posts=posts))
    return "\n\n".join(part.strip() for part in parts)


def policy_text(query: Query, style: PolicyPrompt = "prb") -> str:
    """The user message that a policy answers: the query as reward models read it, or laid out as in the paper."""
    if style == "prb":
        return render(query)
    posts = "\n".join(f"Post {n} (Category: {post.category}):\n{post.text}" for n, post in enumerate(query.posts, 1))
    return fill(load("policy_paper").strip(), question=query.question, profile=posts)


def policy_chat(text: str, style: PolicyPrompt = "prb") -> list[tuple[Literal["system", "user"], str]]:
    """Roles and texts of the messages of a policy, given its user message."""
    user: tuple[Literal["system", "user"], str] = ("user", text)
    return [("system", load("policy_paper_system").strip()), user] if style == "paper" else [user]
