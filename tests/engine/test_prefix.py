"""Bundles and batches; scores equal a plain forward pass, whatever shares the batch."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.engine.chat import Chat, Text, common_prefix
from prb.engine.heads import AnswerLogp, LastToken
from prb.engine.load import Loading, load
from prb.engine.prefix import Bundle, SharedPrefix, batches, bundle
from prb.types import Query
from tests import tiny
from tests.tiny import torch

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=6)


def test_a_bundle_splits_after_the_longest_common_beginning() -> None:
    made = bundle([[1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 9, 9]])
    assert (made.prefix, made.suffixes) == ([1, 2], ([3, 4], [5], [3, 9, 9]))
    assert (made.repeated, made.unique) == (12, 8)


def test_every_sequence_keeps_a_token_of_its_own_even_if_it_is_the_beginning_of_another() -> None:
    assert bundle([[1, 2], [1, 2, 3]]).suffixes == ([2], [2, 3])
    assert bundle([[7]]).suffixes == ([7],)


def test_the_prefix_can_be_kept_short() -> None:
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
    groups = list(batches(lengths, budget))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


CAUSAL = ["llama", "qwen2", "gemma", "gemma2", "gpt2"]
ENCODERS = ["bert", "deberta"]
TOLERANCE = 1e-4


def groups_of(tokenizer: object, seed: int = 0, queries: int = 6) -> list[list[Text]]:
    """Prompts and answers of very different lengths, two to four answers a query."""
    random, chat = Random(seed), Chat(tokenizer)
    made = []
    for _ in range(queries):
        prompt = " ".join(random.choices(tiny.WORDS, k=random.randint(1, 60)))
        answers = [" ".join(random.choices(tiny.WORDS, k=random.randint(1, 25))) for _ in range(random.randint(2, 4))]
        made.append([chat.text(Query(question=prompt), answer) for answer in answers])
    return made


@pytest.mark.parametrize("architecture", CAUSAL + ENCODERS)
@pytest.mark.parametrize("labels", [1, 3])
def test_a_reward_head_gives_what_the_model_gives_on_its_own(architecture: str, labels: int, tmp_path: Path) -> None:
    loaded = load(str(tiny.save(tmp_path, architecture, labels=labels)), "classifier", Loading(tokens=300))
    groups = groups_of(loaded.tokenizer)
    head = LastToken(loaded)
    assert head.sharing.prefixes == (architecture in CAUSAL)
    for texts, rows in zip(groups, head.logits(groups), strict=True):
        for text, row in zip(texts, rows, strict=True):
            with torch.no_grad():
                alone = loaded.model(input_ids=torch.tensor([list(text.ids)])).logits[0]
            assert torch.allclose(row, alone, atol=TOLERANCE)


@pytest.mark.parametrize("architecture", CAUSAL)
def test_log_probabilities_of_answers_are_those_of_a_plain_pass(architecture: str, tmp_path: Path) -> None:
    loaded = load(str(tiny.save(tmp_path, architecture)), "causal", Loading(tokens=300))
    groups = groups_of(loaded.tokenizer)
    head = AnswerLogp(loaded)
    assert head.sharing.prefixes
    for texts, rows in zip(groups, head.spoken(groups), strict=True):
        for text, spoken in zip(texts, rows, strict=True):
            ids = torch.tensor([list(text.ids)])
            with torch.no_grad():
                logp = torch.log_softmax(loaded.model(input_ids=ids).logits[0].double(), dim=-1)
            slow = sum(float(logp[i - 1, text.ids[i]]) for i in range(text.start, text.end))
            assert spoken.logp == pytest.approx(slow, abs=1e-3)
            assert spoken.tokens == text.end - text.start


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma", "bert", "deberta"])
def test_scores_depend_neither_on_batch_size_nor_on_order_nor_on_neighbours(architecture: str, tmp_path: Path) -> None:
    folder = str(tiny.save(tmp_path, architecture, labels=1))
    alone = load(folder, "classifier", Loading(tokens=1))
    groups = groups_of(alone.tokenizer, queries=16)
    wanted = [[float(x) for x in row] for row in LastToken(alone).logits(groups)]
    for budget in (2, 64, 256, 1024, 4096):
        head = LastToken(load(folder, "classifier", Loading(tokens=budget)))
        order = Random(budget).sample(range(len(groups)), len(groups))
        rows = head.logits([groups[i] for i in order])
        for i, row in zip(order, rows, strict=True):
            assert [float(x) for x in row] == pytest.approx(wanted[i], abs=TOLERANCE)


def test_a_prefix_is_computed_once_for_all_its_answers(tmp_path: Path) -> None:
    loaded = load(str(tiny.save(tmp_path, "llama")), "causal", Loading())
    body, seen = loaded.model.base_model, []
    body.register_forward_pre_hook(lambda _, __, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True)
    made = Bundle(list(range(5, 105)), tuple([n, n + 1, n + 2] for n in range(5, 15)))
    SharedPrefix(body, budget=4096).run([made], lambda states, *_: len(states))
    assert sum(seen) == made.unique == 130


@pytest.mark.parametrize("architecture", CAUSAL)
def test_kept_prefixes_give_the_scores_of_prefixes_read_afresh(architecture: str, tmp_path: Path) -> None:
    folder = str(tiny.save(tmp_path, architecture))
    groups = groups_of(load(folder, "causal", Loading()).tokenizer)
    wanted = [s.logp for row in AnswerLogp(load(folder, "causal", Loading())).spoken(groups) for s in row]
    keeping = AnswerLogp(load(folder, "causal", Loading(tokens=300, keep=10)))
    for order in (groups, groups[::-1], [[text] for group in groups for text in group]):
        found = {tuple(text.ids): s.logp for g, row in zip(order, keeping.spoken(order), strict=True)
                 for text, s in zip(g, row, strict=True)}  # fmt: skip
        assert [found[tuple(text.ids)] for group in groups for text in group] == pytest.approx(wanted, abs=1e-3)


def test_a_kept_prefix_is_not_read_again_until_it_is_forgotten(tmp_path: Path) -> None:
    loaded = load(str(tiny.save(tmp_path, "llama")), "causal", Loading())
    body, seen = loaded.model.base_model, []
    body.register_forward_pre_hook(lambda _, __, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True)
    one, other = (Bundle(list(range(n, n + 100)), ([1, 2, 3],)) for n in (5, 6))
    # keys and values of 100 tokens: 3 layers x 2 x 16 numbers x 4 bytes x 100 = 38,400 bytes
    for room, read in ((38_400, [103, 3, 103, 103]), (2 * 38_400, [103, 3, 103, 3]), (38_399, [103] * 4)):
        shared, tokens = SharedPrefix(body, budget=4096, keep=room), []
        for made in (one, one, other, one):
            seen.clear()
            shared.run([made], lambda states, *_: len(states))
            tokens.append(sum(seen))
        assert tokens == read


def test_a_batch_of_suffixes_holds_no_more_copies_of_the_prefix_than_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(str(tiny.save(tmp_path, "llama")), "causal", Loading())
    body, rows = loaded.model.base_model, []
    body.register_forward_pre_hook(lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    made = Bundle(list(range(5, 105)), tuple([n, n + 1] for n in range(5, 15)))
    # keys and values of 100 tokens: 3 layers x 2 x 16 numbers x 4 bytes x 100 = 38,400 bytes
    monkeypatch.setattr("prb.engine.prefix.COPIED_BYTES", 4 * 38_400)
    shared = SharedPrefix(body, budget=4096)
    monkeypatch.setattr(shared, "_cascade", None)  # packed rows copy nothing
    shared.run([made], lambda states, *_: len(states))
    assert rows == [1, 4, 4, 2]


def test_an_empty_answer_is_a_failure_of_its_own(tmp_path: Path) -> None:
    from prb.models import MODELS
    from prb.types import Ask, Failure, Scorer

    model = MODELS.make(f"likelihood?lm={tiny.save(tmp_path, 'llama')}&cache=false")
    assert isinstance(model, Scorer)
    query = Query(question="a better book?")
    empty, said = model.score([Ask(query, "  "), Ask(query, "a big book")])
    assert empty == Failure("empty answer")
    assert [said] == model.score([Ask(query, "a big book")])
