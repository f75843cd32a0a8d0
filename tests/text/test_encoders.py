from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.errors import BadInput, MissingExtra, UnknownName
from prb.text.encoders import ENCODERS, CachedEncoder, Encoder, Matrix, unit
from prb.weights import here, local_folder


class Counting:
    """Encodes a text as its length, and notes what it was asked for."""

    fingerprint = "counting"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> Matrix:
        self.asked += texts
        return np.array([[len(text), 1] for text in texts], dtype=np.float32).reshape(len(texts), 2)


def test_unit_rows_have_length_one_and_zero_rows_stay() -> None:
    rows = unit(np.array([[3, 4], [0, 0], [0, -2]], dtype=np.float32))
    assert rows.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0], [0, -1]]
    assert rows.dtype == np.float32


def test_a_text_is_encoded_once() -> None:
    inner = Counting()
    encoder = CachedEncoder(inner)
    first = encoder.encode(["a", "bb", "a"])
    second = encoder.encode(["bb", "ccc"])
    assert inner.asked == ["a", "bb", "ccc"]
    assert first[:, 0].tolist() == [1, 2, 1]
    assert second[:, 0].tolist() == [2, 3]
    assert encoder.fingerprint == inner.fingerprint


def test_memory_is_bounded_by_dropping_the_oldest() -> None:
    inner = Counting()
    encoder = CachedEncoder(inner, capacity=2)
    assert encoder.encode(["a", "bb", "ccc", "dddd"])[:, 0].tolist() == [1, 2, 3, 4]
    encoder.encode(["ccc", "dddd"])
    assert len(inner.asked) == 4
    encoder.encode(["a"])
    assert inner.asked == ["a", "bb", "ccc", "dddd", "a"]


def test_no_texts_give_no_rows() -> None:
    assert CachedEncoder(Counting()).encode([]).shape == (0, 2)
    assert ENCODERS.make("static").encode([]).shape == (0, 256)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("statics", "no encoder named 'statics'; did you mean 'static'"),
        ("minilm?pat=x", "no option of encoder 'minilm' named 'pat'; did you mean 'path'"),
    ],
)
def test_an_unknown_encoder_or_option_brings_the_nearest_one(spec: str, says: str) -> None:
    with pytest.raises(UnknownName, match=says):
        ENCODERS.make(spec)


def test_knowing_the_encoders_loads_no_torch() -> None:
    code = "import sys; from prb.text.encoders import ENCODERS; list(ENCODERS); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_static_vectors_put_paraphrases_closer_than_strangers() -> None:
    assert ENCODERS.make("static").fingerprint.startswith("wordllama-")
    near, like, far = ENCODERS.make("static").encode(
        ["My cat sleeps on the sofa.", "The kitten naps on the couch.", "Interest rates rose in March."]
    )
    assert near @ like > near @ far + 0.2


@pytest.mark.parametrize("text", ["", "  \n", "\u00a0"])
def test_a_text_without_words_is_a_row_of_zeros(text: str) -> None:
    rows = ENCODERS.make("static").encode([text, "tea"])
    assert not rows[0].any()
    assert np.linalg.norm(rows[1]) == pytest.approx(1, abs=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_static_rows_are_of_length_one_or_zero_and_know_no_neighbours(texts: list[str]) -> None:
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
def test_a_paraphrase_is_closer_than_a_stranger_and_long_texts_are_cut(name: str, size: int) -> None:
    pytest.importorskip("xllamacpp" if name == "nomic" else "transformers", reason="needs an extra")
    if here(name) == "no":
        pytest.skip(f"needs its weights: `prb models pull {name}`")
    near, like, far, long, longer = ENCODERS.make(name).encode([*TEXTS, "tea " * 4000, "tea " * 6000])
    assert near @ like > near @ far + 0.3
    assert near.shape == (size,)
    assert long @ longer > 0.99
    assert np.linalg.norm([near, like, far, long], axis=1) == pytest.approx(1, abs=1e-5)


def test_a_row_does_not_depend_on_its_neighbours(minilm: Encoder) -> None:
    together = ENCODERS.make("minilm").encode([*TEXTS, "word " * 300])
    alone = ENCODERS.make("minilm")
    for text, row in zip(TEXTS, together, strict=False):
        assert np.array_equal(alone.encode([text])[0], row)


def test_texts_without_words_are_rows_of_zeros_and_no_texts_no_rows(minilm: Encoder) -> None:
    assert not minilm.encode(["  "]).any()
    assert minilm.encode([]).shape == (0, 384)


def test_the_fingerprint_follows_the_content(minilm: Encoder, tmp_path: Path) -> None:
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


def test_damaged_weights_are_one_line(minilm: Encoder, tmp_path: Path) -> None:
    shutil.copytree(local_folder("minilm"), tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(BadInput, match=r"cannot load .*copy: "):
        ENCODERS.make(f"minilm?path={tmp_path / 'copy'}")


def test_missing_weights_are_named_with_the_command_that_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRB_CACHE", str(tmp_path))
    with pytest.raises(BadInput, match=r"no minilm weights in .*minilm; get them with `prb models pull minilm`"):
        ENCODERS.make("minilm")
    with pytest.raises(BadInput, match=r"no minilm weights in .*elsewhere"):
        ENCODERS.make(f"minilm?path={tmp_path / 'elsewhere'}")


def test_without_the_extra_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"the minilm encoder needs the 'torch' extra"):
        ENCODERS.make(f"minilm?path={tmp_path}")
