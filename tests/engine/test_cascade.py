"""Packed rows give the states of plain forward passes, copy no prefix, and leave other attention alone."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

from prb.engine import cascade
from prb.engine.cascade import Bundle
from prb.engine.states import LARGEST, States, packed_rows
from tests.architectures import GROUPED, model_of
from tests.tiny import larger_weights, torch, transformers


def bundles_of(*shapes: tuple[int, tuple[int, ...]]) -> list[Bundle]:
    random = Random(0)

    def tokens(n: int) -> list[int]:
        return random.choices(range(3, 400), k=n)

    return [Bundle(tokens(prefix), tuple(map(tokens, suffixes))) for prefix, suffixes in shapes]


BUNDLES = bundles_of((70, (1, 60, 3, 44, 43, 2)), (0, (5, 30)), (1, (9,)), (40, (8, 8, 8)))
"""Very different lengths, an empty prefix, one token, a single suffix, equal suffixes."""


def states_of(shared: States, bundles: list[Bundle] = BUNDLES) -> list[Any]:
    return [states for row in shared.run(bundles, lambda s, *_: s.float()) for states in row]


@torch.inference_mode()
def worst(body: Any, found: list[Any], bundles: list[Bundle] = BUNDLES) -> float:
    """Largest difference from plain forward passes, as a share of the largest state."""
    sequences = [(len(b.prefix), [*b.prefix, *suffix]) for b in bundles for suffix in b.suffixes]
    differences, scale = [], 0.0
    for (prefix, ids), states in zip(sequences, found, strict=True):
        plain = body(input_ids=torch.tensor([ids])).last_hidden_state[0].float()
        expected, actual = (plain[prefix - 1 :], states) if prefix else (plain, states[1:])
        differences.append(float((expected - actual).abs().max()))
        scale = max(scale, float(plain.abs().max()))
    return max(differences) / scale


@pytest.mark.parametrize("architecture", ["Llama", "Qwen3", "Gemma", "GPT-2"])
@pytest.mark.parametrize("budget", [20, 4096])
def test_packed_states_are_those_of_a_plain_forward_pass(architecture: str, budget: int) -> None:
    body = model_of(architecture, "AutoModel")
    shared = States(body, budget=budget)
    found = states_of(shared)
    assert all(map(shared.packs, BUNDLES))
    assert worst(body, found) < 3e-6


@pytest.mark.parametrize("architecture", ["Mistral (window)", "Gemma 3", "Gemma 2", "Bloom (ALiBi)"])
def test_other_kinds_of_attention_get_copies_of_the_prefix(architecture: str) -> None:
    body = model_of(architecture, "AutoModel")
    before = body.config._attn_implementation
    shared = States(body, budget=100)
    found = states_of(shared)
    assert not shared.packs(BUNDLES[0])
    assert body.config._attn_implementation == before
    assert worst(body, found) < 3e-6


def test_texts_shorter_than_the_window_are_packed_beside_longer_ones_that_are_not() -> None:
    config = transformers.MistralConfig(**GROUPED, sliding_window=64)
    body = larger_weights(transformers.AutoModel.from_config(config))
    bundles = bundles_of((70, (8, 9)), (30, (8, 34)), (30, (35,)))
    shared = States(body, budget=4096)
    assert [shared.packs(b) for b in bundles] == [False, True, False]
    assert worst(body, states_of(shared, bundles), bundles) < 3e-6


def test_a_model_that_does_not_attend_through_the_interface_is_found_out() -> None:
    body = model_of("Llama", "AutoModel")
    body.config.num_hidden_layers = 3  # one layer seems to attend in its own way
    shared = States(body, budget=4096)
    assert shared.packs(BUNDLES[0])
    found = states_of(shared)
    assert not shared.packs(BUNDLES[0])
    body.config.num_hidden_layers = 2
    assert worst(body, found) < 3e-6


def test_the_model_is_left_as_it_was_also_after_an_error() -> None:
    body = model_of("Llama", "AutoModel")
    for name in ("sdpa", "eager"):
        body.set_attn_implementation(name)
        shared = States(body, budget=4096)
        assert worst(body, states_of(shared)) < 3e-6
        with pytest.raises(IndexError):
            shared.run([Bundle([10**6], ([1],))], lambda s, *_: s)
        assert body.config._attn_implementation == name
        assert shared.packs(BUNDLES[0])


def test_a_plain_pass_of_the_same_model_in_another_thread_is_not_disturbed(monkeypatch: Any) -> None:
    body = model_of("Llama", "AutoModel")
    ids, found = torch.tensor([[5, 6, 7, 8]]), []
    mask = torch.tensor([[0, 1, 1, 1]])

    @torch.inference_mode()
    def plain() -> None:
        found.append(body(input_ids=ids, attention_mask=mask).last_hidden_state[0, 1:])

    plain()
    monkeypatch.setattr(body.config, "_attn_implementation", cascade.NAME)  # as while a cascade reads a row
    other = threading.Thread(target=plain)
    other.start()
    other.join()
    assert torch.allclose(*found, atol=1e-5)


@pytest.mark.parametrize("budget", [1, 20, 60, 100, 500])
def test_rows_hold_every_suffix_once_in_order_and_stay_within_the_budget(budget: int) -> None:
    rows = list(packed_rows(dict(enumerate(BUNDLES)), budget))
    pieces = [piece for row in rows for piece in row]
    assert [piece.number for piece in pieces] == sorted(piece.number for piece in pieces)
    for number, whole in enumerate(BUNDLES):
        of_one = [piece for piece in pieces if piece.number == number]
        assert tuple(suffix for piece in of_one for suffix in piece.tokens.suffixes) == whole.suffixes
        assert all(whole.suffixes[piece.first] is piece.tokens.suffixes[0] for piece in of_one)
    for row in rows:
        assert sum(piece.tokens.size for piece in row) <= budget or len(row) == 1
        longest = max(sum(map(len, piece.tokens.suffixes)) for piece in row)
        assert longest <= LARGEST * budget or len(row[0].tokens.suffixes) == 1
    if budget * LARGEST >= 153:  # all suffixes of the largest bundle
        assert sum(map(len, rows)) == len(BUNDLES)  # no prefix is read twice


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [8, 7])
def test_a_kernel_gives_attention_and_its_log_sum_exp(causal: bool, size: int) -> None:
    query, key, value = (torch.randn(2, heads, 11, size) for heads in (6, 3, 3))
    out, lse = cascade.plain(query, key, value, 0.3, causal)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=0.3, enable_gqa=True
    )
    assert torch.allclose(out, expected, atol=1e-5)
    found = cascade.attend(query, key, value, scale=0.3, causal=causal)
    assert torch.allclose(found.out, out, atol=1e-5)
    assert torch.allclose(found.lse, lse, atol=1e-5)


def test_a_kernel_that_gives_other_numbers_is_not_used(monkeypatch: Any) -> None:
    def wrong(query: Any, key: Any, value: Any, scale: float, causal: bool) -> cascade.Partial:
        out, lse = cascade.plain(query, key, value, scale, causal)
        return cascade.Partial(out, lse * 1.4427)  # in base 2

    def missing(*_: Any) -> cascade.Partial:
        raise AttributeError("no such operation")

    monkeypatch.setitem(cascade.KERNELS, "cpu", (wrong, missing))
    with pytest.raises(cascade.Unsuited, match=r"no kernel for torch\.float32 on cpu"):
        cascade._kernel.__wrapped__(torch.device("cpu"), torch.float32, 8, 8, 2, True)


def test_parts_far_apart_merge_without_overflow() -> None:
    out, lse = torch.randn(2, 1, 1, 3, 4), torch.tensor([[[[0.0, 500.0, -500.0]]], [[[0.0, -500.0, 500.0]]]])
    merged = cascade.merge(cascade.Partial(out[0], lse[0]), cascade.Partial(out[1], lse[1]))
    expected = torch.stack([out[:, 0, 0, 0].mean(dim=0), out[0, 0, 0, 1], out[1, 0, 0, 2]])
    assert torch.allclose(merged[0, 0], expected)
