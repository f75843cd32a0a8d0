"""Heads and pooled states against the model's own forward pass: padding ids, missing heads, own code, 32 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prb.engine.chat import Chat, Text
from prb.engine.heads import HiddenStates, LastToken, output_logits
from prb.engine.load import Checkpoint, Loading, load
from prb.errors import BadInput
from prb.models import MODELS
from prb.types import Ask, Failure, Post, Query
from tests import tiny
from tests.tiny import torch, transformers

ASKS = [Ask(Query(question="best bread"), answer) for answer in ("be early", "cook a long day", "a")]
OWN_CODE = '''
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutputWithPast
{extra}

class Own(LlamaForSequenceClassification):
    """Adds what a plain head does not know: a gate by the first token, or several attributes."""

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        out = super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        return {output}
'''


def texts(*ids: list[int]) -> list[list[Text]]:
    return [[Text(each, 1, len(each)) for each in ids]]


def saved_with(folder: Path, **padding: Any) -> Checkpoint:
    """A classifier whose config and tokenizer name these padding tokens."""
    tiny.save(folder, "llama", labels=1)
    config = json.loads((folder / "config.json").read_text())
    config["pad_token_id"] = padding["model"]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = padding["tokenizer"]
    tokenizer.save_pretrained(folder)
    return load(str(folder), "classifier")


def alone(checkpoint: Checkpoint, ids: list[int], pad: int | None) -> float:
    """The model's own score of a text by itself, with the padding id that its config came with."""
    config = checkpoint.model.config
    ours, config.pad_token_id = config.pad_token_id, pad
    try:
        with torch.inference_mode():
            return float(checkpoint.model(input_ids=torch.tensor([ids])).logits[0, 0])
    finally:
        config.pad_token_id = ours


@pytest.mark.parametrize("model", [None, 0, 5, -1])
@pytest.mark.parametrize("tokenizer", [None, "<pad>", "</s>", "<|end|>"])
def test_a_text_has_the_score_it_has_alone_whatever_config_and_tokenizer_call_padding(
    model: int | None, tokenizer: str | None, tmp_path: Path
) -> None:
    checkpoint = saved_with(tmp_path, model=model, tokenizer=tokenizer)
    assert checkpoint.model.config.pad_token_id == checkpoint.tokenizer.pad_token_id is not None
    ids = [[1, 40, 41, 42, 43, 44, 2], [1, 50, 51, 6], [1, 60, 2, 0, 0]]
    expected = [alone(checkpoint, each, model) for each in ids]
    head = LastToken(checkpoint)
    assert [float(row) for row in head.logits(texts(*ids))[0]] == pytest.approx(expected, abs=1e-4)
    padded = checkpoint.tokenizer.pad([{"input_ids": each} for each in ids[:2]], return_tensors="pt")
    with torch.inference_mode():
        together = checkpoint.model(**padded).logits[:, 0].tolist()
    assert together == pytest.approx(expected[:2], abs=1e-4)


