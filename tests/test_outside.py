"""Nothing outside of the clone, its environment and the temporary folder is read or written: not by tests, and not
through a link that somebody left in a run folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from prb import cli
from tests.conftest import OUTSIDE, ROOT, make_row

WRITE = "open(__import__('sys').argv[1], 'w')"


@pytest.mark.parametrize("how", ["here", "in a process"])
def test_a_test_that_writes_outside_is_refused_and_recorded(how):
    place = Path("/var/prb-was-here")
    if how == "here":
        with pytest.raises(RuntimeError, match="changed outside of the clone: open /var/prb-was-here"):
            place.write_text("")
    else:
        done = subprocess.run([sys.executable, "-c", WRITE, place], capture_output=True, text=True, check=False)
        assert "RuntimeError: changed outside of the clone" in done.stderr
    assert "open /var/prb-was-here" in OUTSIDE.read_text()
    OUTSIDE.unlink()
    assert not place.exists()


def test_the_users_own_folder_is_not_even_read():
    _, _, private, _ = os.environ["PRB_TEST_GUARD"].split("\n")
    for home in filter(None, private.split(os.pathsep)):
        with pytest.raises(RuntimeError, match="read outside of the clone"):
            (Path(home) / ".netrc").read_text()
        assert ".netrc" in OUTSIDE.read_text()
        OUTSIDE.unlink()


def test_home_and_caches_are_folders_of_this_test_run():
    for name in ("HOME", "PRB_CACHE", "XDG_RUNTIME_DIR"):
        assert Path(os.environ[name]).is_relative_to(tempfile.gettempdir())
    assert Path.home() == Path(os.environ["HOME"])
    assert ROOT not in Path.home().parents


def test_a_lock_that_links_to_a_users_file_does_not_empty_it(tmp_path, capsys):
    diary, data, folder = tmp_path / "diary.txt", tmp_path / "rows.jsonl", tmp_path / "run"
    diary.write_text("dear diary")
    data.write_text("".join(f"{json.dumps(make_row(n))}\n" for n in range(2)))
    evaluate = ["evaluate", "--model", "length", "--dataset", str(data), "--out", str(folder)]
    assert cli.run(evaluate) == 0
    (folder / ".lock").unlink(missing_ok=True)
    (folder / ".lock").symlink_to(diary)
    capsys.readouterr()
    assert cli.run(evaluate) == 2
    assert diary.read_text() == "dear diary"
    assert "symbolic links" in capsys.readouterr().err
