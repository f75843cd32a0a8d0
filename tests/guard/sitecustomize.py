"""Refuses what a test does outside of the clone, its environment and the temporary folder.

Python imports a module of this name at start-up, so it watches every Python process that a test starts. What it
refuses is also written to a file, since some libraries catch every exception; `tests/conftest.py` looks at it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

CHANGES = {"os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.truncate", "sqlite3.connect"}
LISTS = {"os.listdir", "os.scandir"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def watch(log: str, ours: tuple[str, ...], private: tuple[str, ...], scratch: tuple[str, ...]) -> None:
    """Anything may be done in the folders `ours` and `scratch`, anything may be read but what is in `private`. The
    first list that a path is in counts."""

    def check(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            paths, writes = args[:1], bool(args[2] & WRITING)
        elif event in LISTS or event in CHANGES:
            paths, writes = args[: 2 if event in ("os.rename", "os.link") else 1], event in CHANGES
            paths = args[1:2] if event == "os.symlink" else paths
        else:
            return
        for path in paths:
            if not isinstance(path, (str, bytes, os.PathLike)) or os.fspath(path) in (":memory:", b":memory:", "", b""):
                continue
            place = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are not followed, and pathlib is slow
            if _inside(place, ours) or (not _inside(place, private) and (not writes or _inside(place, scratch))):
                continue
            message = f"{'changed' if writes else 'read'} outside of the clone: {event} {place}"
            with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
                file.write(f"{' '.join(sys.argv)[:200]} {message}\n")
            raise RuntimeError(message)

    sys.addaudithook(check)


def _inside(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


if "PRB_TEST_GUARD" in os.environ:
    _log, *_folders = os.environ["PRB_TEST_GUARD"].split("\n")
    watch(_log, *(tuple(each.split(os.pathsep)) for each in _folders))
