"""A study is one database: a SQLite file (WAL), or PostgreSQL by URL. Reads see one snapshot, writes are durable.

Also authentication (invitation tokens, the administrator's password, sessions) and deleting an annotator's data.
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
from threading import Event, Lock
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from prb.errors import BadInput, MissingExtra

BUSY_SECONDS = 30.0
SESSION_DAYS = 30
ADMIN_HOURS = 12
PASSWORD_LENGTH = 16
METADATA = sa.MetaData()


def _table(name: str, /, *keys: str, **columns: Any) -> sa.Table:
    """A table as queries see it; `migrations/` creates it with its constraints."""
    return sa.Table(name, METADATA, *(sa.Column(c, kind, primary_key=c in keys) for c, kind in columns.items()))


INT, REAL, TEXT, BOOL, JSON = sa.Integer, sa.Float, sa.Text, sa.Boolean, sa.JSON
STUDY = _table("study", "id", id=INT, kind=TEXT, title=TEXT, settings=JSON, admin_hash=TEXT, created=REAL)
ANNOTATOR = _table(
    "annotator", "id", id=INT, name=TEXT, pseudonym=TEXT, token_hash=TEXT, created=REAL, consented=REAL, withdrawn=REAL
)
ITEM = _table("item", "id", id=INT, key=TEXT, cluster=TEXT, is_check=BOOL, owner=INT, content=JSON)
"""`owner`: the participant who asked this question; it is shown to nobody else."""
ASSIGNMENT = _table(
    "assignment", "id", id=INT, annotator=INT, item=INT, position=INT, flipped=BOOL, revised=BOOL, done=BOOL
)
"""`flipped`: the rejected answer is shown as A. `revised`: step 1 was repeated after the rubric had been shown."""
ANSWER = _table("answer", "assignment", "step", assignment=INT, step=INT, said=JSON, seconds=REAL, active=REAL, at=REAL)
"""One reply; its primary key makes a second vote impossible."""
POST = _table("post", "id", id=INT, annotator=INT, digest=TEXT, text=TEXT, at=REAL)
SESSION = _table("session", "hash", hash=TEXT, annotator=INT, expires=REAL)
"""Without an annotator: the administrator's."""
AUDIT = _table("audit", "id", id=INT, at=REAL, annotator=INT, what=TEXT, detail=JSON)
# what every request executes is composed once: composing a statement takes longer than executing it
_LOG = sa.insert(AUDIT)
_SESSION_VISITOR = (
    sa.select(SESSION.c.annotator, ANNOTATOR.c.name, ANNOTATOR.c.pseudonym, ANNOTATOR.c.consented)
    .select_from(SESSION.outerjoin(ANNOTATOR, SESSION.c.annotator == ANNOTATOR.c.id))
    .where(SESSION.c.hash == sa.bindparam("session"), SESSION.c.expires > sa.bindparam("now"))
)


