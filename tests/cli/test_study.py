"""`prb study …` as a newcomer types it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Prb
from tests.conftest import make_row


@pytest.fixture
def data(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl([make_row(n) for n in range(1, 7)])


def test_a_study_is_made_exported_and_judged(prb: Prb, data: Path, tmp_path: Path) -> None:
    study = tmp_path / "s.db"
    said = prb("study", "new", "--dataset", data, "--annotators", 3, "--overlap", 2, "--out", study)
    assert said.code == 0
    assert "6 items, 12 judgments by 3 annotators" in said.out
    assert len(set(re.findall(r"/join/[\w-]{43}", said.out))) == 3
    assert re.search(r"admin password: \S{16}\n", said.out)
    assert prb("study", "export", study, "--out", tmp_path / "out", "--json").json == {"judgements.jsonl": 0}
    said = prb("study", "agree", study, "--out", tmp_path / "verdict.json")
    assert (said.code, said.out.count("✗")) == (0, 4)
    assert (tmp_path / "verdict.json").exists()
    said = prb("study", "agree", study, "--require", "parity,preference")
    assert said.code == 1
    assert said.err.startswith("prb: parity does not hold: Nothing has been rated yet")


def test_json_is_all_that_is_printed(prb: Prb, data: Path, tmp_path: Path) -> None:
    words = ("--dataset", data, "--out", tmp_path / "s.db", "--url", "https://study.example.org/", "--json")
    assert prb("study", "new", *words).json["links"]["Annotator 1"].startswith("https://study.example.org/join/")
    assert prb("study", "agree", tmp_path / "s.db", "--json").json["verdicts"]["parity"] is False


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://127.0.0.1:8600", ""),
        ("http://localhost:9000/", " --port 9000"),
        ("https://study.example.org", " --url https://study.example.org"),
        ("http://10.0.0.7:9000", " --url http://10.0.0.7:9000"),
    ],
)
def test_the_next_command_serves_what_the_links_say(
    prb: Prb, data: Path, tmp_path: Path, url: str, options: str
) -> None:
    out = prb("study", "new", "--dataset", data, "--out", tmp_path / "s.db", "--url", url).out
    assert out.splitlines()[-1] == f"next: prb study serve {tmp_path / 's.db'}{options}"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("new", "--overlap", "9"), "--overlap 9 needs at least 9 annotators"),
        (("serve", "absent.db"), "absent.db does not exist"),
        (("export", "absent.db"), "absent.db does not exist"),
        (("agree", "absent.db", "--require", "quality"), "no requirement named 'quality'"),
        (("serv",), "did you mean 'serve'?"),
    ],
)
def test_wrong_input_ends_with_one_line_and_no_file(
    prb: Prb, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = ("--dataset", data) if words[0] == "new" else ()
    said = prb("study", *words, *extra)
    assert said.code == 2
    assert error in said.err
    assert said.err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".db"] == []


def test_a_server_serves_until_ctrl_c_and_a_taken_port_is_said(prb: Prb, data: Path, tmp_path: Path) -> None:
    prb("study", "new", "--dataset", data, "--out", tmp_path / "s.db")
    command = [sys.executable, "-m", "prb", "study", "serve", str(tmp_path / "s.db"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        address = server.stdout.readline().split()[1]
        with urllib.request.urlopen(address) as reply:
            assert reply.status == 200
        taken = prb("study", "serve", tmp_path / "s.db", "--port", address.rpartition(":")[2])
        assert (taken.code, "cannot listen on" in taken.err) == (2, True)
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=30)
    assert (server.returncode, err) == (0, "")
    assert "everything that was saved is kept" in out
    assert not (tmp_path / "s.db-wal").exists()  # closed properly: one file again
