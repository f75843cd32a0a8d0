"""A study is one database: a SQLite file (WAL), or PostgreSQL by URL. Reads see one snapshot, writes are durable.

Also invitation tokens, the administrator's password, and what is stored about an annotator.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event

from prb.errors import BadInput, MissingExtra, redact_options

BUSY_SECONDS = 30.0
PASSWORD_LENGTH = 16
METADATA = sa.MetaData()


def _table(name: str, /, *keys: str, **columns: Any) -> sa.Table:
    """A table as queries see it; `migrations/` creates it with its constraints."""
    return sa.Table(name, METADATA, *(sa.Column(c, kind, primary_key=c in keys) for c, kind in columns.items()))


INT, REAL, TEXT, BOOL, JSON = sa.Integer, sa.Float, sa.Text, sa.Boolean, sa.JSON
STUDY = _table(
    "study",
    "id",
    id=INT,
    kind=TEXT,
    title=TEXT,
    settings=JSON,
    admin_hash=TEXT,
    created=REAL,
    secret=TEXT,
    state=TEXT,
    public_hash=TEXT,
)
"""`secret` signs sessions and forms; `state` is open, paused or closed; `public_hash` belongs to the public link."""
ANNOTATOR = _table(
    "annotator",
    "id",
    id=INT,
    name=TEXT,
    pseudonym=TEXT,
    token_hash=TEXT,
    created=REAL,
    consented=REAL,
    withdrawn=REAL,
    external_id=TEXT,
)
"""`external_id`: who they are on the platform that sent them by the public link."""
ITEM = _table("item", "id", id=INT, key=TEXT, cluster=TEXT, is_check=BOOL, owner=INT, content=JSON)
"""`owner`: the participant who asked this question; it is shown to nobody else."""
ASSIGNMENT = _table(
    "assignment", "id", id=INT, annotator=INT, item=INT, position=INT, flipped=BOOL, revised=BOOL, done=BOOL
)
"""`flipped`: the rejected answer is shown as A. `revised`: step 1 was repeated after the rubric had been shown."""
REPLY = _table("reply", "assignment", "step", assignment=INT, step=INT, fields=JSON, seconds=REAL, active=REAL, at=REAL)
"""One reply; its primary key makes a second vote impossible."""
POST = _table("post", "id", id=INT, annotator=INT, digest=TEXT, text=TEXT, at=REAL)
AUDIT = _table("audit", "id", id=INT, at=REAL, annotator=INT, what=TEXT, detail=JSON)


class Database:
    def __init__(self, where: str) -> None:
        self.where = where
        self.sqlite = "://" not in where
        self.engine = _sqlite_engine(Path(where)) if self.sqlite else _postgres_engine(where)
        self._writing = Lock()  # SQLite has one writer at a time; waiting here is fair, SQLite itself would poll

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One snapshot, no matter what is written meanwhile."""
        options = {} if self.sqlite else {"isolation_level": "REPEATABLE READ"}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """All of it or nothing; it is on disk when the block has ended."""
        if not self.sqlite:
            with self.engine.begin() as connection:
                yield connection
            return
        immediate = self.engine.execution_options(prb_begin="IMMEDIATE")
        with self._writing, immediate.begin() as connection:
            yield connection

    def upgrade(self) -> None:
        """Apply the migrations that this database has not seen."""
        logging.getLogger("alembic").setLevel(logging.WARNING)  # some libraries enable info messages globally
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        settings = Config()
        settings.set_main_option("script_location", "prb.study:migrations")
        with self.write() as connection:
            settings.attributes["connection"] = connection
            try:
                command.upgrade(settings, "head")
            except CommandError:  # a revision that this version does not know
                raise BadInput(f"{redact_options(self.where)} was made by another version of prb") from None

    def scrub(self) -> None:
        """After a deletion: empty the write-ahead log (SQLite overwrites freed pages by itself)."""
        if self.sqlite:
            with self._writing, closing(self.engine.raw_connection()) as connection:  # not inside a transaction
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self.engine.dispose()


