from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.errors import UnknownName
from prb.text.encoders import ENCODERS, CachedEncoder, Matrix, unit


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


def test_caching_keeps_the_fingerprint() -> None:
    assert CachedEncoder(Counting()).fingerprint == "counting"


def test_the_encoders_are_known_by_name() -> None:
    assert {"static", "minilm"} <= set(ENCODERS)
    with pytest.raises(UnknownName, match=r"no encoder named 'statics'; did you mean 'static'"):
        ENCODERS.make("statics")


def test_knowing_the_encoders_loads_no_torch() -> None:
    code = "import sys; from prb.text.encoders import ENCODERS; list(ENCODERS); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_static_vectors_put_paraphrases_closer_than_strangers() -> None:
    near, like, far = ENCODERS.make("static").encode(
        ["My cat sleeps on the sofa.", "The kitten naps on the couch.", "Interest rates rose in March."]
    )
    assert near @ like > near @ far + 0.2


def test_static_vectors_carry_the_version_they_come_from() -> None:
    assert ENCODERS.make("static").fingerprint.startswith("wordllama-")


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
