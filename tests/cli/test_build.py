from __future__ import annotations

import orjson
import pytest

from prb.cli import run
from tests.building.author import make_record


@pytest.fixture
def source(write_jsonl) -> str:
    return str(write_jsonl([make_record(1), make_record(2)], "records.jsonl"))


def test_a_dry_run_prints_calls_and_dollars_and_writes_nothing(source, tmp_path, capsys) -> None:
    llm = "openai/gpt-5?usd_in=1&usd_out=10"
    assert run(["build", "--input", source, "--llm", llm, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "2 records" in said
    assert ["answer", "8"] in [line.split()[:2] for line in said.splitlines()]
    assert not (tmp_path / "out").exists()


def test_a_model_that_says_nonsense_ends_with_rejects_and_their_gate(source, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    assert run(["build", "--input", source, "--llm", "scripted/no", "--out", str(out), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "0 rows of 0 users" in said
    assert "2 rejected: rubric 2" in said
    assert orjson.loads((out / "rejects.jsonl").read_bytes().splitlines()[0])["reason"].startswith('no rubric: "no"')


def test_json_prints_the_card(source, tmp_path, capsys) -> None:
    run(["build", "--input", source, "--llm", "scripted/no", "--out", str(tmp_path / "out"), "--quiet", "--json"])
    assert orjson.loads(capsys.readouterr().out)["counts"]["rejected_by_gate"] == {"rubric": 2}


BAD = {
    "no such file": (["--input", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
    "no such gate": (["--gate", "lenght=off"], "did you mean 'length'?"),
    "no such back end": (["--llm", "opnai/x"], "did you mean 'openai'?"),
    "prices that are none": (["--llm", "openai/x?usd_in=nan", "--dry-run"], "usd_in='nan'"),
    "no such back end in a dry run": (["--llm", "opnai/x", "--dry-run"], "did you mean 'openai'?"),
    "a lampqa folder that is none": (["--input", "lampqa:nowhere"], "nowhere does not exist"),
}


@pytest.mark.parametrize(("flags", "what"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_leaves_nothing(source, tmp_path, capsys, flags, what) -> None:
    given = ["--input", source, "--llm", "scripted/no", "--out", str(tmp_path / "out")]
    assert run(["build", *given, *flags]) == 2
    assert what in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
