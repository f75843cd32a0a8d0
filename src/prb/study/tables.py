"""The tables as queries see them; `migrations/` makes them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

META = sa.MetaData()
KEYS = {"id", "hash"}


def _table(name: str, /, *also_keys: str, **columns: Any) -> sa.Table:
    keys = KEYS | set(also_keys)
    return sa.Table(
        name, META, *(sa.Column(column, kind, primary_key=column in keys) for column, kind in columns.items())
    )


I, F, S, B, J = sa.Integer, sa.Float, sa.Text, sa.Boolean, sa.JSON  # noqa: E741

STUDY = _table("study", id=I, kind=S, title=S, settings=J, admin_hash=S, created=F)
ANNOTATOR = _table("annotator", id=I, name=S, pseudonym=S, token_hash=S, created=F, consented=F, withdrawn=F)
ITEM = _table("item", id=I, key=S, cluster=S, is_check=B, owner=I, content=J)
"""`owner`: of a question somebody asked; nobody else sees it."""
ASSIGNMENT = _table("assignment", id=I, annotator=I, item=I, position=I, flipped=B, revised=B, done=B)
"""`flipped`: the rejected answer stands as A. `revised`: the first step was done again after the wishes were seen."""
ANSWER = _table("answer", "assignment", "step", assignment=I, step=I, said=J, seconds=F, active=F, at=F)
"""Its key makes a second vote impossible."""
POST = _table("post", id=I, annotator=I, digest=S, text=S, at=F)
SESSION = _table("session", hash=S, annotator=I, expires=F)
"""Without an annotator: the administrator."""
AUDIT = _table("audit", id=I, at=F, annotator=I, what=S, detail=J)
