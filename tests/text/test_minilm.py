from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from prb.errors import BadInput, MissingExtra, UnknownName
from prb.text.encoders import ENCODERS, Encoder
from prb.weights import here, local_folder

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


def test_a_text_without_words_is_a_row_of_zeros(minilm: Encoder) -> None:
    assert not minilm.encode(["  "]).any()


def test_no_texts_give_no_rows(minilm: Encoder) -> None:
    assert minilm.encode([]).shape == (0, 384)


def test_a_text_longer_than_the_model_reads_is_cut_and_not_refused(minilm: Encoder) -> None:
    row, longer = minilm.encode(["tea " * 400, "tea " * 800])
    assert np.array_equal(row, longer)


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


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"no option of encoder 'minilm' named 'pat'; did you mean 'path'"):
        ENCODERS.make("minilm?pat=x")
