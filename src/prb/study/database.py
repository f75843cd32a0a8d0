"""A study is one database: a SQLite file (WAL), or PostgreSQL by URL. Reads see one snapshot, writes are durable.

Also invitation tokens, the administrator's password, and what is stored about an annotator.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Semaphore
from typing import Any

import argon2
import sqlalchemy as sa
from sqlalchemy import JSON, Boolean, Column, Connection, Engine, Float, ForeignKey, Integer, String, Text, event

from prb.errors import BadInput, MissingExtra, redact_options

BUSY_SECONDS = 30.0
PASSWORD_LENGTH = 16
PASSWORD_CHECKS = Semaphore(2)
"""A check takes 64 MB: many at once, from many addresses, must not exhaust the memory."""
VERSION = "0003"
METADATA = sa.MetaData()
SCHEMA = sa.Table("alembic_version", METADATA, Column("version_num", String(32), primary_key=True))
"""The version of the tables; its name is that of the tool that created earlier studies."""
STUDY = sa.Table(
    "study",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("title", Text, nullable=False),
    Column("settings", JSON, nullable=False),
    Column("admin_hash", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("secret", Text),
    Column("state", String(16), nullable=False, server_default="open"),
    Column("public_hash", String(64)),
)
"""`secret` signs sessions and forms; `state` is open or closed; `public_hash` belongs to the public link."""
ANNOTATOR = sa.Table(
    "annotator",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("pseudonym", String(32), nullable=False, unique=True),
    Column("token_hash", String(64), unique=True),
    Column("created", Float, nullable=False),
    Column("consented", Float),
    Column("withdrawn", Float),
    Column("external_id", Text, unique=True),
)
"""`external_id`: who they are on the platform that sent them by the public link."""
ITEM = sa.Table(
    "item",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("cluster", Text, nullable=False),
    Column("is_check", Boolean, nullable=False),
    Column("owner", Integer),
    Column("content", JSON, nullable=False),
)
"""`owner`: the participant who asked this question; it is shown to nobody else."""
ASSIGNMENT = sa.Table(
    "assignment",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("annotator", ForeignKey(ANNOTATOR.c.id), nullable=False),
    Column("item", ForeignKey(ITEM.c.id), nullable=False),
    Column("position", Integer, nullable=False),
    Column("flipped", Boolean, nullable=False),
    Column("revised", Boolean, nullable=False, server_default=sa.false()),
    Column("done", Boolean, nullable=False, server_default=sa.false()),
    sa.UniqueConstraint("annotator", "item"),
    sa.Index("assignment_next", "annotator", "done", "position"),
)
"""`flipped`: the rejected answer is shown as A. `revised`: step 1 was repeated after the rubric had been shown."""
REPLY = sa.Table(
    "reply",
    METADATA,
    Column("assignment", ForeignKey(ASSIGNMENT.c.id), primary_key=True, autoincrement=False),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("fields", JSON, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("at", Float, nullable=False),
)
"""One reply; its primary key makes a second vote impossible."""
POST = sa.Table(
    "post",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("annotator", ForeignKey(ANNOTATOR.c.id), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("at", Float, nullable=False),
    sa.UniqueConstraint("annotator", "digest"),
)
AUDIT = sa.Table(
    "audit",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("annotator", Integer),
    Column("what", Text, nullable=False),
    Column("detail", JSON, nullable=False),
)


class Database:
    def __init__(self, where: str) -> None:
        self.where = where
        self.sqlite = "://" not in where
        self.engine = _sqlite_engine(Path(where)) if self.sqlite else _postgres_engine(where)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One snapshot, no matter what is written meanwhile."""
        options = {} if self.sqlite else {"isolation_level": "REPEATABLE READ"}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """All of it or nothing; it is on disk when the block has ended."""
        # only SQLite reads the option: it then waits for its turn here, not in the middle of the transaction
        with self.engine.execution_options(prb_begin="IMMEDIATE").begin() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def open_study(where: str) -> Database:
    """An existing study."""
    if "://" not in where and not Path(where).is_file():
        raise BadInput(f"{where} does not exist; `prb study new --out {where}` creates a study")
    database = Database(where)
    try:
        if not sa.inspect(database.engine).has_table("study"):
            raise BadInput(f"{redact_options(where)} is not a study")
        with database.read() as connection:
            if connection.scalar(sa.select(SCHEMA.c.version_num)) != VERSION:
                raise BadInput(f"{redact_options(where)} was made by another version of prb")
    except sa.exc.DBAPIError as error:
        raise BadInput(f"{redact_options(where)} cannot be opened as a study: {error.orig}".strip()) from None
    return database


