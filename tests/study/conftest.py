"""Small studies, annotators who use them through HTTP, a real PostgreSQL."""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import argon2
import pytest
import sqlalchemy as sa
import uvicorn
from starlette.testclient import TestClient

from prb.study.app import make_app
from prb.study.config import Judgment, NewConfig
from prb.study.database import Database, open_study
from prb.study.design import PRACTICE, NewStudy, new_study
from prb.study.judgments import SCALE, judgments, validate_fields
from prb.study.site import Site
from tests.conftest import make_row, make_twins
from tests.reporting.conftest import axe  # noqa: F401 - a fixture

Row = dict[str, Any]


def reply(step: int) -> dict[str, str]:
    """To every question of a step of a validation: 4 on a scale, else the first option."""
    fields = validate_fields(step)
    return {f.name: "4" if f.options == SCALE else f.options[0].value if f.options else "Because." for f in fields}


BEFORE, AFTER = reply(1), reply(2) | {"prefer": "B"}


CHEAP = partial(argon2.PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
"""Checked in no time: a real hash takes a tenth of a second, hundreds of times."""


class Study:
    """A study in the test's own folder, served in this process."""

    def __init__(self, where: str, made: NewStudy) -> None:
        self.where, self.links, self.password = where, made.links, made.password
        self.database: Database = open_study(where)
        self.app = make_app(Site(self.database), ["testserver"])
        self.tokens = [link.rpartition("/")[2] for link in made.links.values()]

    def person(self, number: int = 0, *, join: bool = True) -> Person:
        person = Person(TestClient(self.app, follow_redirects=False, raise_server_exceptions=True))
        if join:
            person.open(f"/join/{self.tokens[number]}")
            person.send("/join", {"invitation": self.tokens[number]})
        return person

    def at_task(self, number: int = 0, *, agree: bool = False) -> Person:
        """Somebody who has opened what is next for them, and agreed to take part if that is asked."""
        person = self.person(number)
        person.open("/task")
        if agree:
            person.follow("/consent", {"agree": "yes"})
        return person

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The same over a real socket, for a browser; the address."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning", access_log=False))
            thread = Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                thread.join()

    def rows(self, query: sa.Select[Any]) -> list[Any]:
        with self.database.read() as connection:
            return list(connection.execute(query))

    def scalars(self, query: sa.Select[Any]) -> list[Any]:
        return [row[0] for row in self.rows(query)]

    def count(self, table: sa.Table) -> int:
        return int(self.scalars(sa.select(sa.func.count()).select_from(table))[0])

    def judgments(self) -> list[Judgment]:
        with self.database.read() as connection:
            return judgments(connection)

    def admin(self) -> Person:
        person = self.person(join=False)
        assert person.send("/admin/login", {"password": self.password}).status_code == 303
        return person


class Person:
    """What a browser without JavaScript does: open pages, fill in forms, follow where it is sent."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.text = ""
        self.status = 0

    def open(self, path: str) -> str:
        reply = self.client.get(path, follow_redirects=True)
        self.text, self.status = reply.text, reply.status_code
        return self.text

    @property
    def token(self) -> str:
        found = re.search(r'name="token" value="([^"]+)"', self.text)
        return found[1] if found else ""

    @property
    def action(self) -> str:
        """Where the form of the current item goes."""
        found = re.search(r'action="(/task/\d+/\d)"', self.text)
        assert found, self.text[:2000]
        return found[1]

    def send(self, path: str, fields: dict[str, str] | None = None) -> Any:
        """One form, sent once; the answer itself, not where it leads."""
        return self.client.post(path, data={"token": self.token, **(fields or {})})

    def follow(self, path: str, fields: dict[str, str] | None = None) -> str:
        reply = self.send(path, fields)
        if reply.status_code == 303:
            return self.open(reply.headers["location"])
        self.text, self.status = reply.text, reply.status_code
        return self.text

    def undo(self) -> str:
        place = re.search(r'name="from" value="([^"]+)"', self.text)
        return self.follow("/undo", {"from": place[1] if place else ""})

    def judge(self, before: dict[str, str] = BEFORE, after: dict[str, str] = AFTER) -> str:
        self.open("/task")
        self.follow(self.action, before)
        return self.follow(self.action, after)


Make = Callable[..., Study]


@pytest.fixture
def rows() -> list[Row]:
    """Two questions of single users and two mirrored ones: six items."""
    return [make_row(1), make_row(2), *make_twins(3), *make_twins(4)]


@pytest.fixture
def make(
    tmp_path: Path, write_jsonl: Callable[..., Path], rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    made: list[Study] = []
    monkeypatch.setattr("argon2.PasswordHasher", CHEAP)

    def make(data: list[Row] | None = None, *, practice: bool = False, **settings: Any) -> Study:
        monkeypatch.setattr("prb.study.design.PRACTICE", PRACTICE if practice else {})
        given = {"annotators": 3, "overlap": 2, "checks": 1, **settings}
        where = given.pop("out", str(tmp_path / f"s{len(made)}.db"))
        dataset = write_jsonl(rows if data is None else data, name=f"d{len(made)}.jsonl")
        made.append(Study(where, new_study(NewConfig(dataset=str(dataset), out=where, **given))))
        return made[-1]

    yield make
    for study in made:
        study.database.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """A URL of a fresh, empty database of a real server."""
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL tests need pip install pgserver")
    # where tests run as root the server runs as a user of its own, and pytest's folders are closed to others
    folder = Path(tempfile.mkdtemp(prefix="prb-postgres-"))
    folder.chmod(0o755)
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    # it is our server that gets killed, never this one: waiting for the disk would only make the tests slow
    for command in ("alter system set fsync = off", "select pg_reload_conf()"):
        server.psql(command)
    names = iter(range(1000))

    def database() -> str:
        name = f"study{next(names)}"
        server.psql(f"create database {name}")
        return str(server.get_uri(database=name))

    yield database
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
