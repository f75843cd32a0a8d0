"""Classifier, likelihood and implicit reward models on tiny checkpoints, against formulas written out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from prb.engine.cascade import Bundle
from prb.engine.states import States
from prb.errors import BadInput
from prb.models import MODELS
from prb.models.classifier import CATALOGUE, quirk_of, reward_of
from prb.prompts import render
from prb.types import Ask, Failure, Post, Query, Reward
from tests import tiny
from tests.tiny import torch, transformers

POSTS = (Post("1", "", "big city early"), Post("2", "", "long book late morning"))
QUERY = Query(question="best bread", user="u", posts=POSTS)
ASKS = [Ask(QUERY, "cook a long day"), Ask(QUERY, "be early"), Ask(Query(question="best bread"), "be early")]


def chat(prompt: str, answer: str) -> str:
    return f"<s><|user|>\n{prompt}<|end|>\n<|assistant|>\n{answer}<|end|>\n"


def own_logits(folder: Path, text: str) -> list[float]:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(input_ids=tokens["input_ids"]).logits[0].tolist()


def logp(folder: Path, prompt: str, answer: str) -> tuple[float, int]:
    """log p of the answer's tokens by a plain pass over the whole text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    before = tokenizer(f"<s><|user|>\n{prompt}<|end|>\n<|assistant|>\n", add_special_tokens=False)["input_ids"]
    own = tokenizer(answer, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        table = torch.log_softmax(model(input_ids=torch.tensor([before + own])).logits[0], dim=-1)
    start = len(before)
    return sum(float(table[start + i - 1, token]) for i, token in enumerate(own)), len(own)


def test_a_classifier_reads_posts_and_question_as_the_user_turn(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", "llama", labels=1)
    scores = MODELS.make(f"classifier?path={folder}").score(ASKS)
    wanted = [own_logits(folder, chat(render(ask.query), ask.answer))[0] for ask in ASKS]
    assert scores == pytest.approx(wanted, abs=1e-4)
    assert scores[1] != pytest.approx(scores[2], abs=1e-4)  # the person makes a difference


def test_of_several_logits_the_log_odds_of_the_last_count_or_the_one_that_is_named(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", "qwen2", labels=3)
    logits = own_logits(folder, chat(render(QUERY), ASKS[0].answer))
    (auto,) = MODELS.make(f"classifier?path={folder}").score(ASKS[:1])
    (second,) = MODELS.make(f"classifier?path={folder}&logit=1").score(ASKS[:1])
    p = math.exp(logits[2]) / sum(map(math.exp, logits))
    assert auto == pytest.approx(math.log(p / (1 - p)), abs=1e-4)
    assert second == pytest.approx(logits[1], abs=1e-4)


@pytest.mark.parametrize("architecture", ["bert", "deberta"])
def test_an_encoder_with_a_pair_head_gets_prompt_and_answer_as_two_texts(architecture: str, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", architecture, labels=1, template=None)
    (score,) = MODELS.make(f"classifier?path={folder}&input=pair").score(ASKS[:1])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(render(QUERY), ASKS[0].answer, return_tensors="pt")
    with torch.no_grad():
        assert score == pytest.approx(float(model(**tokens).logits[0, 0]), abs=1e-4)


def test_mean_and_pmi_follow_their_formulas(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "lm", "qwen2")
    with_person = [logp(folder, render(a.query), a.answer) for a in ASKS]
    alone = [logp(folder, render(Query(question=a.query.question)), a.answer) for a in ASKS]
    mean = MODELS.make(f"likelihood?lm={folder}&norm=mean").score(ASKS)
    pmi = MODELS.make(f"likelihood?lm={folder}").score(ASKS)
    assert mean == pytest.approx([total / n for total, n in with_person], abs=1e-3)
    assert pmi == pytest.approx([a - b for (a, _), (b, _) in zip(with_person, alone, strict=True)], abs=2e-3)
    assert pmi[2] == 0.0  # no person, nothing added


def test_an_implicit_reward_is_beta_times_the_log_ratio_and_against_itself_zero(tmp_path: Path) -> None:
    policy, reference = tiny.save(tmp_path / "a", "llama", seed=1), tiny.save(tmp_path / "b", "llama", seed=2)
    scores = MODELS.make(f"implicit?policy={policy}&reference={reference}&beta=0.5").score(ASKS)
    wanted = [
        0.5 * (logp(policy, render(a.query), a.answer)[0] - logp(reference, render(a.query), a.answer)[0]) for a in ASKS
    ]
    assert scores == pytest.approx(wanted, abs=2e-3)
    assert MODELS.make(f"implicit?policy={policy}&reference={policy}").score(ASKS) == [0.0] * 3


@pytest.mark.parametrize(("norm", "power"), [("sum", 0.0), ("mean", 1.0), ("length", 0.5)])
def test_reference_free_rewards_divide_by_a_power_of_the_length(norm: str, power: float, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "a", "llama")
    scores = MODELS.make(f"implicit?policy={folder}&norm={norm}&beta=1").score(ASKS)
    wanted = [total / n**power for total, n in (logp(folder, render(a.query), a.answer) for a in ASKS)]
    assert scores == pytest.approx(wanted, abs=2e-3)


def test_what_is_too_long_loses_old_posts_and_says_so_and_the_answer_stays_whole(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", "llama", labels=1)
    long = Query(question="best bread", user="u", posts=tuple(Post(str(n), "", "long book " * 12) for n in range(8)))
    asks = [Ask(long, "be early"), Ask(long, "cook a long day")]
    cut = MODELS.make(f"classifier?path={folder}&max_length=150").score(asks)
    assert all(isinstance(reward, Reward) and reward.cut > 0 and reward.tokens <= 150 for reward in cut)
    assert cut[0].cut == cut[1].cut  # both answers are judged on the same ground
    (failure,) = MODELS.make(f"classifier?path={folder}&max_length=20").score([Ask(long, "late " * 40)])
    assert isinstance(failure, Failure)


def test_the_catalogue_is_found_by_hub_id_or_folder_name_and_code_runs_only_if_asked_for() -> None:
    assert quirk_of("OpenAssistant/reward-model-deberta-v3-large-v2").layout == "pair"
    assert quirk_of("/models/URM-LLaMa-3.1-8B").logit == 0
    assert quirk_of("nobody/something") == quirk_of("elsewhere")
    with pytest.raises(BadInput, match="trust_remote_code=true"):
        MODELS.make("classifier?path=RLHFlow/ArmoRM-Llama3-8B-v0.1")


def test_what_the_engine_cannot_run_is_refused() -> None:
    for name, quirk in CATALOGUE.items():
        assert quirk_of(name) is quirk
        assert bool(quirk.unsupported) != bool(quirk.tested), name
        if quirk.unsupported:
            with pytest.raises(BadInput, match="plug-in"):
                MODELS.make(f"classifier?path={name}")


def test_nemotron_style_rewards_are_the_first_logit_after_the_dialogue(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "Llama-3.1-Nemotron-70B-Reward-HF", "llama")
    (score,) = MODELS.make(f"classifier?path={folder}").score(ASKS[:1])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(chat(render(QUERY), ASKS[0].answer), add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert score == pytest.approx(float(model(input_ids=ids).logits[0, -1, 0]), abs=1e-4)


def test_a_run_says_whether_prefixes_were_shared_and_why_not(tmp_path: Path) -> None:
    from prb.api import evaluate
    from prb.runs import read_json

    pairs = {
        "shared": tiny.save(tmp_path / "a", "llama", labels=1),
        "whole": tiny.save(tmp_path / "b", "bert", labels=1),
    }
    models = [f"{name}:=classifier?path={folder}" for name, folder in pairs.items()]
    evaluate(model=models, limit=2, condition=["none"], out=tmp_path / "run", max_failed=1.0)
    execution = read_json(tmp_path / "run" / "config.json")["execution"]
    assert execution["shared"] == "prefixes shared"
    assert execution["whole"] == "prefixes not shared, whole texts in padded batches: it looks ahead, as encoders do"


def test_a_text_that_does_not_fit_on_the_device_is_a_failure_and_the_others_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.save(tmp_path / "m", "llama", labels=1)
    expected = MODELS.make(f"classifier?path={folder}").score(ASKS)
    read, sizes = States.run, []

    def small(self: States, bundles: list[Bundle], reduce: Any) -> Any:
        sizes.append(sum(len(b.prefix) + len(suffix) for b in bundles for suffix in b.suffixes))
        if sum(len(b.suffixes) for b in bundles) > 1 or any(len(s) > 40 for b in bundles for s in b.suffixes):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return read(self, bundles, reduce)

    model = MODELS.make(f"classifier?path={folder}")
    monkeypatch.setattr(States, "run", small)
    scores = model.score([*ASKS, Ask(QUERY, "late " * 60)])
    assert scores[:3] == pytest.approx(expected, abs=1e-4)
    assert scores[3] == Failure("out of memory", "it does not fit alone")
    assert sizes[0] == max(sizes)


def test_a_logit_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(BadInput, match="the head has 2"):
        reward_of([0.1, 0.2], 5)
    assert reward_of([0.0, 0.0], "auto") == 0.0
