"""PPO learns, resumes exactly where it was killed, and stops where it should; in Python and on the command line."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.cli import run as prb
from prb.errors import BadInput, PrbError, RunConflict
from prb.models.scripted import ScriptedScorer
from prb.runs import read_json, read_lines
from prb.types import Ask, Failure
from tests.downstream.ppo.runs import BRIEF, LONG, ShortIsGood, brevity, config, length, people, scorer, writer
from tests.runs import recording

torch = pytest.importorskip("torch", reason="needs the torch extra")

from prb.downstream.ppo import OURS, FinishedPpo, Recipe, ppo  # noqa: E402
from prb.downstream.ppo.policy import load_prompts  # noqa: E402

Trained = Callable[..., FinishedPpo]


@pytest.fixture(autouse=True)
def saved_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prb.downstream.ppo.loop.CHECKPOINT_EVERY", 2)


def follow(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Another recipe than ours."""
    recipe: Recipe = OURS._replace(**changes)
    monkeypatch.setattr("prb.downstream.ppo.OURS", recipe)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writer(tmp_path_factory.mktemp("ppo") / "tiny")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return people(tmp_path / "people.jsonl", 40, BRIEF)


@pytest.fixture
def trained(policy: Path, data: Path, tmp_path: Path) -> Trained:
    """A small run in a folder of some name."""

    def call(name: str = "run", *, reward: Any = None, grader: Any = None, **changes: Any) -> FinishedPpo:
        return ppo(config(policy, data, tmp_path / name, **changes), reward=reward or scorer(), grader=grader)

    return call


