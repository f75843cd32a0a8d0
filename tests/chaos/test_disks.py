"""A disk that is full, a folder that may only be read: one line, and the same bytes once there is room again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from prb.errors import PrbError
from tests.chaos.jobs import JOBS, LIGHT, LOCAL, SHARE, contents, times

pytestmark = pytest.mark.chaos
every_verb = pytest.mark.parametrize("verb", LOCAL if SHARE else LIGHT)
ROOM = "64m"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or not mounted("-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(place)):
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def mounted(*options: str) -> bool:
    return subprocess.run(["mount", *options], check=False, capture_output=True).returncode == 0


def refusal(verb: str, data: Path, folder: Path) -> str:
    """One line that names the folder; none if nothing was in the way."""
    said = ""
    try:
        JOBS[verb](data, folder)
    except PrbError as error:
        said = str(error)
    assert "\n" not in said
    assert not said or str(folder) in said
    return said


@every_verb
def test_a_full_disk_is_one_line_and_the_job_is_resumed(verb: str, tmp_path: Path, disk: Path) -> None:
    JOBS[verb](tmp_path, tmp_path / "run")
    expected = contents(tmp_path / "run")
    page = os.sysconf("SC_PAGE_SIZE")
    needed = sum(-(-path.stat().st_size // page) + 1 for path in (tmp_path / "run").rglob("*"))
    most = times(2, 20)
    for size in sorted({1 + n * needed // most for n in range(most)}):
        filling = disk / "filling"
        free = os.statvfs(disk)
        filling.write_bytes(b"x" * (free.f_bavail - size) * free.f_frsize)
        said = refusal(verb, tmp_path, disk / "run")
        filling.unlink()
        assert said or contents(disk / "run") == expected, size
        JOBS[verb](tmp_path, disk / "run")
        assert contents(disk / "run") == expected, size
        shutil.rmtree(disk / "run")


@every_verb
def test_a_folder_that_may_only_be_read_is_named_and_unchanged(verb: str, tmp_path: Path, disk: Path) -> None:
    JOBS[verb](tmp_path, disk / "run")
    before = contents(disk / "run")
    assert mounted("-o", "remount,ro", str(disk))
    assert refusal(verb, tmp_path, disk / "run")
    assert refusal(verb, tmp_path, disk / "other")
    assert contents(disk / "run") == before
