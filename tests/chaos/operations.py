"""What a process does to the files of one folder, counted; at the n-th operation it fails, or dies."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

Fate = Literal["counts", "fails", "full", "dies", "tears"]
"""Nothing happens; that operation fails; it and all later ones fail; the process ends before it; or in the middle."""
DEAD = 77
CALLS = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate", "fsync")
CREATING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Operations:
    """Opening for writing, write, flush, truncate, fsync, rename, remove, mkdir: whatever changes a file."""

    def __init__(self, folder: Path, at: int = 0, fate: Fate = "counts") -> None:
        self.folder, self.at, self.fate = str(folder), at, fate
        self.count = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            patch.setattr(os, name, self._counted(getattr(os, name)))
        opened, os_open = io.open, os.open

        def open_file(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+") or not self._concerns(file):
                return opened(file, mode, *more, **named)
            self.happens()
            return File(opened(file, mode, *more, **named), self)

        def open_descriptor(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & CREATING and self._concerns(path):
                self.happens()
            return os_open(path, flags, *more, **named)

        patch.setattr(io, "open", open_file)
        patch.setattr(builtins, "open", open_file)
        patch.setattr(os, "open", open_descriptor)

    def happens(self, half: Callable[[], Any] = lambda: None) -> None:
        """One operation; `half` does the first half of it."""
        self.count += 1
        if not self.at or self.count < self.at or (self.count > self.at and self.fate != "full"):
            return
        if self.fate in ("dies", "tears"):
            if self.fate == "tears":
                half()
            os._exit(DEAD)
        if self.fate in ("fails", "full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self._concerns(args[0]):
                self.happens()
            return function(*args, **named)

        return call

    def _concerns(self, path: Any) -> bool:
        if isinstance(path, int):
            return True
        return str(os.fspath(path)).startswith(self.folder)


class File:
    """A file whose changes are counted."""

    def __init__(self, file: Any, operations: Operations) -> None:
        self._file, self._operations = file, operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def write(self, data: Any) -> Any:
        self._operations.happens(lambda: (self._file.write(data[: len(data) // 2]), self._file.flush()))
        return self._file.write(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._operations.happens()
        self._file.flush()

    def truncate(self, *size: int) -> Any:
        self._operations.happens()
        return self._file.truncate(*size)
