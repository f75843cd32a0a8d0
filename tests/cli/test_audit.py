"""`prb audit`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from tests.cli.conftest import Prb
from tests.evaluation.test_audit import row
from tests.runs import names

Write = Callable[..., Path]


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl([row(n) for n in range(25)])


def test_an_audit_prints_its_tables_and_its_verdict_and_leaves_its_files(prb: Prb, data: Path, tmp_path: Path) -> None:
    said = prb("audit", data, "--out", tmp_path / "out", "--quiet")
    assert (said.code, said.err) == (0, "")
    for text in ("floor: length", "user-blind learner: question and answer", "reading the rubric", "weekly", "100.0"):
        assert text in said.out
    assert "user-blind learner reaches 100.0 %" in said.out
    assert names(tmp_path / "out") == ["audit.json", "audit.svg", "ceiling", "floors"]
    drawn = [node.text for node in Xml.parse(tmp_path / "out" / "audit.svg").iter() if node.tag.endswith("}text")]
    assert set(drawn) >= {"floor: lexical", "reading the rubric: aspect-match", "100.0"}


def test_json_is_the_audit_and_nothing_else(prb: Prb, data: Path, tmp_path: Path) -> None:
    found = prb("audit", data, "--out", tmp_path / "out", "--json", "--quiet").json
    assert found["blind"]["answer"]["value"] == 1.0
    assert found["dataset"]["rows"] == 25


def test_without_an_out_the_folder_is_named_after_the_set(
    prb: Prb, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = prb("audit", data)
    assert (said.code, "no audit.svg" in said.err) == (0, True)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("audit-set-jsonl-")


def test_a_set_without_rubric_has_no_ceiling_row(prb: Prb, write_jsonl: Write, tmp_path: Path) -> None:
    data = write_jsonl([row(n, rubric_aspects=[]) for n in range(12)])
    said = prb("audit", data, "--out", tmp_path / "out", "--quiet")
    assert said.code == 0
    assert "reading the rubric" not in said.out
    assert "no rubric to read" in said.out


def test_bad_input_ends_with_one_line(prb: Prb, tmp_path: Path) -> None:
    said = prb("audit", tmp_path / "nowhere.jsonl", "--out", tmp_path / "out", "--quiet")
    assert (said.code, said.out) == (2, "")
    assert "does not exist" in said.err
    assert not (tmp_path / "out").exists()


def test_a_set_may_be_given_as_a_flag_as_with_other_verbs(prb: Prb, data: Path, tmp_path: Path) -> None:
    said = prb("audit", "--dataset", data, "--out", tmp_path / "audit", "--json", "--quiet")
    assert said.json["dataset"]["name"] == str(data)


def test_a_ceiling_that_fails_is_told_and_exits_1(prb: Prb, data: Path, tmp_path: Path) -> None:
    said = prb("audit", data, "--ceiling", "scripted?fail=busy", "--out", tmp_path / "out", "--quiet")
    assert said.code == 1
    assert "could read no rubric" in said.out
    assert "failed (" in said.err
    assert "× busy)" in said.err
