"""What Alembic runs: the connection is handed over by `prb.study.database`, there is no ini file."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
