"""Checkpoints: shared while in use, told apart by content, refused with a reason."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from prb.errors import BadInput, BadSpec
from prb.models import MODELS
from tests import tiny

torch = tiny.torch

from prb.engine.load import Loading, fingerprint, load, load_shared  # noqa: E402


def test_users_of_the_same_weights_share_one_copy_that_goes_with_the_last_of_them(tmp_path: Path) -> None:
    folder = str(tiny.save(tmp_path, "llama"))
    first, second = load_shared(folder, "causal"), load_shared(folder, "causal")
    assert first is second
    assert load(folder, "causal").model is not first.model
    assert load_shared(folder, "causal", Loading(tokens=5)) is not first
    parameter = next(first.model.parameters())
    del first, second
    gc.collect()
    assert next(load_shared(folder, "causal").model.parameters()) is not parameter


def test_weights_that_changed_on_disk_are_read_again(tmp_path: Path) -> None:
    before = load_shared(str(tiny.save(tmp_path, "llama", seed=1)), "causal")
    after = load_shared(str(tiny.save(tmp_path, "llama", seed=2)), "causal")
    assert before is not after
    assert before.fingerprint != after.fingerprint


def test_a_hub_model_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789" * 4
    repository = tmp_path / "models--me--mine"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert fingerprint("me/mine") == fingerprint("me/mine", commit) == f"me/mine@{commit}"
    assert fingerprint("me/other", "v1") == "me/other@v1"


def test_settings_are_checked_before_anything_is_loaded() -> None:
    for option in ("dtype=int8", "tokens=0", "max_length=0", "keep=-1"):
        with pytest.raises(BadSpec, match=option.partition("=")[0]):
            MODELS.make(f"likelihood?lm=/nowhere&{option}")
    with pytest.raises(BadInput, match="cannot load '/nowhere'"):
        MODELS.make("likelihood?lm=/nowhere")


@pytest.mark.parametrize("device", ["foo", "meta", "cpu:x", "cuda:99"])
def test_a_device_that_cannot_be_used_is_one_line(device: str, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path, "llama")
    with pytest.raises(BadInput, match=rf"^device={device}[^\n]*$"):
        MODELS.make(f"likelihood?lm={folder}&device={device}")


def test_damaged_weights_are_one_line(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path, "llama")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(BadInput, match=r"^cannot load [^\n]*$"):
        load(str(folder), "causal")