def study_row(connection: Connection) -> sa.Row[Any]:
    return connection.execute(sa.select(STUDY)).one()


def log(connection: Connection, what: str, *, annotator: int | None = None, **detail: Any) -> None:
    connection.execute(sa.insert(AUDIT), {"at": time.time(), "annotator": annotator, "what": what, "detail": detail})


def _postgres_engine(url: str) -> Engine:
    try:
        parsed = sa.make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if not parsed.drivername.startswith("postgresql"):
            raise BadInput(f"a study is stored in a SQLite file or in PostgreSQL, not in {parsed.drivername}")
        return sa.create_engine(parsed, pool_size=20, max_overflow=20, pool_pre_ping=True, hide_parameters=True)
    except (sa.exc.ArgumentError, ValueError):
        raise BadInput(f"{redact_options(url)} is not a database URL") from None
    except ModuleNotFoundError:
        raise MissingExtra("PostgreSQL", "postgres") from None


def _sqlite_engine(path: Path) -> Engine:
    with suppress(OSError):  # reported when it is opened
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # personal data: readable only by the file's owner
    engine = sa.create_engine(
        f"sqlite:///{path}",
        pool_size=40,
        max_overflow=20,
        connect_args={"timeout": BUSY_SECONDS},
        hide_parameters=True,  # errors must not put what annotators wrote into a log
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


def new_token() -> str:
    """256 random bits; only their hash is stored, which at this length needs no salt."""
    return secrets.token_urlsafe(32)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def password_matches(stored: str, password: str) -> bool:
    try:
        with PASSWORD_CHECKS:
            return argon2.PasswordHasher().verify(stored, password)
    except argon2.exceptions.Argon2Error:
        return False


def replace_password(database: Database) -> str:
    """A new password for the administrator; sessions of the old one end, since they are bound to it."""
    password = new_token()[:PASSWORD_LENGTH]
    with database.write() as connection:
        connection.execute(sa.update(STUDY).values(admin_hash=argon2.PasswordHasher().hash(password)))
        log(connection, "password replaced")
    return password


def delete_data(database: Database, annotator: int) -> None:
    """Remove all an annotator gave; an empty row and the fact that somebody withdrew remain."""
    with database.write() as connection:
        assignments = sa.select(ASSIGNMENT.c.id).where(ASSIGNMENT.c.annotator == annotator)
        connection.execute(sa.delete(REPLY).where(REPLY.c.assignment.in_(assignments)))
        connection.execute(sa.delete(ASSIGNMENT).where(ASSIGNMENT.c.annotator == annotator))
        for table, column in ((ITEM, ITEM.c.owner), (POST, POST.c.annotator), (AUDIT, AUDIT.c.annotator)):
            connection.execute(sa.delete(table).where(column == annotator))
        emptied = {"name": "withdrawn", "pseudonym": f"gone-{annotator}", "withdrawn": time.time()}
        emptied |= dict.fromkeys(("token_hash", "consented", "external_id"))
        connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(**emptied))
        log(connection, "data deleted on request")
    if database.sqlite:  # which overwrites freed pages by itself, but keeps the write-ahead log
        with closing(database.engine.raw_connection()) as raw:  # not inside a transaction
            raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
