"""Group commit: SQLite writers who wait for each other share one commit, and so one wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError


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
                raise RuntimeError("the database gave up a transaction that several writers shared")
            self._transaction.commit()
        except BaseException as error:
            self.error = error
            with suppress(DBAPIError):
                self._transaction.rollback()
        finally:
            self.connection.close()
            self.ended.set()


class GroupCommit:
    """One writer at a time, each in a savepoint of its own; whoever finds nobody waiting commits for all of them.

    Making a commit durable takes longer than all else that a writer does, and `synchronous=NORMAL` would acknowledge
    what a power failure can still lose. So the wait stays and is shared: no writer returns before the commit that holds
    its changes.
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
        """Commit, unless the next writer will; one that waits has its turn after this one and finds the group open."""
        try:
            if self._waiting == 0 or not group.intact:
                self._group = None
                group.commit()
        finally:
            self._turn.release()
