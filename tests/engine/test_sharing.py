"""Every architecture is run in the fastest way that gives the scores of a plain forward pass, in 32 and in 16 bits."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from prb.engine.chat import Text
from prb.engine.heads import AnswerLogp, FirstLogit, HiddenStates, LastToken
from prb.engine.load import Checkpoint
from prb.engine.prefix import bundle
from prb.engine.sharing import Sharing, States, probe, probe_tokens, rope_switch, whole_batches
from prb.types import Ask, Failure, Query
from tests import tiny
from tests.architectures import ARCHITECTURES, ENCODERS, HYBRID, SHARED, model_of
from tests.tiny import torch

TOLERANCE = {"fp32": 2e-5, "bf16": 0.06, "fp16": 0.01}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HALVES = ["Llama", "Qwen3", "Gemma 2", "GPT-2"]
CASES = [(name, dtype) for name in ARCHITECTURES for dtype in ("fp32", "bf16")] + [(name, "fp16") for name in HALVES]


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


def plain_states(model: Any, text: Text) -> Any:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(text.ids)])).last_hidden_state[0]


class Bodied(torch.nn.Module):
    """A model that is nothing but its body."""

    base_model_prefix = "body"

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body, self.config = body, body.config


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_states_are_those_of_a_plain_forward_pass(name: str, dtype: str, tokenizer: Any) -> None:
    body = model_of(name, "AutoModel", DTYPES[dtype])
    states = States(checkpoint_of(Bodied(body), tokenizer))
    assert states.sharing.prefixes == (name in SHARED), states.sharing
    assert states.sharing.padding
    groups = groups_of([[40, 70, 33], [90], [12, 50]])
    bundles = [bundle([t.ids for t in g], at_most=min(t.start for t in g)) for g in groups]
    for group, rows in zip(groups, states.run(bundles, lambda s, *_: s[-1]), strict=True):
        for text, row in zip(group, rows, strict=True):
            expected = plain_states(body, text)[-1]
            scale = max(1.0, float(expected.abs().max()))
            assert float((row.float() - expected.float()).abs().max()) <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("name", [*HYBRID, *ENCODERS])
def test_a_model_that_cannot_share_says_why(name: str, tokenizer: Any) -> None:
    body = model_of(name, "AutoModel", torch.bfloat16)
    sharing = probe(body, probe_tokens(tokenizer, 512))
    assert "looks ahead" in str(sharing) if name in ENCODERS else "other state than keys and values" in str(sharing)
    assert str(sharing).startswith("prefixes not shared, whole texts in padded batches: ")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_decoder_that_was_made_to_look_both_ways_is_not_shared(
    dtype: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = model_of("Llama", "AutoModel", DTYPES[dtype])
    for layer in body.layers:
        layer.self_attn.is_causal = False
    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", lambda *_, **__: None)
    assert not probe(body, probe_tokens(tokenizer, 512)).prefixes


def test_the_probe_reads_at_least_64_tokens_of_prose(tokenizer: Any) -> None:
    tokens = probe_tokens(tokenizer, 512)
    assert len(tokens) >= 64
    assert len(set(tokens)) > 20
    assert len(probe_tokens(tokenizer, 20)) == 20


@pytest.mark.parametrize("name", ["Phi-3 (longrope)", "Llama (dynamic rope)"])
def test_texts_beyond_the_switch_of_the_rotary_embedding_do_not_change_their_neighbors(
    name: str, tokenizer: Any
) -> None:
    model = model_of(name, "AutoModelForSequenceClassification")
    model.config.pad_token_id = 0
    head = LastToken(checkpoint_of(model, tokenizer, budget=4096))
    assert head.sharing == Sharing(True, limit=200, why=rope_switch(model.config)[1])
    # one prefix of 150 tokens with a short answer beside a text with a long one: together they would pass the switch
    groups = groups_of([[160, 199], [230, 60], [120, 60], [300], [200]], shared=150)
    for group, rows in zip(groups, head.logits(groups), strict=True):
        for text, row in zip(group, rows, strict=True):
            fresh = model_of(name, "AutoModelForSequenceClassification")  # without a memory of longer texts
            with torch.inference_mode():
                alone = fresh(input_ids=torch.tensor([list(text.ids)])).logits[0]
            assert float(row) == pytest.approx(float(alone), abs=1e-4)


@pytest.mark.parametrize("name", ["LFM2", "Mamba"])
def test_likelihood_of_a_model_that_cannot_share_is_computed_in_padded_batches(name: str, tokenizer: Any) -> None:
    model, groups = model_of(name, "AutoModelForCausalLM"), groups_of([[40, 70, 33], [90]])
    head = AnswerLogp(checkpoint_of(model, tokenizer, budget=4096))
    calls: list[int] = []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))
    found = head.spoken(groups)
    assert len(calls) == 1
    for group, rows in zip(groups, found, strict=True):
        for text, spoken in zip(group, rows, strict=True):
            with torch.inference_mode():
                logp = torch.log_softmax(model(input_ids=torch.tensor([list(text.ids)])).logits[0].float(), dim=-1)
            slow = sum(float(logp[i - 1, text.ids[i]]) for i in range(text.start, text.end))
            assert spoken.logp == pytest.approx(slow, abs=2e-3)


def test_hidden_features_of_a_model_that_cannot_share_are_computed_in_padded_batches(tokenizer: Any) -> None:
    model = model_of("LFM2", "AutoModelForCausalLM")
    states, calls = HiddenStates(checkpoint_of(model, tokenizer, budget=4096), 1, "mean"), []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))
    found = states.answers([Ask(Query(question="a book"), answer) for answer in ("a", "be early", "cook late")])
    assert len(calls) == 1
    assert not any(isinstance(vector, Failure) for vector in found)
    assert states.execution.startswith("prefixes not shared, whole texts in padded batches")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["Llama", "Cohere", "Granite", "Gemma 2", "LFM2"])
def test_the_first_logit_is_that_of_the_models_own_forward_pass(name: str, dtype: str, tokenizer: Any) -> None:
    model, groups = model_of(name, "AutoModelForCausalLM", DTYPES[dtype]), groups_of([[40, 70], [33]])
    head = FirstLogit(checkpoint_of(model, tokenizer))
    assert head.sharing.prefixes == (name != "LFM2")
    for group, rows in zip(groups, head.logits(groups), strict=True):
        for text, row in zip(group, rows, strict=True):
            with torch.inference_mode():
                own = model(input_ids=torch.tensor([list(text.ids)])).logits[0, -1, 0]
            assert float(row) == pytest.approx(float(own), abs=TOLERANCE[dtype], rel=TOLERANCE[dtype])


def test_where_padding_is_not_safe_only_equal_lengths_share_a_batch() -> None:
    assert list(whole_batches([3, 5, 3], 99, Sharing(False, padding=False))) == [[1], [0, 2]]
    assert list(whole_batches([3, 5, 3], 99, Sharing(False))) == [[1, 0, 2]]
    assert list(whole_batches([3, 5, 3], 99, Sharing(False, limit=4))) == [[0, 2], [1]]