def curves(folder: Path) -> list[dict[str, float]]:
    with (folder / "curves.csv").open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def files(folder: Path) -> dict[str, bytes]:
    """All that a finished run leaves, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "config.json", "replies.jsonl")
    }


# it learns


def assert_better(run: FinishedPpo, nats: float) -> None:
    """On 64 held-out prompts, one answer each, before and after."""
    held = run.summary["held_out"]
    assert held["prompts"] == 64
    assert held["reward"]["difference"]["value"] > 0
    assert held["reward"]["difference"]["p"] < 0.01
    assert max(row["kl"] for row in curves(run.folder)) < nats


def test_a_policy_learns_brevity_for_people_who_want_it(policy, tmp_path):
    rows = people(tmp_path / "people.jsonl", 192, BRIEF)
    settings: dict[str, Any] = {"steps": 6, "batch": 32, "minibatch": 16, "epochs": 2, "lr": 1e-3, "kl": 0.01}
    settings |= {"max_tokens": 16, "holdout": 64}
    run = ppo(config(policy, rows, tmp_path / "run", **settings), reward=scorer(), grader=ShortIsGood())
    assert_better(run, nats=10)
    graded = run.summary["held_out"]["grade"]
    assert graded["after"]["value"] > graded["before"]["value"]
    assert graded["difference"]["p"] < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_three_seeds_learn_brevity_for_those_who_want_it_and_length_for_the_others(policy, tmp_path, seed):
    rows = people(tmp_path / "people.jsonl", 256, BRIEF, LONG)
    settings: dict[str, Any] = {"steps": 30, "batch": 64, "minibatch": 32, "epochs": 4, "lr": 2e-3, "kl": 0.01}
    # a policy that learns brevity comes upon answers of blanks, which no model can score
    settings |= {"max_tokens": 16, "holdout": 64, "seed": seed, "empty_reward": -1.0}
    run = ppo(config(policy, rows, tmp_path / "run", **settings), reward=scorer(length))
    assert_better(run, nats=40)
    lengths: dict[tuple[str, bool], list[int]] = {}
    for line in read_lines(run.folder / "answers.jsonl"):
        brief = int(line["pair"].removeprefix("r")) % 2 == 0
        lengths.setdefault((line["stage"], brief), []).append(len(line["text"] or ""))
    mean = {key: sum(values) / len(values) for key, values in lengths.items()}
    assert abs(mean["before", True] - mean["before", False]) < 5
    assert mean["after", False] > 2 * mean["after", True]


# it goes on exactly where it was


class Killed(Exception):
    pass


def dies_at(call: int, function: Callable[[Ask], float] = brevity) -> ScriptedScorer:
    """A reward model during whose so-manieth answer the machine is switched off."""
    count = iter(range(10**9))

    def reward(ask: Ask) -> float:
        if next(count) == call:
            raise Killed
        return function(ask)

    return ScriptedScorer(reward, function.__name__)


@pytest.mark.parametrize("lora", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one(trained, policy, monkeypatch, lora):
    if lora:
        pytest.importorskip("peft", reason="needs the train extra")
    follow(monkeypatch, separate_critic=not lora)  # as much state as there can be
    changes: dict[str, Any] = {"steps": 4, "lora": lora, "policy": f"transformers/{policy}?batch=2"}
    whole = trained("whole", **changes)
    # 4 held-out prompts, then 8 answers per step: among the held-out ones, in the second step, in a later one
    for call in (2, 4 + 8 + 3, 2 * 8 + 2):
        with pytest.raises(Killed):
            trained("broken", reward=dies_at(call), **changes)
    broken, expected = trained("broken", **changes), files(whole.folder)
    assert {"curves.csv", "answers.jsonl", "summary.json"} <= set(expected)
    assert files(broken.folder) == expected
    assert len(curves(broken.folder)) == 4


def test_a_finished_run_is_only_read(trained):
    first = trained(steps=1)
    before = files(first.folder)
    assert trained(reward=dies_at(0), steps=1).summary == first.summary
    assert files(first.folder) == before
    assert not (first.folder / "checkpoint.safetensors").exists()


def test_other_weights_under_the_same_name_are_refused(trained, policy, tmp_path):
    shutil.copytree(policy, tmp_path / "copy")
    copied = f"transformers/{tmp_path / 'copy'}?batch=16"
    with pytest.raises(Killed):
        trained(reward=dies_at(20), policy=copied)
    with pytest.raises(RunConflict, match="'brevity' when the run began and is 'length' now"):
        trained(reward=scorer(length), policy=copied)
    writer(tmp_path / "copy", seed=1)
    with pytest.raises(RunConflict, match="model 'policy: transformers"):
        trained(policy=copied)


def test_pieces_of_a_minibatch_add_up_to_its_gradient(trained, policy):
    # one update: later ones would see weights that already differ by rounding
    settings = {"steps": 1, "epochs": 1, "batch": 8, "minibatch": 8, "holdout": 0}
    runs = [trained(f"by{n}", policy=f"transformers/{policy}?batch={n}", **settings) for n in (8, 2)]
    weights = [curves(run.folder)[0] for run in runs]
    assert weights[0].keys() == weights[1].keys()
    assert weights[0] == pytest.approx(weights[1], rel=1e-4, abs=1e-6)
    assert weights[0]["grad_norm"] > 0


# it stops where it should

ONE_STEP = {"steps": 1, "batch": 24, "minibatch": 8, "holdout": 0}


def test_a_dropped_answer_teaches_nothing(trained):
    """Its reward does not matter, because there is none: rubbish before it was dropped changes no byte."""

    def reward(rubbish: float) -> ScriptedScorer:
        count = iter(range(10**9))
        return ScriptedScorer(lambda ask: rubbish if next(count) == 3 else brevity(ask))

    runs = [trained(name, reward=reward(float(name)), **ONE_STEP) for name in ("nan", "inf")]
    one, other = (files(run.folder)["policy/model.safetensors"] for run in runs)
    assert one == other
    assert runs[0].summary["train"]["failed"] == 1


def test_an_answer_of_blanks_is_dropped_or_gets_the_reward_that_was_set_for_it(trained, monkeypatch):
    count = iter(range(10**9))
    monkeypatch.setattr("prb.downstream.ppo.policy.clean", lambda text: "" if next(count) % 24 == 5 else text)
    dropped, scored = (
        trained(name, **ONE_STEP, empty_reward=reward).summary["train"] for name, reward in (("a", None), ("b", -50.0))
    )
    assert (dropped["failed"], scored["failed"]) == (1, 0)
    assert scored["first"]["reward"] < dropped["first"]["reward"] - 1


@pytest.mark.parametrize(
    ("every", "why"),
    [
        (10, r"2 of the last 24 answers got no reward, more than 5%.*busy: try later"),
        (1, r"8 of the last 8 answers.*busy"),
    ],
)
def test_too_many_failures_stop_the_run_and_say_why(trained, tmp_path, every, why):
    count = iter(range(10**9))

    def fails(ask: Ask) -> float | Failure:
        return Failure("busy", "try later") if next(count) % every == every - 1 else brevity(ask)

    with pytest.raises(PrbError, match=why) as told:
        trained(reward=ScriptedScorer(fails), steps=10, holdout=0)
    assert told.value.exit_code == 1
    assert (tmp_path / "run").exists() == (every > 1)  # the first step leaves nothing


def test_weights_that_run_away_stop_the_run_with_what_to_do(trained, tmp_path, monkeypatch):
    follow(monkeypatch, stop_kl=None)
    monkeypatch.setattr("prb.downstream.ppo.loop.CHECKPOINT_EVERY", 1)
    with pytest.raises(PrbError, match=r"step \d: there is a NaN or an infinity in .* try a lower --lr"):
        trained(lr=1e12)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_policy_far_from_its_reference_stops_the_run_early(trained, monkeypatch):
    follow(monkeypatch, stop_kl=5.0)
    run = trained(steps=20, lr=0.03, kl=0.0)
    rows = curves(run.folder)
    assert len(rows) < 20
    assert rows[-1]["kl"] > 5
    assert all(row["kl"] <= 5 for row in rows[:-1])
    assert f"at step {len(rows)}, more than 5" in run.summary["train"]["stopped"]
    after = run.summary["held_out"]["reward"]["after"]
    assert after["n"] + after["failed"] == 4  # what came of it is scored all the same


# what it is told


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"batch": 10}, "batch must be a multiple of minibatch"),
        ({"engine": "slurm"}, "engine must be local or verl"),
        ({"engine": "verl?gpus=none"}, "engine 'verl': gpus='none'"),
        ({"lr": float("nan")}, "lr: "),
        ({"policy": "llamacpp/smollm2"}, "only weights that transformers loads can be trained"),
        ({"policy": "smollm2"}, "is not an llm spec"),
        ({"holdout": 40}, "leaves no prompt"),
        ({"split": "train"}, "has no `split` field"),
        ({"policy": "transformers/smollm2?nonsense=1"}, "no option of llm 'transformers' named 'nonsense'"),
    ],
)
def test_a_wrong_setting_ends_before_anything_is_written(trained, tmp_path, changes, why):
    with pytest.raises(BadInput, match=why):
        trained(**changes)
    assert not (tmp_path / "run").exists()


# as a person uses it


@pytest.fixture
def words(policy: Path, data: Path) -> list[str]:
    """A small run against `length`, which prefers the longer answer."""
    about = f"ppo --policy transformers/{policy} --model length --dataset {data} --steps 6 --batch 8 --minibatch 4"
    return f"{about} --lr 1e-3 --max-tokens 6 --max-prompt 128 --holdout 4 --quiet".split()


def test_a_run_is_shown_as_table_and_json_and_repeated_from_its_config(words, tmp_path, capsys):
    assert prb([*words, "--out", str(tmp_path / "one")]) == 0
    printed = capsys.readouterr().out
    assert "4 held-out prompts, one answer each, before and after 6 steps" in printed
    assert "reward" in printed
    assert f"policy: transformers/{tmp_path / 'one' / 'policy'}" in printed
    assert prb([*words, "--out", str(tmp_path / "one"), "--json"]) == 0
    summary = orjson.loads(capsys.readouterr().out)
    assert summary == read_json(tmp_path / "one" / "summary.json")
    assert summary["train"]["steps"] == 6
    again = ["ppo", "--config", str(tmp_path / "one" / "config.json"), "--out", str(tmp_path / "two"), "--quiet"]
    assert prb(again) == 0
    one, two = (files(tmp_path / name) for name in ("one", "two"))
    assert all(one[name] == two[name] for name in ("curves.csv", "answers.jsonl", "policy/model.safetensors"))


def test_help_loads_no_torch():
    code = "import sys; from prb.cli import run\ntry: run(['ppo', '--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "--holdout" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


# what is asked and left


@pytest.mark.parametrize(("condition", "posts"), [("profile", {BRIEF}), ("none", set())])
def test_the_reward_model_is_asked_as_in_evaluation(trained, condition, posts):
    reward, asked = recording()
    trained(reward=reward, steps=1, holdout=0, condition=condition)
    assert {ask.query.question for ask in asked} == {"the lazy dog"}
    assert {post.text for ask in asked for post in ask.query.posts} == posts
    assert all(ask.answer and not ask.query.plan for ask in asked)
    assert len({ask.query.user for ask in asked if ask.query.user}) == (8 if posts else 0)


def test_nobody_is_trained_on_and_held_out(policy, tmp_path):
    seen = load_prompts(config(policy, Path("mirror"), tmp_path / "run", holdout=64), scorer())
    assert {prompt.item.split for prompt in seen.train} == {"dev"}
    assert {prompt.item.split for prompt in seen.held_out} == {"test"}
    assert len({prompt.cluster for prompt in seen.held_out}) == 20  # all that there are: the more, the more is known
    same = load_prompts(config(policy, Path("mirror"), tmp_path / "run", split="test", holdout=64), scorer())
    assert len({prompt.cluster for prompt in same.held_out}) == 6  # as few as possible are lost to training
    assert len(same.held_out) == 64
    assert not {p.cluster for p in same.train} & {p.cluster for p in same.held_out}


def test_each_pass_over_the_prompts_takes_all_of_them_in_another_order(policy, data, tmp_path):
    prompts = load_prompts(config(policy, data, tmp_path / "run", holdout=8), scorer())  # 32 left: 4 batches of 8
    turns = [[p.item.id for step in range(4 * t, 4 * t + 4) for p in prompts.batch(step)] for t in range(2)]
    assert sorted(turns[0]) == sorted(turns[1]) == sorted(p.item.id for p in prompts.train)
    assert turns[0] != turns[1]


def test_held_out_answers_carry_reward_and_grade(trained):
    run = trained(steps=1, grader=ShortIsGood())
    lines = list(read_lines(run.folder / "answers.jsonl"))
    assert [line["stage"] for line in lines] == ["before"] * 4 + ["after"] * 4
    for line in lines:
        assert line["reward"]["score"] == pytest.approx(-max(len(line["text"]), 4) / 10)
        assert line["grade"]["score"] == float(len(line["text"]) <= 8)
    assert run.summary["grader"]["validity"] == "validity: made up for tests"
    assert read_json(run.folder / "summary.json") == run.summary
