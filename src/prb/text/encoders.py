"""Sentence encoders: text in, unit vectors out. `static` needs neither torch nor a download."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from prb.cache import Memo
from prb.errors import BadInput, MissingExtra, first_line
from prb.hashing import digest
from prb.registry import Registry
from prb.weights import file_sha256, local_folder, resolve_gguf, weights_hash

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]


class Encoder(Protocol):
    fingerprint: str

    def encode(self, texts: Sequence[str]) -> Matrix:
        """One unit row per text, which depends on that text alone; a text without any known word has a row of zeros."""
        ...


ENCODERS: Registry[Encoder] = Registry("encoder", package="prb.text", group="prb.encoders")


class CachedEncoder:
    """Embeds each distinct text once: posts and questions recur many times in a run.

    `embed` makes a vector for each of some texts, of any length; it is not asked about blank ones.
    """

    def __init__(self, fingerprint: str, size: int, embed: Callable[[Sequence[str]], Any]) -> None:
        self.fingerprint = fingerprint
        self._size, self._embed = size, embed
        self._memo: Memo[Vector] = Memo(capacity=50_000)

    def encode(self, texts: Sequence[str]) -> Matrix:
        rows = cast(list[Vector], self._memo.map(self._rows, texts))
        return np.stack(rows) if rows else np.zeros((0, self._size), dtype=np.float32)

    def _rows(self, texts: Sequence[str]) -> Matrix:
        rows = np.zeros((len(texts), self._size), dtype=np.float32)
        filled = [n for n, text in enumerate(texts) if text.strip()]
        if filled:
            rows[filled] = self._embed([texts[n] for n in filled])
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(norms > 0, norms, 1), dtype=np.float32)


@ENCODERS.register("static")
@cache
def static() -> Encoder:
    """Averaged static word vectors (wordllama, 256-d): instant, offline, no torch."""
    spec = find_spec("wordllama")
    assert spec is not None, "wordllama is a dependency"
    assert spec.origin is not None, "it has an __init__.py"
    folder = Path(spec.origin).parent
    # a release of the package may leave both as they are
    files = ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json")
    content = digest(*(file_sha256(folder / name) for name in files)).hex()[:16]

    @cache
    def vectors() -> Any:
        root = logging.getLogger()
        level, handlers = root.level, root.handlers[:]
        import wordllama

        # importing it turns on INFO logging for all libraries, some of which then log every request
        root.level, root.handlers = level, handlers
        # by default it searches for the weights beside the package instead of inside it
        return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)

    return CachedEncoder(f"wordllama-{content}", 256, lambda texts: vectors().embed(texts, norm=False, batch_size=1))


@ENCODERS.register("minilm")
def minilm(path: Path | None = None) -> Encoder:
    """all-MiniLM-L6-v2 (384-d); needs the torch extra and `prb models pull minilm`, or path=FOLDER."""
    return _pulled("minilm", path, longest=256)


@ENCODERS.register("mpnet")
def mpnet(path: Path | None = None) -> Encoder:
    """all-mpnet-base-v2 (768-d); needs the torch extra and `prb models pull mpnet`, or path=FOLDER."""
    return _pulled("mpnet", path, longest=384)


def _pulled(name: str, path: Path | None, longest: int) -> Encoder:
    folder = path or local_folder(name)
    if not (folder / "config.json").exists():
        raise BadInput(f"no {name} weights in {folder}; get them with `prb models pull {name}`")
    return _loaded(name, folder, longest, weights_hash(folder))


@cache
def _loaded(name: str, folder: Path, longest: int, content: str) -> Encoder:
    """Through plain transformers: mean pooling over tokens. Loaded once per `content`, the hash of its files: several
    models of a run may use the same weights."""
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise MissingExtra(f"the {name} encoder", "torch") from None
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    except Exception as error:  # damaged files raise whatever their reader meets first
        raise BadInput(f"cannot load {folder}: {first_line(error)}") from None

    def embed(texts: Sequence[str]) -> list[Vector]:
        """One at a time: a row must not depend on how far its neighbors are padded."""
        rows = []
        with torch.inference_mode():
            for text in texts:
                tokens = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
                rows.append(model(**tokens).last_hidden_state[0].mean(dim=0).numpy())
        return rows

    return CachedEncoder(f"{name}-{content}", model.config.hidden_size, embed)


@ENCODERS.register("nomic")
@cache
def nomic() -> Encoder:
    """nomic-embed-text-v1.5 (768-d, up to 2,048 tokens); needs the llamacpp extra and `prb models pull nomic`."""
    path = resolve_gguf("nomic")
    try:
        import xllamacpp
    except ImportError:
        raise MissingExtra("the nomic encoder", "llamacpp") from None
    params: Any = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.embedding, params.pooling_type = True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.n_ctx = params.n_batch = params.n_ubatch = 2048
    params.n_parallel = params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup, params.verbosity = False, -1
    params.api_keys = [secrets.token_hex(32)]  # it also listens on a local port, which nobody else should use
    server: Any = xllamacpp.Server(params)

    def row(text: str) -> list[float]:
        # every text gets the prefix of documents, so that likeness is symmetric
        reply = server.handle_embeddings({"input": f"search_document: {text}"})
        if "error" in reply:  # too long: there is no other way to count its tokens
            return row(text[: len(text) * 3 // 4])
        return cast(list[float], reply["data"][0]["embedding"])

    return CachedEncoder(f"nomic-{file_sha256(path)[:16]}", 768, lambda texts: list(map(row, texts)))
