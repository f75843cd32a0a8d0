from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.errors import BadInput, MissingExtra
from prb.text.encoders import ENCODERS, CachedEncoder, Encoder
from prb.weights import here, local_folder


def test_a_text_is_embedded_once_and_a_blank_one_is_a_row_of_zeros() -> None:
    asked: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        asked.extend(texts)
        return [[3.0 * len(text), 4.0 * len(text)] for text in texts]

    encoder = CachedEncoder("counting", 2, embed)
    np.testing.assert_allclose(encoder.encode(["a", " ", "a"]), [[0.6, 0.8], [0, 0], [0.6, 0.8]], rtol=1e-6)
    encoder.encode(["a", "bb", " "])
    assert asked == ["a", "bb"]
    assert encoder.encode([]).shape == (0, 2)


def test_static_vectors_put_paraphrases_closer_than_strangers() -> None:
    assert ENCODERS.make("static").fingerprint.startswith("wordllama-")
    near, like, far = ENCODERS.make("static").encode(
        ["My cat sleeps on the sofa.", "The kitten naps on the couch.", "Interest rates rose in March."]
    )
    assert near @ like > near @ far + 0.2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_static_rows_are_of_length_one_or_zero_and_know_no_neighbours(texts) -> None:
    rows = ENCODERS.make("static").encode(texts)
    for row, text in zip(rows, texts, strict=True):
        assert np.linalg.norm(row) == pytest.approx(1 if text.strip() else 0, abs=1e-5)
        assert np.array_equal(ENCODERS.make("static").encode([text])[0], row)


def test_loading_the_vectors_leaves_everybodys_logging_alone() -> None:
    code = "import logging; from prb.text.encoders import ENCODERS; ENCODERS.make('static').encode(['a'])"
    code += "; root = logging.getLogger(); print(root.level, root.handlers)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"{logging.WARNING} []"


# with weights

TEXTS = ["My cat sleeps on the sofa.", "The kitten naps on the couch.", "Interest rates rose again in March."]


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    pytest.importorskip("transformers", reason="needs the torch extra")
    pytest.importorskip("torch", reason="needs the torch extra")
    if not (local_folder("minilm") / "config.json").exists():
        pytest.skip("needs the MiniLM weights: `prb models pull minilm`")
    return ENCODERS.make("minilm")


@pytest.mark.parametrize(
    ("name", "size"),
    [("minilm", 384), *(pytest.param(name, 768, marks=pytest.mark.slow) for name in ("mpnet", "nomic"))],
)
def test_a_paraphrase_is_closer_than_a_stranger_and_long_texts_are_cut(name, size) -> None:
    pytest.importorskip("xllamacpp" if name == "nomic" else "transformers", reason="needs an extra")
    if here(name) == "no":
        pytest.skip(f"needs its weights: `prb models pull {name}`")
    near, like, far, long, longer = ENCODERS.make(name).encode([*TEXTS, "tea " * 4000, "tea " * 6000])
    assert near @ like > near @ far + 0.3
    assert near.shape == (size,)
    assert long @ longer > 0.99
    assert np.linalg.norm([near, like, far, long], axis=1) == pytest.approx(1, abs=1e-5)


def test_a_row_does_not_depend_on_its_neighbours(minilm) -> None:
    together = ENCODERS.make("minilm").encode([*TEXTS, "word " * 300])
    alone = ENCODERS.make("minilm")
    for text, row in zip(TEXTS, together, strict=False):
        assert np.array_equal(alone.encode([text])[0], row)


def test_the_fingerprint_follows_the_content(minilm, tmp_path) -> None:
    original, copy = local_folder("minilm"), tmp_path / "copy"
    shutil.copytree(original, copy)
    assert ENCODERS.make(f"minilm?path={copy}").fingerprint == minilm.fingerprint
    tokenizer = copy / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    changed = ENCODERS.make(f"minilm?path={copy}").fingerprint
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert len({minilm.fingerprint, changed, ENCODERS.make(f"minilm?path={copy}").fingerprint}) == 3


def test_damaged_weights_are_one_line(minilm, tmp_path) -> None:
    shutil.copytree(local_folder("minilm"), tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(BadInput, match=r"cannot load .*copy: "):
        ENCODERS.make(f"minilm?path={tmp_path / 'copy'}")


def test_without_the_extra_the_message_says_how_to_get_it(tmp_path, monkeypatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"the minilm encoder needs the 'torch' extra"):
        ENCODERS.make(f"minilm?path={tmp_path}")
