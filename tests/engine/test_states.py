"""Texts that begin alike are read in the fastest way that gives the states of a plain pass, in 32 and in 16 bits."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.engine.cascade import Bundle
from prb.engine.chat import Text, common_prefix
from prb.engine.heads import AnswerLogp, HiddenStates, LastToken
from prb.engine.load import Checkpoint, Loading, load
from prb.engine.states import States, batches, bundle, probe
from prb.types import Ask, Failure, Query
from tests import tiny
from tests.architectures import ARCHITECTURES, ENCODERS, HYBRID, ROPE, SHARED, model_of
from tests.tiny import torch

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=6)


def test_a_bundle_splits_after_the_longest_common_beginning_that_leaves_each_a_token_of_its_own() -> None:
    made = bundle([[1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 9, 9]])
    assert (made.prefix, made.suffixes) == ([1, 2], ([3, 4], [5], [3, 9, 9]))
    assert bundle([[1, 2], [1, 2, 3]]).suffixes == ([2], [2, 3])
    assert bundle([[7]]).suffixes == ([7],)
    assert bundle([[1, 2, 3], [1, 2, 4]], at_most=1).prefix == [1]


@given(SEQUENCES)
def test_prefix_and_suffix_are_the_sequence(sequences: list[list[int]]) -> None:
    made = bundle(sequences)
    assert [[*made.prefix, *suffix] for suffix in made.suffixes] == sequences
    assert all(made.suffixes)


@given(SEQUENCES)
def test_the_common_prefix_is_the_longest_one(sequences: list[list[int]]) -> None:
    n = common_prefix(sequences)
    assert len({tuple(s[:n]) for s in sequences}) == 1
    longer = {tuple(s[: n + 1]) for s in sequences}
    assert len(longer) > 1 or min(map(len, sequences)) == n


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 120))
def test_batches_hold_everything_once_and_stay_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = batches(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


def test_a_prefix_is_computed_once_and_not_copied_more_often_than_copies_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(str(tiny.save(tmp_path, "llama")), "causal", Loading())
    body, passes = loaded.model.base_model, []
    body.register_forward_pre_hook(lambda _, __, kwargs: passes.append(kwargs["input_ids"].shape), with_kwargs=True)
    made = Bundle(list(range(5, 105)), tuple([n, n + 1] for n in range(5, 15)))
    shared = States(body, budget=4096)
    shared.run([made], lambda states, *_: len(states))
    assert passes == [(1, 100 + 10 * 2)]
    passes.clear()
    # keys and values of 100 tokens: 3 layers x 2 x 16 numbers x 4 bytes x 100 = 38,400 bytes
    monkeypatch.setattr("prb.engine.states.COPIED_BYTES", 4 * 38_400)
    monkeypatch.setattr(shared, "_cascade", None)  # packed rows copy nothing
    shared.run([made], lambda states, *_: len(states))
    assert [rows for rows, _ in passes] == [1, 4, 4, 2]


TOLERANCE = {"fp32": 2e-5, "bf16": 0.06, "fp16": 0.01}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HALVES = ["Llama", "Qwen3", "Gemma 2", "GPT-2"]
CASES = [(name, dtype) for name in ARCHITECTURES for dtype in ("fp32", "bf16")] + [(name, "fp16") for name in HALVES]

WHY = {
    **dict.fromkeys(ROPE, ", one at a time: its positions depend on the length of a text"),
    **dict.fromkeys(HYBRID, " in padded batches: it keeps other state than keys and values"),
    **dict.fromkeys(ENCODERS, " in padded batches: it looks ahead, as encoders do"),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.tokenizer()


def checkpoint_of(model: Any, tokenizer: Any, budget: int = 256) -> Checkpoint:
    return Checkpoint(model, tokenizer, "tiny", max_length=512, ends=frozenset(), budget=budget)


def groups_of(lengths: list[list[int]], shared: int = 30) -> list[list[Text]]:
    """Texts of these lengths; those of a group begin alike."""
    random, groups = Random(0), []
    for group in lengths:
        first = random.choices(range(7, 390), k=min(shared, min(group) - 2))
        texts = [[1, *first, *random.choices(range(7, 390), k=length - len(first) - 1)] for length in group]
        groups.append([Text(ids, 1 + len(first), len(ids)) for ids in texts])
    return groups


@torch.inference_mode()
def alone(model: Any, text: Text) -> Any:
    """The model's own output for one text."""
    return model(input_ids=torch.tensor([list(text.ids)]))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_states_are_those_of_a_plain_forward_pass_or_a_model_says_why_it_cannot_share(
    name: str, dtype: str, tokenizer: Any
) -> None:
    body = model_of(name, "AutoModel", DTYPES[dtype])
    sharing = probe(body, checkpoint_of(body, tokenizer).probe_tokens)
    assert sharing.prefixes == (name in SHARED), sharing
    assert sharing.padding == (name not in ROPE)
    if not sharing.prefixes:
        assert str(sharing).startswith(f"prefixes not shared, whole texts{WHY[name]}")
        return
    states = States(body, 256)
    groups = groups_of([[40, 70, 33], [90], [12, 50]])
    bundles = [bundle([t.ids for t in g], at_most=min(t.start for t in g)) for g in groups]
    for group, rows in zip(groups, states.run(bundles, lambda s, *_: s[-1]), strict=True):
        for text, row in zip(group, rows, strict=True):
            expected = alone(body, text).last_hidden_state[0, -1]
            scale = max(1.0, float(expected.abs().max()))
            assert float((row.float() - expected.float()).abs().max()) <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_decoder_that_was_made_to_look_both_ways_is_not_shared(
    dtype: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = model_of("Llama", "AutoModel", DTYPES[dtype])
    for layer in body.layers:
        layer.self_attn.is_causal = False
    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", lambda *_, **__: None)
    assert not probe(body, checkpoint_of(body, tokenizer).probe_tokens).prefixes


@pytest.mark.parametrize("name", ROPE)
def test_texts_beyond_the_switch_of_the_rotary_embedding_do_not_change_their_neighbors(
    name: str, tokenizer: Any
) -> None:
    model = model_of(name, "AutoModelForSequenceClassification")
    model.config.pad_token_id = 0
    head = LastToken(checkpoint_of(model, tokenizer, budget=4096))
    # one prefix of 150 tokens with a short answer beside a text with a long one: together they would pass the switch
    groups = groups_of([[160, 199], [230, 60], [120, 60], [300], [200]], shared=150)
    for group, rows in zip(groups, head.logits(groups), strict=True):
        for text, row in zip(group, rows, strict=True):
            fresh = model_of(name, "AutoModelForSequenceClassification")  # without a memory of longer texts
            assert float(row) == pytest.approx(float(alone(fresh, text).logits[0]), abs=1e-4)


@pytest.mark.parametrize("name", ["Llama", "Gemma 2", "GPT-2", "Qwen3-Next", "BERT", "DeBERTa"])
def test_a_reward_head_gives_what_the_model_gives_alone_whatever_the_batch_and_its_order(
    name: str, tokenizer: Any
) -> None:
    model, groups = model_of(name, "AutoModelForSequenceClassification"), groups_of([[40, 70, 33], [90], [12, 50]])
    model.config.pad_token_id = 0
    for budget in (1, 100, 4096):
        head = LastToken(checkpoint_of(model, tokenizer, budget=budget))
        assert head.sharing.prefixes == (name in SHARED)
        order = Random(budget).sample(groups, len(groups))
        for group, rows in zip(order, head.logits(order), strict=True):
            for text, row in zip(group, rows, strict=True):
                assert float(row) == pytest.approx(float(alone(model, text).logits[0]), abs=1e-4)


@pytest.mark.parametrize("name", ["Llama", "Granite", "Gemma 2", "LFM2", "Mamba"])
def test_log_probabilities_of_answers_are_those_of_a_plain_pass(name: str, tokenizer: Any) -> None:
    model, groups = model_of(name, "AutoModelForCausalLM"), groups_of([[40, 70, 33], [90]])
    head = AnswerLogp(checkpoint_of(model, tokenizer, budget=4096))
    calls: list[int] = []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))
    all_rows = head.logp(groups)
    assert head.sharing.prefixes == (name in SHARED)
    assert len(calls) == 1 or name == "Gemma 2"
    for group, rows in zip(groups, all_rows, strict=True):
        for text, found in zip(group, rows, strict=True):
            logp = alone(model, text).logits[0].float().log_softmax(-1)
            slow = sum(float(logp[i - 1, text.ids[i]]) for i in range(text.start, text.end))
            assert found == pytest.approx(slow, abs=2e-3)


def test_hidden_features_of_a_model_that_cannot_share_are_computed_in_padded_batches(tokenizer: Any) -> None:
    model = model_of("LFM2", "AutoModelForCausalLM")
    states, calls = HiddenStates(checkpoint_of(model, tokenizer, budget=4096), 1, "mean"), []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))
    found = states.answers([Ask(Query(question="a book"), answer) for answer in ("a", "be early", "cook late")])
    assert len(calls) == 1
    assert not any(isinstance(vector, Failure) for vector in found)
    assert states.execution.startswith("prefixes not shared, whole texts in padded batches")
