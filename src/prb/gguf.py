"""GGUF files: their hash, what is in their header, and the same model as safetensors for transformers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prb.errors import PrbError

HEADER = 256 << 20
"""Key-value pairs come first in the file; no vocabulary is larger than this."""


def file_sha256(path: Path) -> str:
    """Remembered in a small file beside it for as long as size and time of change stay the same."""
    note = path.with_name(f"{path.name}.sha256")
    stat = path.stat()
    state = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(note.read_text("utf-8"))
        if known == {**state, "sha256": known["sha256"]}:
            return str(known["sha256"])
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    with contextlib.suppress(OSError):  # a folder that cannot be written to is hashed each time
        fresh = note.with_name(f"{note.name}.{os.getpid()}")
        fresh.write_text(json.dumps({**state, "sha256": sha256}), "utf-8")
        fresh.replace(note)
    return sha256


def has_chat_template(path: Path) -> bool:
    name = b"tokenizer.chat_template"
    key = len(name).to_bytes(8, "little") + name
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(key, 0, HEADER) >= 0


def can_convert() -> bool:
    return all(find_spec(name) for name in ("torch", "transformers", "gguf", "accelerate"))


def convert(path: Path, folder: Path) -> None:
    """Weights in 32 bits (what the quantised ones stand for, exactly), config and tokenizer into a folder."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # bars that no setting turns off
            _convert_model(path, folder)
            _convert_tokenizer(path, folder)
    except Exception as error:
        raise PrbError(f"transformers cannot convert {path.name}: {error}; the GGUF itself stays") from error
    for made in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", made)  # it is written for its owner alone


def _convert_model(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    del read.config.quantization_config
    # a model read from a GGUF refuses to be saved; one of the same kind with its tensors does not
    clean = type(read)(read.config)
    clean.load_state_dict(read.state_dict())
    clean.save_pretrained(folder)


def _convert_tokenizer(path: Path, folder: Path) -> None:
    """The tokenizer as transformers reads it, with what it overlooks: digits of their own, and the first token."""
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers, processors
    from transformers import AutoTokenizer

    fields = GGUFReader(path).fields
    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    inner = tokenizer.backend_tokenizer
    if _value(fields, "tokenizer.ggml.pre") == "smollm":
        digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    if _value(fields, "tokenizer.ggml.add_bos_token"):
        bos = tokenizer.bos_token
        inner.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(folder)


def _value(fields: Any, key: str) -> Any:
    return fields[key].contents() if key in fields else None
