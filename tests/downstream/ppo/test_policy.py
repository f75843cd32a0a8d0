"""A policy in training: what it wrote, what it says of its own tokens, and what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.llm import Request, Sampling, make_llm
from prb.types import Failure, Post, Query
from tests import tiny
from tests.downstream.ppo.runs import writer
from tests.llm.tiny import llama

torch = pytest.importorskip("torch", reason="needs the torch extra")

from prb.downstream.ppo import OURS, PpoConfig  # noqa: E402
from prb.downstream.ppo.policy import Answer, Learner, Views, load_learner, pad_batch, run  # noqa: E402
from prb.prompts import policy_chat  # noqa: E402

QUERY = Query(question="name a colour", user="u", posts=tuple(Post(str(n), "", f"the lazy dog {n}") for n in range(4)))
PROMPTS, ANSWERS = [[5, 6, 7, 8, 9], [11, 12], [13]], [[21, 22], [23, 24, 25, 26], [27]]


def settings(folder: Path | str, **changes: Any) -> PpoConfig:
    return PpoConfig(policy=f"transformers/{folder}", model="length", **changes)


def learner(folder: Path | str, **changes: Any) -> Learner:
    return load_learner(settings(folder, **changes))


def move(own: Learner, by: float = 0.1) -> None:
    """What a few steps of training might do."""
    with torch.no_grad():
        for parameter in own.trainable().values():
            parameter.add_(by)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("policy") / "tiny")


def test_answers_of_a_batch_begin_in_the_same_column():
    texts = pad_batch(PROMPTS, ANSWERS)
    assert texts.ids.tolist() == [
        [5, 6, 7, 8, 9, 21, 22, 0, 0],
        [0, 0, 0, 11, 12, 23, 24, 25, 26],
        [0, 0, 0, 0, 13, 27, 0, 0, 0],
    ]
    assert texts.attention.sum(1).tolist() == [7, 6, 2]
    assert texts.mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


def test_some_rows_lose_the_columns_that_only_others_need():
    part = pad_batch(PROMPTS, ANSWERS).rows(torch.tensor([2, 0]))
    assert part.ids.tolist() == [[0, 0, 0, 0, 13, 27, 0], [5, 6, 7, 8, 9, 21, 22]]
    alone = pad_batch(PROMPTS, ANSWERS).rows(torch.tensor([2]))
    assert (alone.ids.tolist(), alone.mask.tolist()) == ([[13, 27]], [[1]])


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2"])
def test_padding_changes_no_log_probability_and_no_value(tmp_path, architecture):
    net = learner(tiny.save(tmp_path / "model", architecture)).net
    with torch.no_grad():
        torch.nn.init.normal_(net.head.weight)
        together = net(pad_batch(PROMPTS, ANSWERS))
        for n, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
            alone = net(pad_batch([prompt], [answer]))
            for column, own in zip(together, alone, strict=True):
                torch.testing.assert_close(column[n, : len(answer)], own[0], rtol=1e-4, atol=1e-4)


def test_log_probabilities_are_those_of_the_model_itself(folder):
    own = learner(folder)
    logits = own.net.lm(torch.tensor([PROMPTS[0] + ANSWERS[0]])).logits[0].detach()
    at = len(PROMPTS[0])
    logits[at - 1, 2] = -float("inf")  # an answer that is learnt from does not end before it began
    steps = torch.log_softmax(logits, -1)
    expected = [float(steps[at - 1 + n, token]) for n, token in enumerate(ANSWERS[0])]
    seen = own.net(pad_batch(PROMPTS[:1], ANSWERS[:1]))
    assert seen.logp[0].tolist() == pytest.approx(expected, abs=1e-5)
    entropy = torch.distributions.Categorical(logits=steps[at : at + 1]).entropy()
    assert float(seen.entropy[0, 1]) == pytest.approx(float(entropy), abs=1e-5)


def test_the_tokens_are_those_of_the_text(folder):
    policy = learner(folder).policy
    sampling = Sampling(temperature=1.0, max_tokens=12, seed=4)
    requests = [Request(policy_chat(QUERY), replace(sampling, seed=seed)) for seed in range(4)]
    for answer, completion in zip(policy.write(requests), policy.complete(requests), strict=True):
        assert not isinstance(answer, Failure)
        assert not isinstance(completion, Failure)
        assert answer.text == completion.text.strip().encode("utf-8", "replace").decode()
        assert len(answer.tokens) == completion.completion_tokens
        assert answer.truncated == completion.truncated


def test_what_is_learnt_from_does_not_end_before_it_began(tmp_path):
    own = learner(writer(tmp_path / "silent", end=40.0))  # it would say nothing at all
    requests = [Request(policy_chat(QUERY), Sampling(temperature=1.0, max_tokens=4, seed=seed)) for seed in range(12)]
    silent = [answer for answer in own.policy.complete(requests) if not isinstance(answer, Failure)]
    assert [answer.text for answer in silent] == [""] * 12
    written = [answer for answer in own.policy.write(requests) if not isinstance(answer, Failure)]
    assert len(written) > 6
    assert all(answer.tokens[0] != 2 and answer.tokens[1:] == [2] for answer in written)
    assert [answer.text for answer in own.policy.complete(requests) if not isinstance(answer, Failure)] == [""] * 12


def test_probabilities_are_counted_as_answers_are_drawn(folder):
    """Over all first tokens they add up to one without the end, over all second ones with it."""
    own = learner(folder)
    words = range(own.net.lm.config.vocab_size)
    with torch.no_grad():
        chances = own.net(pad_batch([[5, 6]] * len(words), [[word, word] for word in words])).logp.exp()
        assert float(chances[2, 0]) == 0
        assert float(chances[:, 0].sum()) == pytest.approx(1, abs=1e-4)
        second = own.net(pad_batch([[5, 6]] * len(words), [[7, word] for word in words])).logp.exp()
        assert float(second[2, 1]) > 0
        assert float(second[:, 1].sum()) == pytest.approx(1, abs=1e-4)


def test_an_answer_without_words_is_empty(folder):
    own = learner(folder)
    with torch.no_grad():
        own.net.lm.lm_head.weight.zero_()  # all tokens alike: the likeliest is <pad>, which is no text
    (answer,) = own.policy.write([Request(policy_chat(QUERY), Sampling(max_tokens=3))])
    assert isinstance(answer, Answer)
    assert answer.text == ""


def test_a_long_prompt_loses_its_oldest_posts_and_leaves_room_for_the_answer(folder):
    policy = learner(folder).policy

    def fit(prompt: int, answer: int) -> tuple[Query, int] | Failure:
        return policy.fitted(Views(QUERY, QUERY), settings(folder, max_prompt=prompt, max_tokens=answer))

    assert fit(200, 8) == (QUERY, 0)
    fitted = fit(80, 8)
    assert not isinstance(fitted, Failure)
    query, cut = fitted
    assert cut == 2
    assert query.posts == QUERY.posts[cut:]
    assert fit(10**6, 176) == fitted  # of 256 positions
    assert isinstance(fit(8, 8), Failure)


@pytest.mark.parametrize("lora", [0, 2])
def test_the_reference_stays_what_the_policy_was(folder, lora):
    if lora:
        pytest.importorskip("peft", reason="needs the train extra")
    own, texts = learner(folder, lora=lora), pad_batch(PROMPTS, ANSWERS)

    def logp(lm: Any) -> Any:
        with torch.no_grad():
            return own.net.answer_logp(run(lm, texts)[0], texts)[0]

    before = logp(own.net.lm)
    move(own)
    with own.as_reference() as lm:
        torch.testing.assert_close(logp(lm), before)
    assert (logp(own.net.lm) - before).abs().max() > 0.01


def test_adapters_are_all_that_lora_trains_and_they_depend_on_the_seed_alone(folder):
    pytest.importorskip("peft", reason="needs the train extra")
    one, same, other = (learner(folder, lora=2, seed=seed).trainable() for seed in (1, 1, 2))
    assert all("lora" in name or name.startswith("head.") for name in one)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_critic_of_its_own_leaves_the_policy_alone(folder, monkeypatch):
    texts = pad_batch(PROMPTS, ANSWERS)
    for separate in (False, True):
        monkeypatch.setattr("prb.downstream.ppo.OURS", OURS._replace(separate_critic=separate))
        net = learner(folder).net
        torch.nn.init.normal_(net.head.weight)
        net(texts).value.sum().backward()
        reached = any(p.grad is not None and p.grad.any() for p in net.lm.parameters())
        assert reached == (not separate)


REQUEST = [Request(policy_chat(QUERY), Sampling(temperature=1.0, max_tokens=10, seed=3))]


def test_training_does_not_touch_the_copy_that_others_use(folder):
    judge = make_llm(f"transformers/{folder}?device=cpu&dtype=fp32")
    before = judge.complete(REQUEST)
    move(learner(folder), by=0.5)
    assert judge.complete(REQUEST) == before


@pytest.mark.parametrize("lora", [0, 2])
def test_a_saved_policy_is_loaded_as_any_other_and_adapters_go_on_the_base_again(folder, tmp_path, lora):
    if lora:
        pytest.importorskip("peft", reason="needs the train extra")
    own, saved = learner(folder, lora=lora), tmp_path / "policy"
    move(own, by=0.05)
    own.save(saved)
    again = make_llm(f"transformers/{folder}?adapter={saved}" if lora else f"transformers/{saved}")
    assert again.complete(REQUEST) == own.policy.complete(REQUEST)
    assert not list(saved.glob("*.bin"))


@pytest.mark.parametrize(
    ("option", "lora", "why"), [("dtype=bf16", 0, "32 bits"), ("adapter=x", 2, "merge that one first")]
)
def test_what_training_cannot_take_is_refused(folder, option, lora, why):
    with pytest.raises(BadInput, match=why):
        learner(f"{folder}?{option}", lora=lora)


def test_values_stay_in_32_bits_where_the_model_computes_in_16(folder):
    net = learner(folder).net
    torch.nn.init.normal_(net.head.weight, generator=torch.Generator().manual_seed(0))
    batch = pad_batch(PROMPTS, ANSWERS)
    seen: list[Any] = []
    net.head.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        value = net(batch).value
    assert seen == [torch.float32]
    assert not torch.equal(value, value.bfloat16().float())
