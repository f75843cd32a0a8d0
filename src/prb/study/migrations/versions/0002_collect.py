"""Studies in which participants bring their own posts and questions, and may take all of it away again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("annotator", sa.Column("consented", sa.Float))
    op.add_column("annotator", sa.Column("withdrawn", sa.Float))
    op.add_column("item", sa.Column("owner", sa.Integer))
    op.create_table(
        "post",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("annotator", sa.Integer, sa.ForeignKey("annotator.id"), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.UniqueConstraint("annotator", "digest"),
    )
