"""The command itself: help, version, unknown verbs, exit codes, and a reader that goes away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prb import __version__
from prb.cli import SETTINGS, VERBS, commands_of, main
from tests.cli.conftest import Prb

FLAGS = 237


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_a_verb_it_says_what_there_is(words: list[str], prb: Prb) -> None:
    said = prb(*words)
    assert (said.code, said.err) == (0, "")
    assert [verb for verb in VERBS if f"  {verb} " not in said.out] == []


def test_the_version_is_the_packages(prb: Prb) -> None:
    assert prb("--version").out == f"prb {__version__}\n"


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        ("evalute", "prb: no verb named 'evalute'; did you mean 'evaluate'?\n"),
        ("reprot", "prb: no verb named 'reprot'; did you mean 'report'?\n"),
        ("xyzzy", "prb: no verb named 'xyzzy'; `prb --help` lists them\n"),
    ],
)
def test_an_unknown_verb_is_answered_with_the_nearest(verb: str, says: str, prb: Prb) -> None:
    assert prb(verb) == (2, "", says)


@pytest.mark.parametrize("verb", ["data", "models", "cache", "study"])
def test_verbs_of_verbs_are_listed_and_checked(verb: str, prb: Prb) -> None:
    assert (prb(verb).code, f"prb {verb} needs one of: " in prb(verb).err) == (2, True)
    assert (prb(verb, "--help").code, prb(verb, "--help").out.startswith(f"usage: prb {verb} {{")) == (0, True)
    assert f"no command of prb {verb} named 'xyzzy'; there are: " in prb(verb, "xyzzy").err
    listed = prb(verb, "--help").out
    assert all(re.search(rf"^  {command} +[A-Z]", listed, re.M) for command in commands_of(verb))


def test_there_are_not_more_flags_than_anybody_can_learn(prb: Prb) -> None:
    """A bound on all commands together: what is added must replace something, or go into a spec."""
    commands = [name for name in SETTINGS if name != "train"] + ["train light", "train dpo"]
    flags = {name: len(re.findall(r"^  --[a-z]", prb(*name.split(), "--help-all").out, re.M)) for name in commands}
    assert sum(flags.values()) <= FLAGS, flags
    assert len(re.findall(r"^  --[a-z]", prb("evaluate", "--help").out, re.M)) <= 12


def test_main_exits_with_the_code_of_the_verb() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["evalute"])
    assert caught.value.code == 2


@pytest.mark.parametrize("words", [["models", "list"], ["models", "list", "--json"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(words: list[str]) -> None:
    command = [sys.executable, "-m", "prb", *words]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.close()
    _, err = writer.communicate()
    assert (writer.returncode, err) == (0, b"")


def test_a_terminal_that_knows_only_ascii_gets_a_table_without_a_traceback() -> None:
    command = [sys.executable, "-m", "prb", "data", "show", "c01-q1-amparo"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert b"\\u" in done.stdout


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--dataset", LONG),
        ("evaluate", "--config", LONG),
        ("evaluate", "--model", f"personal?path={LONG}"),
        ("report", ".", "--out", LONG),
        ("correlate", LONG),
        ("data", "convert", "mirror", f"{LONG}/x.parquet"),
        ("study", "agree", f"{LONG}.jsonl"),
    ],
)
def test_a_name_that_is_too_long_is_one_line_whoever_gets_it(words: tuple[str, ...], prb: Prb, tmp_path: Path) -> None:
    said = prb(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines()[-1].startswith("prb: ")
    assert said.err.splitlines()[-1].endswith("File name too long")


def test_a_file_that_cannot_be_used_is_named(prb: Prb, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "there.json")

    monkeypatch.setattr("prb.cli.run_verb", refuse)
    said = prb("compare", "a", "b")
    assert (said.code, said.err) == (1, "prb: there.json: Permission denied\n")


INTERRUPTED = """
import os, signal, time
from prb import cli

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

def turned_into_an_error(args):
    try:
        interrupt()
    except KeyboardInterrupt:
        raise ValueError("Error building a validator")

def twice(args):
    try:
        interrupt()
    finally:
        interrupt()

cli._dispatch = {how}
cli.main([])
"""


@pytest.mark.parametrize("how", ["turned_into_an_error", "twice"])
def test_an_interrupt_does_not_wait_and_is_no_traceback(how: str) -> None:
    code = INTERRUPTED.format(how=how)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50)
    assert (said.returncode, said.stderr) == (130, "prb: interrupted; run the same command again to resume\n")


ODD = {"COLUMNS": "41", "TERM": "dumb", "NO_COLOR": "1", "LC_ALL": "C", "TZ": "Asia/Kathmandu"}


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--model", "length", "--limit", "4", "--out", "run"),
        ("models", "list"),
    ],
    ids=" ".join,
)
def test_output_depends_on_no_terminal_locale_time_zone_or_length_of_a_path(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    outputs = set()
    for folder, environment in ((tmp_path / "short", {}), (tmp_path / "-".join(["long"] * 40), ODD)):
        folder.mkdir()
        command = [sys.executable, "-m", "prb", *words]
        given = {**os.environ, **environment, "TMPDIR": str(folder)}
        done = subprocess.run(command, capture_output=True, check=False, cwd=folder, env=given)
        outputs.add((done.returncode, done.stdout.decode(), done.stderr.decode()))
    assert len(outputs) == 1
