"""Sessions are signed cookies; a study can be paused, and entered by one public link; replies are called replies."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.drop_table("session")
    op.rename_table("answer", "reply")
    op.execute("ALTER TABLE reply RENAME COLUMN said TO fields")
    op.add_column("study", sa.Column("secret", sa.Text))
    op.add_column("study", sa.Column("state", sa.String(16), nullable=False, server_default="open"))
    op.add_column("study", sa.Column("public_hash", sa.String(64)))
    op.add_column("annotator", sa.Column("external_id", sa.Text))
    op.create_index("annotator_external", "annotator", ["external_id"], unique=True)
    study = sa.table("study", sa.column("secret"))
    op.execute(sa.update(study).values(secret=secrets.token_urlsafe(32)))
