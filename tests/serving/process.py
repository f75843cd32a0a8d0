"""A real server in a process of its own, with the recorder as its model.

python -m tests.serving.process --seconds 0.05 --queue 1024
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Args:
    seconds: float = 0.0
    """How long a batch takes, whatever its size."""
    queue: int = 1024
    batch: int = 256


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str

    def stop(self, signal: int) -> tuple[int, str]:
        """Its exit code and its stderr."""
        self.process.send_signal(signal)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@contextmanager
def running(*words: str) -> Iterator[Running]:
    """Started, listening, and gone afterwards whatever happens."""
    command = [sys.executable, *(words or ("-m", "tests.serving.process"))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            yield Running(process, json.loads(line)["url"])
        finally:
            process.kill()


def main(args: Args) -> None:
    from prb.serving.server import Limits, ServeConfig, serve
    from tests.serving.fakes import Recorder

    serve(
        ServeConfig(model="recorder", port=0),
        model=Recorder(args.seconds, keep=False),
        ready=lambda server: print(json.dumps({"url": server.url}), flush=True),
        limits=Limits(queue=args.queue, batch=args.batch, answers=8, window=0.002),
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
