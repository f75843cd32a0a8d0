"""Writers who wait for each other share a commit; each is told the truth about its own rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from prb.study.database import Database

WRITERS = 12


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(str(tmp_path / "s.db"))
    with database.write() as connection:
        connection.exec_driver_sql("create table kept (n integer primary key)")
    yield database
    database.close()


def kept(database: Database) -> list[int]:
    with database.read() as connection:
        return list(connection.scalars(sa.text("select n from kept order by n")))


def write_together(database: Database, fails: frozenset[int] = frozenset()) -> list[BaseException | None]:
    """Writer 0 keeps its turn until all others wait for theirs; what each of them raised."""
    others = threading.Semaphore(0)
    commits = database._commits
    assert commits

    def write(n: int) -> None:
        if n:
            others.acquire()
        with database.write() as connection:
            if n == 0:
                others.release(WRITERS)
                while commits._waiting < WRITERS - 1:
                    time.sleep(0.001)
            connection.exec_driver_sql("insert into kept values (?)", (n,))
            if n in fails:
                raise LookupError(n)

    with ThreadPoolExecutor(WRITERS) as threads:
        return [task.exception() for task in [threads.submit(write, n) for n in range(WRITERS)]]


def commits_of(database: Database) -> list[Any]:
    seen: list[Any] = []
    event.listen(database.engine, "commit", seen.append)
    return seen


def test_those_who_wait_share_one_commit(database: Database) -> None:
    commits = commits_of(database)
    assert write_together(database) == [None] * WRITERS
    assert kept(database) == list(range(WRITERS))
    assert len(commits) == 1 + 1  # and one ends the reading


def test_a_writer_that_fails_takes_back_its_own_rows_only(database: Database) -> None:
    errors = write_together(database, fails=frozenset({0, 3, 7}))
    assert [n for n, error in enumerate(errors) if isinstance(error, LookupError)] == [0, 3, 7]
    assert kept(database) == [n for n in range(WRITERS) if n not in (0, 3, 7)]


def test_a_commit_that_fails_is_nobodys_success(database: Database) -> None:
    def full(_: Any) -> None:
        raise OSError("the disk is full")

    event.listen(database.engine, "commit", full)
    errors = write_together(database)
    event.remove(database.engine, "commit", full)
    assert [str(error) for error in errors] == ["the disk is full"] * WRITERS
    assert kept(database) == []
    assert write_together(database) == [None] * WRITERS


def test_a_transaction_that_sqlite_gave_up_fails_for_all_who_were_in_it(database: Database) -> None:
    with pytest.raises(sa.exc.DBAPIError), database.write() as connection:  # noqa: PT012 - the exit is part of it
        connection.exec_driver_sql("insert into kept values (1)")
        connection.connection.dbapi_connection.rollback()  # type: ignore[union-attr]
    assert kept(database) == []
    assert write_together(database) == [None] * WRITERS


def test_the_log_is_emptied_between_writers(database: Database) -> None:
    with ThreadPoolExecutor(2) as threads:
        scrubs = threads.submit(lambda: [database.scrub() for _ in range(5)])
        assert write_together(database) == [None] * WRITERS
        scrubs.result()
    assert kept(database) == list(range(WRITERS))
