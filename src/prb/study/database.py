"""A study is one database: a SQLite file (WAL), or PostgreSQL by URL. Reads see one snapshot, writes are durable."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event

from prb.errors import BadInput
from prb.study.tables import AUDIT, STUDY

BUSY_SECONDS = 30.0


class Database:
    def __init__(self, where: str) -> None:
        self.where = where
        self.sqlite = "://" not in where
        self.engine = _sqlite(Path(where)) if self.sqlite else _server(where)
        # SQLite has one writer at a time; waiting here is fair, waiting inside SQLite is polling
        self._turn = Lock() if self.sqlite else nullcontext()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One snapshot: everything read inside is of the same moment, however many people are writing."""
        options = {} if self.sqlite else {"isolation_level": "REPEATABLE READ"}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """All of it or nothing; when the block has ended, it is on the disk."""
        options = {"prb_begin": "IMMEDIATE"} if self.sqlite else {}
        with self._turn, self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def upgrade(self) -> None:
        """Take the migrations that this database has not seen."""
        logging.getLogger("alembic").setLevel(logging.WARNING)  # some libraries turn everybody's chatter on
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", "prb.study:migrations")
        with self.write() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def scrub(self) -> None:
        """After a deletion: nothing of it stays in the write-ahead log (freed pages are overwritten anyway)."""
        if self.sqlite:
            connection = self.engine.raw_connection()  # a checkpoint cannot stand inside a transaction
            with self._turn, closing(connection):
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self.engine.dispose()


def open_study(where: str) -> Database:
    """An existing study, brought up to this version's schema."""
    if "://" not in where and not Path(where).is_file():
        raise BadInput(f"{where} does not exist; `prb study new --out {where}` makes a study")
    database = Database(where)
    try:
        if not sa.inspect(database.engine).has_table("study"):
            raise BadInput(f"{shown(where)} is not a study")
        database.upgrade()
    except sa.exc.DBAPIError as error:
        raise BadInput(f"{shown(where)} cannot be opened as a study: {error.orig}".strip()) from None
    return database


def shown(where: str) -> str:
    """A database URL without its password."""
    return sa.make_url(where).render_as_string(hide_password=True) if "://" in where else where


def study_row(connection: Connection) -> Mapping[str, Any]:
    row = connection.execute(sa.select(STUDY)).mappings().first()
    if row is None:
        raise BadInput("the database holds no study; it may still be in the making")
    return dict(row)


def log(connection: Connection, what: str, *, annotator: int | None = None, **detail: Any) -> None:
    connection.execute(sa.insert(AUDIT).values(at=time.time(), annotator=annotator, what=what, detail=detail))


def _server(url: str) -> Engine:
    try:
        parsed = sa.make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if not parsed.drivername.startswith("postgresql"):
            raise BadInput(f"a study lives in a SQLite file or in PostgreSQL, not in {parsed.drivername}")
        return sa.create_engine(parsed, pool_size=20, max_overflow=20, pool_pre_ping=True)
    except (sa.exc.ArgumentError, ValueError):
        raise BadInput(f"{url.rpartition('@')[2]} is not a database URL") from None
    except ModuleNotFoundError:
        from prb.errors import MissingExtra

        raise MissingExtra("PostgreSQL", "postgres") from None


def _sqlite(path: Path) -> Engine:
    engine = sa.create_engine(
        f"sqlite:///{path}", pool_size=40, max_overflow=20, connect_args={"timeout": BUSY_SECONDS}
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, so that reads are snapshots too
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('prb_begin', 'DEFERRED')}")

    return engine
