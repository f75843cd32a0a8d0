"""Sentence encoders: text in, unit vectors out. `static` needs neither torch nor a download."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
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
STATIC_SIZE = 256


class Encoder(Protocol):
    fingerprint: str

    def encode(self, texts: Sequence[str]) -> Matrix:
        """One unit row per text, which depends on that text alone; a text without any known word has a row of zeros."""
        ...


ENCODERS: Registry[Encoder] = Registry("encoder", package="prb.text", group="prb.encoders")


def unit(rows: Matrix) -> Matrix:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1), dtype=np.float32)


class CachedEncoder:
    """Encodes each distinct text once: posts and questions recur many times in a run."""

    def __init__(self, inner: Encoder, capacity: int = 50_000) -> None:
        self.fingerprint = inner.fingerprint
        self._inner = inner
        self._memo: Memo[Vector] = Memo(capacity=capacity)

    def encode(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return self._inner.encode([])
        return np.stack(cast(list[Vector], self._memo.map(self._inner.encode, texts)))


class Static:
    """Static word vectors carried inside the wheel of `wordllama`."""

    def __init__(self) -> None:
        self.fingerprint = f"wordllama-{_vectors_hash()}"

    def encode(self, texts: Sequence[str]) -> Matrix:
        rows = np.zeros((len(texts), STATIC_SIZE), dtype=np.float32)
        filled = [i for i, text in enumerate(texts) if text.strip()]
        if filled:
            rows[filled] = _word_vectors().embed([texts[i] for i in filled], norm=False, batch_size=1)
        return unit(rows)


@cache
def _word_vectors() -> Any:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    import wordllama

    # importing it turns on INFO logging for all libraries, some of which then log every request
    root.level, root.handlers = level, handlers
    # by default it searches for the weights beside the package instead of inside it
    return wordllama.WordLlama.load(cache_dir=_wordllama_folder(), disable_download=True)


@cache
def _vectors_hash() -> str:
    """Of vectors and tokenizer; a release of the package may leave both as they are."""
    files = ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json")
    return digest(*(file_sha256(_wordllama_folder() / name) for name in files)).hex()[:16]


def _wordllama_folder() -> Path:
    spec = find_spec("wordllama")
    assert spec is not None, "wordllama is a dependency"
    assert spec.origin is not None, "it has an __init__.py"
    return Path(spec.origin).parent


@ENCODERS.register("static")
def static() -> Encoder:
    """Averaged static word vectors (wordllama, 256-d): instant, offline, no torch."""
    return CachedEncoder(Static())


class SentenceEncoder:
    """Through plain transformers: mean pooling over tokens, then normalized."""

    def __init__(self, name: str, folder: Path, longest: int) -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils.logging import disable_progress_bar
        except ImportError:
            raise MissingExtra(f"the {name} encoder", "torch") from None
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self.fingerprint = f"{name}-{weights_hash(folder)}"
        self._longest = longest
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
        except Exception as error:  # damaged files raise whatever their reader meets first
            raise BadInput(f"cannot load {folder}: {first_line(error)}") from None

    def encode(self, texts: Sequence[str]) -> Matrix:
        import torch

        rows = np.zeros((len(texts), self._model.config.hidden_size), dtype=np.float32)
        with torch.inference_mode():
            for n, text in enumerate(texts):  # one at a time: a row must not depend on how far its neighbors are padded
                if text.strip():
                    tokens = self._tokenizer(text, truncation=True, max_length=self._longest, return_tensors="pt")
                    rows[n] = self._model(**tokens).last_hidden_state[0].mean(dim=0).numpy()
        return unit(rows)


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
def _loaded(name: str, folder: Path, longest: int, content: str) -> Encoder:  # noqa: ARG001 - a file may change
    """Loaded once: several models of a run may use the same weights."""
    return CachedEncoder(SentenceEncoder(name, folder, longest))


class Nomic:
    """Through llama.cpp. Every text gets the prefix of documents, so that likeness is symmetric."""

    size, longest = 768, 2048

    def __init__(self, path: Path) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise MissingExtra("the nomic encoder", "llamacpp") from None
        self.fingerprint = f"nomic-{file_sha256(path)[:16]}"
        params: Any = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.embedding, params.pooling_type = True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        params.n_ctx = params.n_batch = params.n_ubatch = self.longest
        params.n_parallel = params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.warmup, params.verbosity = False, -1
        params.api_keys = [secrets.token_hex(32)]  # it also listens on a local port, which nobody else should use
        self._server: Any = xllamacpp.Server(params)

    def encode(self, texts: Sequence[str]) -> Matrix:
        rows = np.zeros((len(texts), self.size), dtype=np.float32)
        for n, text in enumerate(texts):
            if text.strip():
                rows[n] = self._row(text)
        return unit(rows)

    def _row(self, text: str) -> list[float]:
        reply = self._server.handle_embeddings({"input": f"search_document: {text}"})
        if "error" in reply:  # too long: there is no other way to count its tokens
            return self._row(text[: len(text) * 3 // 4])
        return cast(list[float], reply["data"][0]["embedding"])


@ENCODERS.register("nomic")
@cache
def nomic() -> Encoder:
    """nomic-embed-text-v1.5 (768-d, up to 2,048 tokens); needs the llamacpp extra and `prb models pull nomic`."""
    return CachedEncoder(Nomic(resolve_gguf("nomic")))