class Database:
    def __init__(self, where: str) -> None:
        self.where = where
        self.sqlite = "://" not in where
        self.engine = _sqlite_engine(Path(where)) if self.sqlite else _postgres_engine(where)
        # SQLite has one writer at a time; waiting here is fair, while SQLite itself would poll
        self._commits = GroupCommit(self.engine) if self.sqlite else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One snapshot, no matter what is written meanwhile."""
        options = {} if self.sqlite else {"isolation_level": "REPEATABLE READ"}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """All of it or nothing; it is on disk when the block has ended."""
        with self._commits.transaction() if self._commits else self.engine.begin() as connection:
            yield connection

    def upgrade(self) -> None:
        """Apply the migrations that this database has not seen."""
        logging.getLogger("alembic").setLevel(logging.WARNING)  # some libraries enable info messages globally
        from alembic import command
        from alembic.config import Config

        settings = Config()
        settings.set_main_option("script_location", "prb.study:migrations")
        with self.write() as connection:
            settings.attributes["connection"] = connection
            command.upgrade(settings, "head")

    def scrub(self) -> None:
        """After a deletion: empty the write-ahead log (SQLite overwrites freed pages by itself)."""
        if self._commits:
            connection = self.engine.raw_connection()  # a checkpoint cannot run inside a transaction
            with self._commits.nobody_writes(), closing(connection):
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
            raise BadInput(f"{without_password(where)} is not a study")
        database.upgrade()
    except sa.exc.DBAPIError as error:
        raise BadInput(f"{without_password(where)} cannot be opened as a study: {error.orig}".strip()) from None
    return database


def without_password(where: str) -> str:
    return sa.make_url(where).render_as_string(hide_password=True) if "://" in where else where


def study_row(connection: Connection) -> Mapping[str, Any]:
    row = connection.execute(sa.select(STUDY)).mappings().first()
    if row is None:
        raise BadInput("the database holds no study; it may still be being created")
    return dict(row)


def log(connection: Connection, what: str, *, annotator: int | None = None, **detail: Any) -> None:
    connection.execute(_LOG, {"at": time.time(), "annotator": annotator, "what": what, "detail": detail})


def _postgres_engine(url: str) -> Engine:
    try:
        parsed = sa.make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if not parsed.drivername.startswith("postgresql"):
            raise BadInput(f"a study is stored in a SQLite file or in PostgreSQL, not in {parsed.drivername}")
        return sa.create_engine(parsed, pool_size=20, max_overflow=20, pool_pre_ping=True)
    except (sa.exc.ArgumentError, ValueError):
        raise BadInput(f"{url.rpartition('@')[2]} is not a database URL") from None
    except ModuleNotFoundError:
        raise MissingExtra("PostgreSQL", "postgres") from None


def _sqlite_engine(path: Path) -> Engine:
    with suppress(OSError):  # reported when it is opened
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # personal data: readable only by the file's owner
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
    """A new password for the administrator; sessions of the old one end."""
    password = new_password()
    with database.write() as connection:
        connection.execute(sa.update(STUDY).values(admin_hash=hash_password(password)))
        connection.execute(sa.delete(SESSION).where(SESSION.c.annotator.is_(None)))
        log(connection, "password replaced")
    return password


class Visitor(NamedTuple):
    """Whoever a session cookie stands for."""

    session: str
    annotator: int | None
    """`None`: the administrator."""
    name: str
    pseudonym: str
    consented: bool


def open_session(connection: Connection, annotator: int | None) -> tuple[str, int]:
    """The secret of a new session and how many seconds it lasts."""
    secret, now = new_token(), time.time()
    seconds = ADMIN_HOURS * 3600 if annotator is None else SESSION_DAYS * 86400
    connection.execute(sa.delete(SESSION).where(SESSION.c.expires < now))
    connection.execute(sa.insert(SESSION).values(hash=sha256(secret), annotator=annotator, expires=now + seconds))
    log(connection, "signed in", annotator=annotator)
    return secret, seconds


def session_visitor(connection: Connection, secret: str | None) -> Visitor | None:
    if not secret:
        return None
    row = connection.execute(_SESSION_VISITOR, {"session": sha256(secret), "now": time.time()}).first()
    if row is None:
        return None
    return Visitor(secret, row.annotator, row.name or "admin", row.pseudonym or "", row.consented is not None)


def renew_link(connection: Connection, annotator: int) -> str:
    """A new invitation; the old link and its sessions stop working."""
    token = new_token()
    connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(token_hash=sha256(token)))
    connection.execute(sa.delete(SESSION).where(SESSION.c.annotator == annotator))
    log(connection, "link renewed", annotator=annotator)
    return token


def stored_data(connection: Connection, annotator: int) -> dict[str, Any]:
    """What is stored about one annotator, for them to read."""
    replies = connection.scalar(
        sa.select(sa.func.count())
        .select_from(ANSWER.join(ASSIGNMENT, ANSWER.c.assignment == ASSIGNMENT.c.id))
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
    connection.execute(sa.delete(ANSWER).where(ANSWER.c.assignment.in_(assignments)))
    connection.execute(sa.delete(ASSIGNMENT).where(ASSIGNMENT.c.annotator == annotator))
    for table, column in ((ITEM, ITEM.c.owner), (POST, POST.c.annotator), (SESSION, SESSION.c.annotator)):
        connection.execute(sa.delete(table).where(column == annotator))
    connection.execute(sa.delete(AUDIT).where(AUDIT.c.annotator == annotator))
    emptied = {"name": "withdrawn", "token_hash": None, "pseudonym": f"gone-{annotator}", "consented": None}
    connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(**emptied, withdrawn=time.time()))
    log(connection, "data deleted on request")


class Group:
    """Writers in one transaction; `ended` once it is on disk or has failed for all of them."""

    def __init__(self, engine: Engine) -> None:
        self.connection = engine.connect().execution_options(prb_begin="IMMEDIATE")
        self.ended = Event()
        self.error: BaseException | None = None
        try:
            self._transaction = self.connection.begin()
        except BaseException:
            self.connection.close()
            raise

    @property
    def intact(self) -> bool:
        """SQLite rolls back a whole transaction by itself, for instance when the disk is full."""
        return bool(getattr(self.connection.connection.dbapi_connection, "in_transaction", False))

    def commit(self) -> None:
        try:
            if not self.intact:
                raise RuntimeError("the database rolled back a transaction that several writers shared")
            self._transaction.commit()
        except BaseException as error:
            self.error = error
            with suppress(DBAPIError):
                self._transaction.rollback()
        finally:
            self.connection.close()
            self.ended.set()


class GroupCommit:
    """One writer at a time, each in its own savepoint; a writer that finds nobody waiting commits for all of them.

    Making a commit durable takes longer than everything else a writer does, and `synchronous=NORMAL` would acknowledge
    what a power failure can still lose. So writers share the wait: none returns before the commit with its changes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn, self._counting = Lock(), Lock()
        self._waiting = 0
        self._group: Group | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """All of it or nothing; it is on disk when the block has ended."""
        group = self._join()
        try:
            with group.connection.begin_nested():
                yield group.connection
        finally:
            self._leave(group)
            group.ended.wait()
        if group.error is not None:
            raise group.error

    @contextmanager
    def nobody_writes(self) -> Iterator[None]:
        """For what cannot run inside a transaction."""
        with self._turn:
            if self._group is not None:
                group, self._group = self._group, None
                group.commit()
            yield

    def _join(self) -> Group:
        """The open group, or a new one; it is this thread's turn until it leaves."""
        with self._counting:
            self._waiting += 1
        try:
            self._turn.acquire()
        finally:
            with self._counting:
                self._waiting -= 1
        try:
            self._group = self._group or Group(self._engine)
        except BaseException:
            self._turn.release()
            raise
        return self._group

    def _leave(self, group: Group) -> None:
        """Commit, unless another writer waits: it finds the group open and will commit."""
        try:
            if self._waiting == 0 or not group.intact:
                self._group = None
                group.commit()
        finally:
            self._turn.release()
