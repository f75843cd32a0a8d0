"""Tables, snapshots, durability, deletion: on a file and on a real PostgreSQL, which only this module starts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from prb.errors import BadInput, RunConflict
from prb.study.config import ExportConfig, NewConfig
from prb.study.database import ANNOTATOR, METADATA, REPLY, STUDY, open_study
from prb.study.design import new_study
from prb.study.judgments import export
from tests.conftest import make_row
from tests.study.conftest import BEFORE, Make
from tests.study.test_collect import SECRET, WISH, answer, take_part


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "s.db") if request.param == "sqlite" else request.getfixturevalue("postgres")()


def test_a_study_of_another_version_is_refused_in_one_line(make: Make, where: str) -> None:
    study = make(out=where)
    with study.database.write() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '0099'")
    with pytest.raises(BadInput, match="was made by another version of prb"):
        open_study(where)


def test_a_reader_sees_one_moment_while_others_write(make: Make, where: str) -> None:
    study = make(out=where)
    person = study.at_task()
    count = sa.select(sa.func.count()).select_from(REPLY)
    with study.database.read() as reader:
        assert reader.scalar(count) == 0
        assert person.send(person.action, BEFORE).status_code == 303
        assert reader.scalar(count) == 0
    assert study.count(REPLY) == 1


def test_writers_take_turns_and_none_is_turned_away(make: Make, where: str) -> None:
    study = make(out=where)

    def add() -> None:
        for _ in range(10):
            with study.database.write() as connection:
                value = connection.scalar(sa.select(STUDY.c.created).with_for_update())
                connection.execute(sa.update(STUDY).values(created=(value or 0) + 1))

    with study.database.write() as connection:
        connection.execute(sa.update(STUDY).values(created=0.0))
    with ThreadPoolExecutor(6) as pool:
        for turn in [pool.submit(add) for _ in range(6)]:
            turn.result()
    assert study.scalars(sa.select(STUDY.c.created)) == [60]


def test_a_double_click_is_one_vote(make: Make, where: str) -> None:
    study = make(out=where)
    person = study.at_task()
    action = person.action
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: person.send(action, BEFORE).headers["location"], range(8)))
    assert set(replies) == {"/task"}
    assert study.count(REPLY) == 1


def test_delete_my_data_leaves_nothing_anywhere(make: Make, where: str, tmp_path: Path) -> None:
    study = make(kind="collect", out=where)
    person = take_part(study, own=f"Why is it that {SECRET}?")
    answer(person)
    person.undo()
    other = take_part(study, 1, posts=("mine stays", "mine too"))
    pseudonym = study.scalars(sa.select(ANNOTATOR.c.pseudonym).where(ANNOTATOR.c.id == 1))[0]
    assert SECRET in person.open("/data")
    assert "Tick the box first" in person.follow("/data/delete")
    person.open("/data")
    assert "Your data is deleted" in person.follow("/data/delete", {"sure": "yes"})
    dump = "\n".join(repr(row) for table in METADATA.tables.values() for row in study.rows(sa.select(table)))
    for trace in (SECRET, WISH, str(pseudonym)):
        assert trace not in dump
    assert "mine stays" in dump
    if study.database.sqlite:  # not even in pages that are no longer used, or in the log of changes
        files = [p for p in Path(study.where).parent.iterdir() if p.name.startswith(Path(study.where).name)]
        assert all(SECRET.encode() not in p.read_bytes() for p in files)
    assert person.client.get("/task").status_code == 401
    assert study.person(0, join=False).client.get(f"/join/{study.tokens[0]}").status_code == 404
    assert "mine stays" in other.open("/data")
    assert set(export(ExportConfig(study=study.where, out=tmp_path / "out")).values()) == {0}


def test_the_file_is_written_ahead_and_fully_synchronous(make: Make) -> None:
    study = make()
    with study.database.write() as connection:
        for name, value in (("journal_mode", "wal"), ("synchronous", 2), ("secure_delete", 1)):
            assert connection.exec_driver_sql(f"PRAGMA {name}").scalar() == value


def test_a_second_study_in_the_same_place_is_refused(make: Make, where: str, write_jsonl: Callable[..., Path]) -> None:
    make(out=where)
    data = write_jsonl([make_row(1)], name="other.jsonl")
    with pytest.raises(RunConflict, match="already holds a study; choose another --out"):
        new_study(NewConfig(dataset=str(data), out=where, annotators=1, overlap=1))


def test_what_is_no_study_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist; `prb study new"):
        open_study(str(tmp_path / "absent.db"))
    other, text = tmp_path / "other.db", tmp_path / "notes.txt"
    with sqlite3.connect(other) as connection:
        connection.execute("create table mine (x)")
    text.write_text("hello " * 100)
    for path, says in ((other, "is not a study"), (text, "cannot be opened as a study")):
        with pytest.raises(BadInput, match=says):
            open_study(str(path))
    assert text.read_text() == "hello " * 100


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root@localhost/x", "a SQLite file or in PostgreSQL, not in mysql"),
        ("postgresql://user:geheim@host:port:port/x", "is not a database URL"),
        ("postgresql://host:port:port/x?password=geheim", "is not a database URL"),
        ("postgresql://user:geheim@127.0.0.1:1/x", "cannot be opened"),
        ("postgresql://127.0.0.1:1/x?password=geheim", "cannot be opened"),
    ],
)
def test_other_databases_and_broken_addresses_are_refused_without_their_password(url: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as raised:
        open_study(url)
    assert "geheim" not in str(raised.value)


def test_bad_input_leaves_no_file(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    data, out = str(write_jsonl([make_row(1)])), tmp_path / "new.db"
    for wrong in (
        {"overlap": 9},
        {"annotators": 0},
        {"checks": -1},
        {"dataset": str(tmp_path / "none.jsonl")},
        {"consent": tmp_path / "none.txt"},
        {"limit": 0},
    ):
        with pytest.raises(BadInput):
            new_study(NewConfig(**{"dataset": data, "out": str(out), **wrong}))
        assert not out.exists()
    with pytest.raises(BadInput, match="does not exist"):
        new_study(NewConfig(dataset=data, out=str(tmp_path / "no" / "folder.db"), annotators=1, overlap=1))
