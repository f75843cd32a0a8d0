"""`prb grade` as a newcomer meets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prb.data.load import load_pairs
from tests.cli.conftest import Prb
from tests.conftest import make_row

Write = Callable[..., Path]
ALWAYS = "llm?llm=scripted/[1, 1, 1]"


@pytest.fixture
def answers(write_jsonl: Write) -> Path:
    pairs = load_pairs("mirror", split="test", limit=4)
    return write_jsonl([{"pair": p.id, "answer": text} for p in pairs for text in p.answers], "answers.jsonl")


def test_answers_are_graded_and_the_grader_says_what_it_is_worth(prb: Prb, answers: Path, tmp_path: Path) -> None:
    said = prb("grade", "--answers", answers, "--out", tmp_path / "run")
    assert said.code == 0
    assert "Graded by embedded. On the 240 rows of mirror's test split" in said.out
    assert f"run: {tmp_path / 'run'}" in said.out
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.name != ".lock") == [
        "config.json",
        "grades.jsonl",
        "replies.jsonl",
        "summary.json",
    ]


def test_a_second_call_grades_nothing_and_prints_the_same(prb: Prb, answers: Path, tmp_path: Path) -> None:
    words = ["grade", "--answers", answers, "--grader", ALWAYS, "--out", tmp_path / "run"]
    first, second = prb(*words), prb(*words)
    assert (first.code, second.out) == (0, first.out)
    assert "resuming: 8 replies are there" in second.err
    assert "To validate it: prb grade --validate" in first.out


def test_json_is_the_summary_and_nothing_else(prb: Prb, answers: Path, tmp_path: Path) -> None:
    said = prb("grade", "--answers", answers, "--grader", ALWAYS, "--json", "--quiet", "--out", tmp_path / "run")
    assert (said.json["score"]["value"], said.json["grader"]["validity"], said.err) == (0.5, None, "")


def test_a_validation_prints_its_table(prb: Prb, write_jsonl: Write, tmp_path: Path) -> None:
    pairs = load_pairs("mirror", split="test", limit=4)
    human = write_jsonl([{"pair": p.id, "answer": p.chosen, "grades": [2, 1, 1]} for p in pairs], "human.jsonl")
    words = ["grade", "--validate", "--limit", "4", "--human", human, "--retest", "--grader", ALWAYS]
    said = prb(*words, "--out", tmp_path / "run", "--quiet")
    assert said.code == 0
    row = next(line.split() for line in said.out.splitlines() if line.strip().startswith("all "))
    assert row == ["all", "50.0", "[0.4,", "99.6]", "4", "4", "0"]  # all tied; two couples say little of the next
    assert "Against human grades, 4 answers: 66.7" in said.out
    assert "Graded again under another seed, 8 answers: 100.0" in said.out


def test_failures_are_shown(prb: Prb, tmp_path: Path) -> None:
    said = prb("grade", "--validate", "--limit", "2", "--grader", "llm?llm=scripted/no", "--out", tmp_path / "run")
    assert (said.code, "Failed: 4 no grades." in said.out) == (1, True)


def test_a_saved_config_repeats_the_run(prb: Prb, answers: Path, tmp_path: Path) -> None:
    prb("grade", "--answers", answers, "--grader", ALWAYS, "--limit", "3", "--out", tmp_path / "one")
    said = prb("grade", "--config", tmp_path / "one" / "config.json", "--out", tmp_path / "two")
    assert said.code == 0
    for name in ("grades.jsonl", "summary.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "either --answers FILE or --validate"),
        (["--answers", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["--validate", "--grader", "embeded"], "no grader named 'embeded'; did you mean 'embedded'?"),
        (["--validate", "--grader", "embedded?encoder=word"], "no encoder named 'word'"),
        (["--validate", "--grader", "llm"], "needs llm=…"),
        (["--validate", "--grader", "llm?llm=gpt"], "is not an llm spec"),
        (["--validate", "--dataset", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["--validate", "--split", "devel"], "no rows in split 'devel'"),
        (["--answers", "."], ". is a folder; give a .jsonl file"),
        (["--validate", "--human", "nobody.jsonl"], "nobody.jsonl does not exist"),
        (["--config", "nothing.json"], "nothing.json does not exist"),
    ],
)
def test_a_wrong_request_exits_2_and_writes_nothing(
    words: list[str], says: str, prb: Prb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    said = prb("grade", *words)
    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert [path.name for path in (tmp_path / "here").rglob("*") if path.is_file()] == []


def test_rows_without_rubrics_are_refused_at_once(prb: Prb, write_jsonl: Write, tmp_path: Path) -> None:
    data = write_jsonl([make_row(1, rubric_aspects=[])])
    said = prb("grade", "--validate", "--dataset", data, "--out", tmp_path / "run")
    assert (said.code, "has a rubric (`rubric_aspects`)" in said.err) == (2, True)
    assert not (tmp_path / "run").exists()