def test_a_causal_lm_is_not_a_classifier_and_the_error_says_what_it_can_be(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "lm", "llama")
    with pytest.raises(BadInput, match=r"has no score\.weight") as raised:
        MODELS.make(f"classifier?path={folder}")
    for way in (f"likelihood?lm={folder}", f"judge?llm=transformers/{folder}", "prb train reward-model"):
        assert way in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_classifier_without_an_output_layer_has_no_likelihoods(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", "llama", labels=1)
    for spec in (f"likelihood?lm={folder}", f"implicit?policy={folder}"):
        with pytest.raises(BadInput, match=r"has no lm_head\.weight: it is not a causal LM"):
            MODELS.make(spec)


def drop_weights(file: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    kept = {key: tensor for key, tensor in load_file(file).items() if name not in key}
    save_file(kept, file, metadata={"format": "pt"})


def test_a_damaged_body_is_refused_by_the_name_of_what_is_missing(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", "llama", labels=1)
    drop_weights(folder / "model.safetensors", "layers.1.mlp.up_proj")
    with pytest.raises(BadInput, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight: these weights would be random"):
        load(str(folder), "classifier")


def adapter(base: Path, folder: Path, task: str | None) -> Path:
    peft = pytest.importorskip("peft", reason="needs the train extra")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    settings = peft.LoraConfig(task_type=task, r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.get_peft_model(model, settings).save_pretrained(folder)
    return folder


def test_an_adapter_may_bring_the_head_that_its_base_lacks(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "lm", "llama")
    head, no_head = adapter(folder, tmp_path / "head", "SEQ_CLS"), adapter(folder, tmp_path / "no-head", None)
    config = json.loads((folder / "config.json").read_text()) | {"id2label": {"0": "reward"}, "label2id": {"reward": 0}}
    (folder / "config.json").write_text(json.dumps(config))
    assert load(str(folder), "classifier", Loading(adapter=str(head)))
    with pytest.raises(BadInput, match=r"has no score\.weight"):
        load(str(folder), "classifier", Loading(adapter=str(no_head)))


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", "llama", labels=1)
    lora = adapter(folder, tmp_path / "lora", "SEQ_CLS")
    drop_weights(lora / "adapter_model.safetensors", "v_proj")
    with pytest.raises(BadInput, match="is not of this model"):
        load(str(folder), "classifier", Loading(adapter=str(lora)))


def own_code(folder: Path, logits: str, *, labels: int = 1, extra: str = "", output: str = "") -> Path:
    """A checkpoint that comes with a forward pass of its own."""
    tiny.save(folder, "llama", labels=labels)
    (folder / "own.py").write_text(
        OWN_CODE.replace("{output}", output or f"SequenceClassifierOutputWithPast(logits={logits})").replace(
            "{extra}", extra
        )
    )
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_models_own_forward_pass_counts_not_its_bare_head(tmp_path: Path) -> None:
    folder = own_code(tmp_path / "gated", "out.logits * (1 + input_ids.float().mean(dim=1, keepdim=True))")
    model: Any = MODELS.make(f"classifier?path={folder}&trust_remote_code=true")
    assert "its forward pass is not a head on its last state" in model.execution
    checkpoint = load(str(folder), "classifier", Loading(trust_remote_code=True))
    for ask, score in zip(ASKS, model.score(ASKS), strict=True):
        ids = torch.tensor([list(Chat(checkpoint.tokenizer).texts(ask.query, [ask.answer])[0].ids)])
        with torch.inference_mode():
            assert score == pytest.approx(float(checkpoint.model(input_ids=ids).logits[0, 0]), abs=1e-3)


@pytest.mark.parametrize(
    ("name", "output", "column"),
    [
        ("ArmoRM-Llama3-8B-v0.1", "Scored(score=out.logits.tanh().sum(dim=1))", None),
        ("QRM-Llama3.1-8B", "Scored(score=out.logits.tanh().sum(dim=1, keepdim=True))", None),
        ("URM-LLaMa-3.1-8B", "Scored(logits=out.logits.tanh())", 0),
    ],
)
def test_known_checkpoints_with_their_own_code_are_read_where_their_reward_is(
    name: str, output: str, column: int | None, tmp_path: Path
) -> None:
    extra = "from types import SimpleNamespace as Scored"
    folder = own_code(tmp_path / name, "", labels=4, extra=extra, output=output)
    scores = MODELS.make(f"classifier?path={folder}&trust_remote_code=true").score(ASKS)
    plain = transformers.LlamaForSequenceClassification.from_pretrained(folder).eval()
    chat = Chat(transformers.AutoTokenizer.from_pretrained(folder))
    for ask, score in zip(ASKS, scores, strict=True):
        with torch.inference_mode():
            parts = plain(input_ids=torch.tensor([list(chat.texts(ask.query, [ask.answer])[0].ids)])).logits[0].tanh()
        assert score == pytest.approx(float(parts.sum() if column is None else parts[column]), abs=1e-4)


def test_several_numbers_of_a_models_own_code_need_a_choice(tmp_path: Path) -> None:
    spec = f"classifier?path={own_code(tmp_path / 'many', 'out.logits.tanh() * 3', labels=4)}&trust_remote_code=true"
    with pytest.raises(BadInput, match=r"gives 4 numbers for a text.*choose one with logit=N"):
        MODELS.make(spec)
    assert MODELS.make(f"{spec}&logit=2").score(ASKS)


def test_code_that_needs_another_version_is_one_clear_line(tmp_path: Path) -> None:
    folder = own_code(tmp_path / "old", "out.logits", extra="from transformers.models.llama import NO_LONGER_THERE")
    with pytest.raises(BadInput, match=r"^cannot load [^\n]*its own code does not run with transformers [^\n]*$"):
        MODELS.make(f"classifier?path={folder}&trust_remote_code=true")
    folder = own_code(tmp_path / "needs", "out.logits", extra="import a_package_nobody_has")
    with pytest.raises(BadInput, match=r"^cannot load [^\n]*a_package_nobody_has[^\n]*$"):
        MODELS.make(f"classifier?path={folder}&trust_remote_code=true")


def test_a_head_computes_in_32_bits_whatever_the_models_dtype(tmp_path: Path) -> None:
    checkpoint = load(str(tiny.save(tmp_path, "llama", labels=1)), "classifier", Loading(dtype="bf16"))
    ids = [[1, n, n + 1, n + 2, n + 3] for n in range(40, 70)]
    rows = [float(row) for row in LastToken(checkpoint).logits(texts(*ids))[0]]
    for each, reward in zip(ids, rows, strict=True):
        with torch.inference_mode():
            state = checkpoint.body(input_ids=torch.tensor([each])).last_hidden_state[0, -1]
            exact = state.double() @ checkpoint.model.score.weight[0].double()
        assert reward == pytest.approx(float(exact), abs=2e-2)
    assert any(reward != float(torch.tensor(reward).bfloat16()) for reward in rows)


QUERY = Query(question="best bread?", user="u", posts=(Post("1", "", "early morning"), Post("2", "", "a big city")))


@pytest.fixture(scope="module", params=["llama", "gpt2", "gemma2"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load(str(tiny.save(tmp_path_factory.mktemp("lm"), request.param)), "causal", Loading(dtype="fp32"))


def by_hand(loaded: Checkpoint, query: Query, answer: str, layer: int) -> np.ndarray:
    (text,) = Chat(loaded.tokenizer).texts(query, [answer])
    with torch.inference_mode():
        out = loaded.model(input_ids=torch.tensor([list(text.ids)]), output_hidden_states=True)
    return out.hidden_states[layer][0, text.start : text.end].mean(dim=0).numpy()


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_shared_prefixes_give_the_states_of_a_plain_pass(loaded: Checkpoint, layer: int) -> None:
    asks = [Ask(QUERY, "a book"), Ask(QUERY, "cook late, cook long"), Ask(Query(question="ask"), "a book")]
    for ask, vector in zip(asks, HiddenStates(loaded, layer, "mean").answers(asks), strict=True):
        np.testing.assert_allclose(vector, by_hand(loaded, ask.query, ask.answer, layer), atol=2e-4)


def test_a_text_alone_is_read_without_a_template(loaded: Checkpoint) -> None:
    ids = loaded.tokenizer("early day")["input_ids"]
    with torch.inference_mode():
        out = loaded.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    made = HiddenStates(loaded, 2, "mean").texts(["early day", "b"])
    np.testing.assert_allclose(made[0], out.hidden_states[2][0].mean(dim=0).numpy(), atol=2e-4)


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


def test_shifted_states_tell_the_answer_from_what_the_posts_change_in_it(tmp_path: Path) -> None:
    from prb.models.personal.features import make_features

    spec = f"hidden?lm={tiny.save(tmp_path / 'lm', 'llama')}&layer=2"
    asks = [Ask(QUERY, "a book"), Ask(Query(question=QUERY.question), "a book"), Ask(QUERY, " ")]
    told, plain, empty = make_features(spec).answers(asks)
    shifted = make_features(f"{spec}&shift=true").answers(asks)
    np.testing.assert_array_equal(shifted[0], np.concatenate([plain, told - plain]))
    np.testing.assert_array_equal(shifted[1], np.concatenate([plain, 0 * plain]))
    assert shifted[2] == empty == Failure("empty answer")
    assert make_features(f"{spec}&shift=true").texts(["a city"]).shape == (1, 2 * len(plain))


def test_a_forward_pass_without_one_row_per_text_is_refused(tmp_path: Path) -> None:
    spec = f"classifier?path={own_code(tmp_path / 'tokens', 'out.logits[None].repeat(1, 5, 1)')}&trust_remote_code=true"
    with pytest.raises(BadInput, match="gives no logits for a text"):
        MODELS.make(spec)


def test_an_output_layer_that_is_the_embedding_is_not_missing(tmp_path: Path) -> None:
    assert MODELS.make(f"likelihood?lm={tiny.save(tmp_path / 'lm', 'gemma')}").score(ASKS)


def test_the_largest_logits_of_16_bit_weights_are_not_rounded_to_16_bits(tmp_path: Path) -> None:
    """At the size of a logit, steps of bf16 are as large as what a judge weighs."""
    model = load(str(tiny.save(tmp_path, "llama")), "causal", Loading(dtype="bf16")).model
    layer = model.get_output_embeddings()
    states = 40 * torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.inference_mode():
        expected, rounded = states.float() @ layer.weight.float().T, output_logits(model, states)
        exact = output_logits(model, states, best=5)
    top = rounded.topk(5).indices
    assert torch.allclose(exact.gather(-1, top), expected.gather(-1, top), rtol=1e-5)
    assert (rounded.float() - expected).abs().max() > 1e-3
    rest = torch.ones_like(exact, dtype=torch.bool).scatter(-1, top, False)
    assert torch.equal(exact[rest], rounded.float()[rest])
