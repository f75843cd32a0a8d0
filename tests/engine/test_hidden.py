"""Pooled hidden states against the plain forward pass of the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prb.errors import BadInput
from prb.types import Ask, Failure, Post, Query
from tests import tiny

torch = tiny.torch

from prb.engine.chat import Chat  # noqa: E402
from prb.engine.heads import HiddenStates  # noqa: E402
from prb.engine.load import Checkpoint, Loading, load  # noqa: E402

QUERY = Query(question="best bread?", user="u", posts=(Post("1", "", "early morning"), Post("2", "", "a big city")))


@pytest.fixture(scope="module", params=["llama", "gpt2", "gemma2"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load(str(tiny.save(tmp_path_factory.mktemp("lm"), request.param)), "causal", Loading(dtype="fp32"))


def by_hand(loaded: Checkpoint, query: Query, answer: str, layer: int) -> np.ndarray:
    text = Chat(loaded.tokenizer).text(query, answer)
    with torch.inference_mode():
        out = loaded.model(input_ids=torch.tensor([list(text.ids)]), output_hidden_states=True)
    return out.hidden_states[layer][0, text.start : text.end].mean(dim=0).numpy()


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_shared_prefixes_give_the_states_of_a_plain_pass(loaded: Checkpoint, layer: int) -> None:
    asks = [Ask(QUERY, "a book"), Ask(QUERY, "cook late, cook long"), Ask(Query(question="ask"), "a book")]
    for ask, vector in zip(asks, HiddenStates(loaded, layer, "mean").answers(asks), strict=True):
        assert not isinstance(vector, Failure)
        np.testing.assert_allclose(vector, by_hand(loaded, ask.query, ask.answer, layer), atol=2e-4)


def test_the_last_token_is_another_pool(loaded: Checkpoint) -> None:
    mean, last = (HiddenStates(loaded, 2, pool).answers([Ask(QUERY, "a book")])[0] for pool in ("mean", "last"))
    assert not np.allclose(mean, last)  # type: ignore[arg-type]


def test_negative_layers_count_from_the_end(loaded: Checkpoint) -> None:
    assert HiddenStates(loaded, -1, "mean").fingerprint == HiddenStates(loaded, 3, "mean").fingerprint


def test_a_text_alone_is_read_without_a_template(loaded: Checkpoint) -> None:
    ids = loaded.tokenizer("early day")["input_ids"]
    with torch.inference_mode():
        out = loaded.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    made = HiddenStates(loaded, 2, "mean").texts(["early day", "b"])
    np.testing.assert_allclose(made[0], out.hidden_states[2][0].mean(dim=0).numpy(), atol=2e-4)


def test_an_answer_that_cannot_be_read_is_a_failure_and_the_others_are_not(loaded: Checkpoint) -> None:
    found = HiddenStates(loaded, 2, "mean").answers([Ask(QUERY, "b " * 2000), Ask(Query(question="ask"), "a")])
    assert isinstance(found[0], Failure)
    assert not isinstance(found[1], Failure)


def test_a_layer_that_is_not_there_is_refused(loaded: Checkpoint) -> None:
    with pytest.raises(BadInput, match="layers 0 to 3"):
        HiddenStates(loaded, 9, "mean")


def test_blocks_above_the_layer_are_not_run(tmp_path: Path) -> None:
    loaded = load(str(tiny.save(tmp_path / "lm", "llama")), "causal", Loading(dtype="fp32"))
    states = HiddenStates(loaded, 1, "mean")
    run: list[int] = []
    for number, block in enumerate(loaded.body.layers):
        block.register_forward_hook(lambda *_, number=number: run.append(number))
    states.answers([Ask(QUERY, "a book"), Ask(QUERY, "cook late")])
    assert set(run) == {0}
    run.clear()
    loaded.body(input_ids=torch.tensor([[1, 2, 3]]))
    assert run == [0, 1, 2]  # the model itself is whole


def test_hidden_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prb.models.personal.features import make_features

    folder = tiny.save(tmp_path / "lm", "llama")
    features = make_features(f"hidden?lm={folder}&layer=2")
    first = features.answers([Ask(QUERY, "a book")])[0]
    monkeypatch.setattr(HiddenStates, "answers", lambda *_: pytest.fail("computed again"))
    again = make_features(f"hidden?lm={folder}&layer=2").answers([Ask(QUERY, "a book")])[0]
    np.testing.assert_array_equal(first, again)  # type: ignore[arg-type]


def test_shifted_states_tell_the_answer_from_what_the_posts_change_in_it(tmp_path: Path) -> None:
    from prb.models.personal.features import make_features

    spec = f"hidden?lm={tiny.save(tmp_path / 'lm', 'llama')}&layer=2"
    asks = [Ask(QUERY, "a book"), Ask(Query(question=QUERY.question), "a book"), Ask(QUERY, " ")]
    told, plain, empty = make_features(spec).answers(asks)
    shifted = make_features(f"{spec}&shift=true").answers(asks)
    assert not isinstance(told, Failure)
    assert not isinstance(plain, Failure)
    np.testing.assert_array_equal(shifted[0], np.concatenate([plain, told - plain]))  # type: ignore[arg-type]
    np.testing.assert_array_equal(shifted[1], np.concatenate([plain, 0 * plain]))  # type: ignore[arg-type]
    assert shifted[2] == empty == Failure("empty answer")
    assert make_features(f"{spec}&shift=true").texts(["a city"]).shape == (1, 2 * len(plain))
