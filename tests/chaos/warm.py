"""Imported once by the process that jobs are forked from: three jobs import all that any of them needs."""

import tempfile
from pathlib import Path

from tests.chaos.jobs import JOBS

with tempfile.TemporaryDirectory() as folder:
    for verb in ("evaluate", "build", "audit"):
        JOBS[verb](Path(folder), Path(folder) / verb)
