"""Checkpoints: shared while in use, told apart by content, refused with a reason."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

from prb.errors import BadInput, BadSpec
from prb.models import MODELS
from prb.types import Ask, Query
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


def test_a_hub_that_is_out_of_reach_is_asked_once(monkeypatch):
    asked = []

    def model_info(_, repository, **__):
        asked.append(repository)
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    with pytest.raises(BadInput, match=r"cannot load 'me/mine': .* the hub cannot be reached"):
        load("me/mine", "causal")
    assert asked == ["me/mine"]


def test_settings_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    for option in ("dtype=int8", "tokens=0", "max_length=0"):
        with pytest.raises(BadSpec, match=option.partition("=")[0]):
            MODELS.make(f"likelihood?lm=/nowhere&{option}")
    with pytest.raises(BadInput, match="cannot load '/nowhere'"):
        MODELS.make("likelihood?lm=/nowhere")
    folder = tiny.save(tmp_path, "llama")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(BadInput, match=r"^cannot load [^\n]*$"):
        load(str(folder), "causal")


def test_a_model_may_be_spread_over_devices_and_its_attention_chosen(tmp_path: Path) -> None:
    folder = str(tiny.save(tmp_path, "llama", labels=1))
    plain, spread = load(folder, "classifier"), load(folder, "classifier", Loading(device_map="auto"))
    assert spread.fingerprint == plain.fingerprint
    eager = load(folder, "classifier", Loading(attn_implementation="eager"))
    assert eager.model.config._attn_implementation == "eager"
    assert eager.fingerprint == f"{plain.fingerprint}-eager"
    short = load(folder, "classifier", Loading(max_length=64))
    assert short.fingerprint == f"{plain.fingerprint}-at-most-64"
    asks = [Ask(Query(question="a book"), "be early")]
    scores = [
        MODELS.make(f"classifier?path={folder}{options}").score(asks)
        for options in ("", "&device_map=auto", "&attn_implementation=eager")
    ]
    assert scores[1:] == [pytest.approx(scores[0], abs=1e-5)] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *((f"device={device}", rf"^device={device}[^\n]*$") for device in ("foo", "meta", "cpu:x", "cuda:99")),
        ("attn_implementation=fast", r"^cannot load [^\n]*fast[^\n]*$"),
        ("device_map=gpu7", "device_map"),
    ],
)
def test_loading_options_that_cannot_be_met_are_one_line(options: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        MODELS.make(f"classifier?path={tiny.save(tmp_path, 'llama', labels=1)}&{options}")


def test_an_adapter_is_added_without_a_warning(tmp_path: Path) -> None:
    """peft asks transformers for a property by a name that transformers 5.23 deprecates."""
    peft = pytest.importorskip("peft", reason="needs the train extra")
    checkpoint = load(str(tiny.save(tmp_path, "llama")), "causal")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = peft.get_peft_model(checkpoint.model, peft.LoraConfig(r=2, target_modules="all-linear"))
        assert not model.is_gradient_checkpointing
