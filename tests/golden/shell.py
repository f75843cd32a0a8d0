"""`prb …` in a folder of its own, and the files it leaves there as plain JSON values."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from prb.cli import run

Json = Any
ROOT = Path(__file__).resolve().parents[2]
CLOCK = {"seconds", "at", "created", "exported", "crc", "digest", "digests"}
"""Fields that hold a duration or a moment, or a checksum of such fields or of floats of this machine."""


class Reply(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        return json.loads(self.out)


class Shell:
    """A temporary working folder; commands use relative paths, so its name appears in no result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: object) -> Reply:
        """The exit code and the output of a command, whatever it ends with."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = run([str(word) for word in words])
            except SystemExit as exit_:  # the parser of flags ends the process itself
                code = exit_.code if isinstance(exit_.code, int) else 1
        return Reply(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))

    def ok(self, *words: object) -> Reply:
        """A command that has to succeed."""
        reply = self(*words)
        assert reply.code == 0, f"prb {' '.join(map(str, words))}: exit {reply.code}\n{reply.err}"
        return reply

    def write_rows(self, name: str, rows: Iterable[Json]) -> str:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (self.folder / name).write_text("".join(lines), "utf-8")
        return name

    def read(self, name: str) -> Json:
        """A JSON or JSONL file without the fields of the clock."""
        text = (self.folder / name).read_text("utf-8")
        lines = name.endswith("l")
        return without_clock([json.loads(line) for line in text.splitlines()] if lines else json.loads(text))

    def files(self, folder: str, *names: str) -> Json:
        """The content of the named files, and the names of all files in the folder."""
        return {"files": self.names(folder), **{name: self.read(f"{folder}/{name}") for name in names}}

    def names(self, folder: str) -> list[str]:
        root = self.folder / folder
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def sha256(self, name: str) -> str:
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()


@contextlib.contextmanager
def opened_shell() -> Iterator[Shell]:
    """A shell with an empty cache of model outputs and an environment that does not depend on the caller's."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        settings = {"PRB_CACHE": f"{folder}/cache", "COLUMNS": "1000", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
        with mock.patch.dict(os.environ, settings):
            for name in ("FORCE_COLOR", "OPENAI_API_KEY", "OPENAI_BASE_URL", "PRB_SERVE_TOKEN"):
                os.environ.pop(name, None)
            yield Shell(work)


def without_clock(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCK}
    return [without_clock(item) for item in value] if isinstance(value, list) else value
