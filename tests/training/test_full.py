"""Full fine-tuning of tiny models: what trl is given, what comes out, and what happens when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.load import load
from prb.engine.chat import Chat
from prb.errors import BadInput, PrbError, RunConflict
from prb.evaluation.conditions import QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.models import MODELS
from prb.progress import SILENT
from prb.prompts import render
from prb.runs import Finished, read_object
from prb.training.config import FullConfig
from prb.training.run import train
from prb.types import Ask, Pair, Query
from tests import tiny
from tests.conftest import make_row
from tests.tiny import transformers
from tests.training.synthetic import Interrupts

trl = pytest.importorskip("trl", reason="needs the train extra")

from prb.training.full import finetune, last_checkpoint, token_columns, token_rows  # noqa: E402

GOOD, BAD = "early early morning", "late late long"


def rows() -> list[dict[str, Any]]:
    """Everybody likes mornings: learnable in a few steps, even by a tiny model."""
    return [
        make_row(
            n,
            user=f"u{n // 2}",
            question="best day?",
            profile=[{"id": f"{n}-1", "category": "", "text": f"a book {n}"}],
            chosen=f"{GOOD} {n}",
            rejected=f"{BAD} {n}",
            split="train",
        )
        for n in range(16)
    ]


def write(path: Path, made: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in made))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"{tiny.save(tmp_path_factory.mktemp('base') / 'lm', 'llama')}?device=cpu"


@pytest.fixture(scope="module")
def tokenizer(base: str) -> Any:
    return transformers.AutoTokenizer.from_pretrained(base.partition("?")[0])


@pytest.fixture(autouse=True, scope="module")
def saved_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prb.training.full.SAVE_EVERY", 2)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "set.jsonl", rows())


def settings_for(method: Any = "reward-model", **changes: Any) -> FullConfig:
    quick = {"lr": 2e-3, "batch": 4, "epochs": 3, "validation": 0}
    return FullConfig(method=method, **{**quick, **changes})


@pytest.fixture
def settings(base: str, data: Path, tmp_path: Path) -> Callable[..., FullConfig]:
    return partial(settings_for, base=base, dataset=data, out=tmp_path / "out")


RECIPE = {"validation": 0.25, "epochs": 4}


@pytest.fixture(scope="module")
def reward_model(base: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FullConfig, Finished]:
    """One undisturbed training that several tests look at."""
    folder = tmp_path_factory.mktemp("reward-model")
    config = settings_for(base=base, dataset=data, out=folder / "out", **RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prb.cache.cache_path", lambda: folder / "cache.sqlite")
        return config, finetune(config)


def credit(spec: str, dataset: str) -> float:
    """Share of training pairs that the model, loaded like any other, puts right."""
    model: Any = MODELS.make(spec)
    pairs = [pair for pair in load(dataset, split="train") if isinstance(pair, Pair)]
    asks = [Ask(Query(question=p.question, user=p.user, posts=tuple(p.profile)), a) for p in pairs for a in p.answers]
    scores = model.score(asks)
    return sum(a > b for a, b in zip(scores[::2], scores[1::2], strict=True)) / len(pairs)


# --- what trl is given


def test_training_reads_the_tokens_an_evaluation_would_read(settings, tokenizer):
    config = settings(k=1)
    dataset = load(config.dataset, split="train")
    builder = QueryBuilder.of(config, dataset, PLANNERS.make("extractive"), reader=None, seed=0)
    made = token_rows(config, dataset, Chat(tokenizer), 512, SILENT)
    for pair, row in zip(dataset, made.fit, strict=True):
        built = builder.build(pair, "profile")
        for answer, ids in zip(pair.answers, (row["chosen_ids"], row["rejected_ids"]), strict=True):
            # by hand: the template's own text, without the tokenizer's special tokens
            whole = f"<s><|user|>\n{render(built.query)}<|end|>\n<|assistant|>\n{answer}<|end|>\n"
            assert ids == tokenizer(whole, add_special_tokens=False)["input_ids"]
            assert ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"condition": "none"}, []),
        ({"condition": "profile", "history": "posts"}, ["a book 0"]),
        ({"condition": "plan", "history": "posts"}, ["a book 0"]),
        ({"history": "both"}, ["a book 0", "early book morning"]),
    ],
)
def test_condition_and_history_decide_what_the_prompt_shows(changes, shown, tokenizer, tmp_path):
    past = [{"question": "which book?", "chosen": "early book morning", "rejected": "late long book"}]
    data = write(tmp_path / "set.jsonl", [{**row, "choices": past} for row in rows()])
    config = settings_for(base="unused", dataset=data, **changes)
    made = token_rows(config, load(str(data), split="train"), Chat(tokenizer), 512, SILENT)
    prompt = tokenizer.decode(made.fit[0]["chosen_ids"])
    assert [text for text in ("a book 0", "early book morning") if text in prompt] == shown


def test_dpo_learns_from_the_answers_own_tokens(tokenizer):
    texts = Chat(tokenizer).texts(Query(question="best bread?"), (GOOD, GOOD + " day"))
    row = token_columns("dpo", *texts)
    assert tokenizer.decode(row["prompt_ids"]) == "<s><|user|>\nbest bread?<|end|>\n<|assistant|>\n"
    assert tokenizer.decode(row["chosen_ids"]) == GOOD
    assert tokenizer.decode(row["rejected_ids"]) == GOOD + " day"


# --- what comes out


def test_a_reward_model_is_trained_saved_and_read_by_the_classifier(reward_model):
    config, trained = reward_model
    out, card = trained.folder, trained.summary
    assert card == read_object(out / "card.json")
    assert card["model"] == f"classifier?path={out}" == trained.summary["model"]
    assert credit(card["model"], config.dataset) == 1.0
    assert card["curve"][-1]["loss"] < 0.5 < card["curve"][0]["loss"]
    assert card["data"]["fingerprint"] == load(config.dataset, split="train").fingerprint
    assert card["data"]["split"] == "train"
    assert card["data"] | {"rows": 16, "users": 8, "fitted": 12, "held_out": 4, "cut": 0, "failed": {}} == card["data"]
    assert (card["seed"], card["curve"][-1]["step"], len(card["held_out"])) == (0, 12, 4)
    assert len(card["trained_on"]["rows"]) == 12
    left = {path.suffix for path in out.rglob("*") if path.is_file()}
    assert left <= {".json", ".jinja", ".safetensors", ".lock", ""}
    assert last_checkpoint(out / "training") is None


def test_dpo_makes_a_policy_that_the_implicit_reward_reads(settings):
    config = settings("dpo?beta=0.5")
    trained = train(config)
    assert trained.summary["model"] == f"implicit?policy={trained.folder}&reference={config.source}&beta=0.5"
    assert credit(trained.summary["model"], config.dataset) == 1.0
    # before the first step policy and reference are the same, and the loss is that of a coin: ln 2
    assert trained.summary["curve"][0]["loss"] == pytest.approx(0.693147, abs=1e-5)


def test_lora_is_written_as_one_model_and_as_an_adapter_that_give_the_same_rewards(settings, tmp_path):
    headed = tiny.save(tmp_path / "headed", "llama", labels=1)
    out = finetune(settings(base=f"{headed}?device=cpu", lora=4, epochs=1)).folder
    asks = [Ask(Query(question="best day?"), answer) for answer in (GOOD, BAD)]
    whole = MODELS.make(f"classifier?path={out}").score(asks)
    apart = MODELS.make(f"classifier?path={headed}&adapter={out}/adapter").score(asks)
    before = MODELS.make(f"classifier?path={headed}").score(asks)
    assert whole == pytest.approx(apart, abs=1e-4)
    assert whole != pytest.approx(before, abs=1e-3)


def test_pairs_that_do_not_fit_are_counted_and_not_trained_on(settings, tokenizer, tmp_path):
    long = [{**row, "chosen": "city " * 900} if n < 3 else row for n, row in enumerate(rows())]
    config = settings(dataset=str(write(tmp_path / "long.jsonl", long)))
    made = token_rows(config, load(config.dataset, split="train"), Chat(tokenizer), 512, SILENT)
    assert made.counts == {"fitted": 13, "held_out": 0, "cut": 0, "failed": {"too long": 3}}


# --- interrupted


def test_a_run_that_was_interrupted_ends_like_one_that_was_not(settings, reward_model):
    config = settings(**RECIPE)
    with pytest.raises(KeyboardInterrupt):
        finetune(config, progress=Interrupts(after=7))
    work = config.target / "training"
    assert last_checkpoint(work) == str(work / "checkpoint-6")
    (work / "checkpoint-6" / "trainer_state.json").unlink()  # as kill -9 may leave it
    assert last_checkpoint(work) == str(work / "checkpoint-4")
    undisturbed, resumed = reward_model[1], finetune(config)
    first, second = ((run.folder / "model.safetensors").read_bytes() for run in (undisturbed, resumed))
    assert first == second
    assert resumed.summary["curve"] == undisturbed.summary["curve"]


def test_a_finished_folder_is_left_alone_and_other_settings_need_another(reward_model):
    config, trained = reward_model
    (trained.folder / "training" / "checkpoint-12").mkdir()  # of a run that was killed while it removed them
    written = {path: path.stat().st_mtime_ns for path in trained.folder.glob("*.*")}
    assert finetune(config) == trained
    assert {path: path.stat().st_mtime_ns for path in trained.folder.glob("*.*")} == written
    assert not (trained.folder / "training" / "checkpoint-12").exists()
    with pytest.raises(RunConflict, match=r"train\.lr"):
        finetune(replace(config, lr=1e-4))


# --- wrong input


def test_wrong_input_ends_with_one_line_and_leaves_nothing(settings, data, tmp_path):
    wrong = {
        "cannot load": settings(base=str(tmp_path / "nowhere")),
        "cannot be tested": settings(split="test"),
        "does not exist": settings(dataset=str(tmp_path / "no.jsonl")),
        "no pair can be trained on": settings(base=f"{settings().base}&max_length=8"),
    }
    for message, config in wrong.items():
        with pytest.raises(BadInput, match=message) as caught:
            finetune(config)
        assert len(str(caught.value).splitlines()) == 1
        assert not config.target.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"base": "x?max_length=2"}, "base 'x': max_length='2'"),
        ({"base": "x?dtpye=bf16"}, "did you mean 'dtype'"),
        ({"method": "dpo?beta=0"}, "method 'dpo': beta='0'"),
        ({"method": "reward-model?beta=1"}, "no option of method 'reward-model' named 'beta'"),
        ({"epochs": float("nan")}, "epochs"),
        ({"validation": 1.0}, "validation must be less than 1"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(changes, message, settings):
    with pytest.raises(BadInput, match=message):
        settings(**changes)


def test_a_loss_that_is_not_finite_stops_with_advice(settings):
    config = settings(lr=1e30)
    with pytest.raises(PrbError, match=r"at step \d+: lower --lr"):
        finetune(config)
    assert not (config.target / "card.json").exists()


def test_a_folder_of_something_else_is_not_touched(settings):
    config = settings()
    config.target.mkdir()
    (config.target / "thesis.txt").write_text("mine")
    with pytest.raises(RunConflict, match="not a training folder"):
        finetune(config)
    assert [path.name for path in config.target.iterdir()] == ["thesis.txt"]
