"""Sentence encoders: text in, unit vectors out. `static` needs neither torch nor a download."""

from __future__ import annotations

import logging
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
from prb.weights import file_sha256, local_folder, weights_hash

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]
STATIC_SIZE, MINILM_SIZE = 256, 384


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


class MiniLM:
    """Through plain transformers: mean pooling over tokens, then normalized."""

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils.logging import disable_progress_bar
        except ImportError:
            raise MissingExtra("the minilm encoder", "torch") from None
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self.fingerprint = f"minilm-{weights_hash(folder)}"
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
        except Exception as error:  # damaged files raise whatever their reader meets first
            raise BadInput(f"cannot load {folder}: {first_line(error)}") from None

    def encode(self, texts: Sequence[str]) -> Matrix:
        import torch

        rows = np.zeros((len(texts), MINILM_SIZE), dtype=np.float32)
        with torch.inference_mode():
            for n, text in enumerate(texts):  # one at a time: a row must not depend on how far its neighbors are padded
                if text.strip():
                    tokens = self._tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
                    rows[n] = self._model(**tokens).last_hidden_state[0].mean(dim=0).numpy()
        return unit(rows)


@ENCODERS.register("minilm")
def minilm(path: Path | None = None) -> Encoder:
    """all-MiniLM-L6-v2 (384-d); needs the torch extra and `prb models pull minilm`, or path=FOLDER."""
    folder = path or local_folder("minilm")
    if not (folder / "config.json").exists():
        raise BadInput(f"no MiniLM weights in {folder}; get them with `prb models pull minilm`")
    return _loaded(folder, weights_hash(folder))


@cache
def _loaded(folder: Path, content: str) -> Encoder:  # noqa: ARG001 - other content at the same path is another model
    """Loaded once: several models of a run may use the same weights."""
    return CachedEncoder(MiniLM(folder))
