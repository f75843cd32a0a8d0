"""A study: who judges which items, what they replied, and what participants bring themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "study",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("admin_hash", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("secret", sa.Text),
        sa.Column("state", sa.String(16), nullable=False, server_default="open"),
        sa.Column("public_hash", sa.String(64)),
    )
    op.create_table(
        "annotator",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("pseudonym", sa.String(32), nullable=False, unique=True),
        sa.Column("token_hash", sa.String(64), unique=True),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("consented", sa.Float),
        sa.Column("withdrawn", sa.Float),
        sa.Column("external_id", sa.Text, unique=True),
    )
    op.create_table(
        "item",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("is_check", sa.Boolean, nullable=False),
        sa.Column("owner", sa.Integer),
        sa.Column("content", sa.JSON, nullable=False),
    )
    op.create_table(
        "assignment",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("annotator", sa.Integer, sa.ForeignKey("annotator.id"), nullable=False),
        sa.Column("item", sa.Integer, sa.ForeignKey("item.id"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("flipped", sa.Boolean, nullable=False),
        sa.Column("revised", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("done", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("annotator", "item"),
    )
    op.create_index("assignment_next", "assignment", ["annotator", "done", "position"])
    op.create_table(
        "reply",
        sa.Column("assignment", sa.Integer, sa.ForeignKey("assignment.id"), primary_key=True, autoincrement=False),
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("fields", sa.JSON, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("active", sa.Float),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "post",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("annotator", sa.Integer, sa.ForeignKey("annotator.id"), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.UniqueConstraint("annotator", "digest"),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("annotator", sa.Integer),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
    )