def open_study(where: str) -> Database:
    """An existing study, upgraded to this version's schema."""
    if "://" not in where and not Path(where).is_file():
        raise BadInput(f"{where} does not exist; `prb study new --out {where}` creates a study")
    database = Database(where)
    try:
        if not sa.inspect(database.engine).has_table("study"):
            raise BadInput(f"{redact_options(where)} is not a study")
        database.upgrade()
    except sa.exc.DBAPIError as error:
        raise BadInput(f"{redact_options(where)} cannot be opened as a study: {error.orig}".strip()) from None
    return database


def study_row(connection: Connection) -> Mapping[str, Any]:
    row = connection.execute(sa.select(STUDY)).mappings().first()
    if row is None:
        raise BadInput("the database holds no study; it may still be being created")
    return dict(row)


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


def new_pseudonym() -> str:
    return f"p-{secrets.token_hex(5)}"


def new_password() -> str:
    return new_token()[:PASSWORD_LENGTH]


def hash_password(password: str) -> str:
    from argon2 import PasswordHasher

    return PasswordHasher().hash(password)


def password_matches(stored: str, password: str) -> bool:
    from argon2 import PasswordHasher
    from argon2.exceptions import Argon2Error

    try:
        return PasswordHasher().verify(stored, password)
    except Argon2Error:
        return False


def replace_password(database: Database) -> str:
    """A new password for the administrator; sessions of the old one end, since they are bound to it."""
    password = new_password()
    with database.write() as connection:
        connection.execute(sa.update(STUDY).values(admin_hash=hash_password(password)))
        log(connection, "password replaced")
    return password


def renew_link(connection: Connection, annotator: int) -> str:
    """A new invitation; the old link stops working, and so do its sessions, which are bound to it."""
    token = new_token()
    connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(token_hash=sha256(token)))
    log(connection, "link renewed", annotator=annotator)
    return token


def stored_data(connection: Connection, annotator: int) -> dict[str, Any]:
    """What is stored about one annotator, for them to read."""
    replies = connection.scalar(
        sa.select(sa.func.count())
        .select_from(REPLY.join(ASSIGNMENT, REPLY.c.assignment == ASSIGNMENT.c.id))
        .where(ASSIGNMENT.c.annotator == annotator)
    )
    posts = connection.scalars(sa.select(POST.c.text).where(POST.c.annotator == annotator).order_by(POST.c.id)).all()
    asked = connection.scalars(sa.select(ITEM.c.content).where(ITEM.c.owner == annotator)).all()
    pseudonym = connection.scalar(sa.select(ANNOTATOR.c.pseudonym).where(ANNOTATOR.c.id == annotator))
    questions = [content["question"] for content in asked]
    return {"replies": replies, "posts": posts, "questions": questions, "pseudonym": pseudonym}


def delete_data(connection: Connection, annotator: int) -> None:
    """Remove all an annotator gave; an empty row and the fact that somebody withdrew remain."""
    assignments = sa.select(ASSIGNMENT.c.id).where(ASSIGNMENT.c.annotator == annotator)
    connection.execute(sa.delete(REPLY).where(REPLY.c.assignment.in_(assignments)))
    connection.execute(sa.delete(ASSIGNMENT).where(ASSIGNMENT.c.annotator == annotator))
    for table, column in ((ITEM, ITEM.c.owner), (POST, POST.c.annotator), (AUDIT, AUDIT.c.annotator)):
        connection.execute(sa.delete(table).where(column == annotator))
    emptied: dict[str, Any] = {"name": "withdrawn", "token_hash": None, "pseudonym": f"gone-{annotator}"}
    emptied |= {"consented": None, "external_id": None}
    connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(**emptied, withdrawn=time.time()))
    log(connection, "data deleted on request")
