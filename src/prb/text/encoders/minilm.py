"""all-MiniLM-L6-v2 through plain transformers: mean pooling over tokens, then normalized."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prb.errors import BadInput, MissingExtra
from prb.text.encoders import ENCODERS, CachedEncoder, Encoder, Matrix, unit
from prb.weights import WEIGHTS, local_folder


class MiniLM:
    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils.logging import disable_progress_bar
        except ImportError:
            raise MissingExtra("the minilm encoder", "torch") from None
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self.fingerprint = f"minilm-{WEIGHTS['minilm'].sha256[:12]}"
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()

    def encode(self, texts: Sequence[str]) -> Matrix:
        # one text at a time: a row must not depend on how far its neighbors are padded
        rows = [self._pooled(text) if text.strip() else np.zeros(384, dtype=np.float32) for text in texts]
        return unit(np.stack(rows)) if rows else np.zeros((0, 384), dtype=np.float32)

    def _pooled(self, text: str) -> Matrix:
        import torch

        with torch.inference_mode():
            tokens = self._tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
            hidden: Matrix = self._model(**tokens).last_hidden_state[0].mean(dim=0).numpy()
        return hidden


@ENCODERS.register("minilm")
def minilm(path: Path | None = None) -> Encoder:
    """all-MiniLM-L6-v2 (384-d); needs the torch extra and `prb models pull minilm`, or path=FOLDER."""
    folder = path or local_folder("minilm")
    if not (folder / "config.json").exists():
        raise BadInput(f"no MiniLM weights in {folder}; get them with `prb models pull minilm`")
    return _loaded(folder)


@cache
def _loaded(folder: Path) -> Encoder:
    """Loaded once: several models of a run may use the same weights."""
    return CachedEncoder(MiniLM(folder))
