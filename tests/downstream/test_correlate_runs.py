"""Scores from run folders: which line counts for which model, and how the items are drawn anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from prb.downstream.bon import best_of_n
from prb.downstream.correlate import RunColumn, Scores, read_runs, resampled_columns, short_name
from prb.errors import BadInput
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.runs import FORMAT, json_line, read_json, read_lines, write_json
from prb.types import Ask, Failure
from tests.conftest import make_row, make_twins
from tests.downstream import fakes
from tests.reporting.results import ends, ppo_run
from tests.runs import result, settings

Write = Callable[..., Path]
ROWS = [*make_twins(1), *(make_row(n) for n in range(5, 9)), *make_twins(2)]


def shorter(ask: Ask) -> float | Failure:
    return Failure("no") if "plant 5" in ask.answer else -float(len(ask.answer))


OWN = {
    **fakes.models(),
    "short": ScriptedScorer(shorter, "short"),
    "long": ScriptedScorer(lambda a: len(a.answer), "long"),
}


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl(ROWS)


@pytest.fixture
def bench(data: Path, tmp_path: Path) -> Path:
    config = settings(data, tmp_path / "bench", model=("short", "long"), condition=("none", "profile"))
    return evaluate(config, models=OWN).folder


@pytest.fixture
def best(data: Path, tmp_path: Path) -> Path:
    config = fakes.settings(data, tmp_path / "best", model=("short", "long"))
    return best_of_n(config, models=OWN, policy=fakes.policy(), grader=fakes.Marks("often")).folder


def ppo(folder: Path, model: str, grades: dict[str, float | None], lr: float = 1e-5, **changes: Any) -> Path:
    """What a finished PPO run leaves behind, as far as it is read here."""
    summary = read_json(ppo_run(folder) / "summary.json") | {
        "dataset": {"name": "set", "split": None, "fingerprint": "f"},
        "policy": {"spec": "mine"},
        "model": {"spec": model},
        "held_out": {"prompts": len(grades), "grade": ends(0.1, 0.9)},
        "grader": {"spec": "marks", "validity": None},
        **changes,
    }
    write_json(folder / "config.json", {"format": FORMAT, "ppo": {"model": model, "lr": lr}})
    write_json(folder / "summary.json", summary)
    lines = [
        {
            "stage": stage,
            "pair": cluster,
            "cluster": cluster,
            "reward": None,
            "grade": {"score": score if stage == "after" else 0.0},
            "failure": None,
        }
        for stage in ("before", "after")
        for cluster, score in grades.items()
    ]
    (folder / "answers.jsonl").write_bytes(
        b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
    )
    return folder


def read(bench: object, downstream: object, **changes: Any) -> Scores:
    how = {"condition": None, "best_of": None, **changes}
    sides = [[str(f) for f in (side if isinstance(side, list) else [side])] for side in (bench, downstream)]
    return read_runs(*sides, **how)


def test_datasets_are_named_without_their_folders() -> None:
    assert short_name("mirror") == "mirror"
    assert short_name("some/where/set.jsonl") == "set.jsonl"
    assert short_name("rewardbench?path=some/where/set.jsonl") == "rewardbench set.jsonl"
    assert short_name("hub:owner/name?revision=a") == "hub:owner/name?revision=a"


def test_values_are_those_of_the_summaries(bench: Path, best: Path) -> None:
    found = read(bench, best)
    ours, theirs = found.columns
    evaluated = orjson.loads((bench / "summary.json").read_bytes())
    sampled = orjson.loads((best / "summary.json").read_bytes())
    assert found.models == ("short", "long")
    assert ours.name == "set.jsonl (profile)"
    assert ours.values == pytest.approx([result(evaluated, "profile", m)["accuracy"]["value"] for m in found.models])
    assert theirs.name == "best of 4 on set.jsonl (mine, profile)"
    assert theirs.values == pytest.approx([row["curve"][-1]["value"] for row in sampled["results"]])
    assert sampled["queries"]["grading_failed"] > 0  # some queries were left out, the same ones here as there


def test_another_condition_and_another_k(bench: Path, best: Path) -> None:
    found = read(bench, best, condition="none", best_of=1)
    sampled = orjson.loads((best / "summary.json").read_bytes())
    assert found.bench[0].name.endswith("(none)")
    assert found.downstream[0].values == pytest.approx([row["curve"][0]["value"] for row in sampled["results"]])
    with pytest.raises(BadInput, match="has no condition 'oracle'; it has none, profile"):
        read(bench, best, condition="oracle")


def test_best_of_n_is_read_without_its_dataset(bench: Path, best: Path, data: Path) -> None:
    before = read(bench, best, best_of=3).downstream[0]
    data.unlink()
    after = read(bench, best, best_of=3).downstream[0]
    assert after.values.tolist() == before.values.tolist()
    assert after.draws is not None
    assert before.draws is not None
    assert (after.draws == before.draws).all()


def test_a_summary_that_does_not_say_who_belongs_together_is_told_with_what_to_do(bench: Path, best: Path) -> None:
    summary = orjson.loads((best / "summary.json").read_bytes())
    write_json(best / "summary.json", {key: value for key, value in summary.items() if key != "clusters"})
    with pytest.raises(BadInput, match="run its command again"):
        read(bench, best)


def test_a_model_that_was_scored_in_part_after_the_summary_does_not_count(bench: Path, best: Path) -> None:
    path = best / "scores.jsonl"
    lines = list(read_lines(path))
    late = [{**line, "model": "late"} for line in lines if (line["model"], line["pair"]) == ("short", "t1a")]
    path.write_bytes(path.read_bytes() + b"".join(map(json_line, late)))
    assert read(bench, best).models == ("short", "long")


def test_a_folder_that_lost_a_file_is_told(bench: Path, best: Path) -> None:
    (best / "scores.jsonl").unlink()
    with pytest.raises(BadInput, match=r"is incomplete: it has no scores\.jsonl"):
        read(bench, best)


def test_grades_carry_the_validity_of_their_grader(bench: Path, best: Path, tmp_path: Path) -> None:
    trained = ppo(tmp_path / "p", "short", {"u": 0.5})
    ours, *theirs = read(bench, [best, trained]).columns
    assert ours.note == ""
    assert [column.note for column in theirs] == [
        "Graded by marks. Right on 3 of 4 known pairs.",
        "Graded by marks. Its validity has not been measured.",
    ]


def test_runs_with_some_models_each_are_one_column(data: Path, bench: Path, best: Path, tmp_path: Path) -> None:
    more = evaluate(
        settings(data, tmp_path / "more", model=("knows",), condition=("profile",)),
        models={"knows": ScriptedScorer(lambda ask: float(len(ask.answer) % 7), "mod")},
    ).folder
    found = read([bench, more], best)
    assert found.models == ("short", "long", "knows")
    assert len(found.bench) == 1
    assert np.isnan(found.downstream[0].values).tolist() == [False, False, True]
    with pytest.raises(BadInput, match="'short' has two scores in"):
        read([bench, bench], best)


def test_runs_on_other_data_under_the_same_name_are_not_mixed(
    data: Path, best: Path, bench: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    write_jsonl(ROWS[:4])
    other = evaluate(settings(data, tmp_path / "other", model=("long",), condition=("profile",)), models=OWN).folder
    with pytest.raises(BadInput, match="did not use the same data"):
        read([bench, other], best)


def test_runs_made_in_different_ways_are_not_one_column(data: Path, bench: Path, best: Path, tmp_path: Path) -> None:
    fewer = evaluate(
        settings(data, tmp_path / "fewer", model=("long",), condition=("profile",), limit=3), models=OWN
    ).folder
    with pytest.raises(BadInput, match=r"two runs on 'set.jsonl \(profile\)' differ in limit; correlate them one at"):
        read([bench, fewer], best)
    colder = best_of_n(
        fakes.settings(data, tmp_path / "colder", model=("knows",), temperature=0.5, seed=1),
        models=OWN,
        policy=fakes.policy(),
        grader=fakes.Marks(),
    ).folder
    with pytest.raises(BadInput, match="differ in seed, temperature"):
        read(bench, [best, colder])
    trained = [ppo(tmp_path / name, name, {"u": 0.5}, lr=lr) for name, lr in (("short", 1e-5), ("long", 1e-6))]
    with pytest.raises(BadInput, match="differ in lr"):
        read(bench, trained)


def test_runs_on_other_candidates_are_not_one_column(
    data: Path, bench: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    def take(name: str, model: str, texts: list[str]) -> Path:
        (tmp_path / name).mkdir()
        lines = [{"pair": row["id"], "answers": texts} for row in ROWS]
        pool = write_jsonl(lines, name=f"{name}/pool.jsonl")
        config = fakes.settings(data, tmp_path / name / "run", policy=None, candidates=pool, n=2, model=(model,))
        return best_of_n(config, models=OWN, grader=fakes.Marks()).folder

    one, same = (take(name, model, ["once", "soon"]) for name, model in (("a", "short"), ("b", "long")))
    (column,) = read(bench, [one, same]).downstream
    assert column.name == "best of 2 on set.jsonl (candidates pool.jsonl, profile)"
    with pytest.raises(BadInput, match="differ in candidates"):
        read(bench, [one, take("c", "long", ["once", "often"])])


def test_ppo_runs_give_one_model_each_graded_after_training(bench: Path, tmp_path: Path) -> None:
    folders = [
        ppo(tmp_path / "p1", "short", {"u": 0.5, "v": 1.0}),
        ppo(tmp_path / "p2", "long", {"u": 0.25, "v": None}),
    ]
    (column,) = read(bench, folders).downstream
    assert column.name == "PPO on set (mine, profile)"
    assert column.values == pytest.approx([0.75, 0.25])
    with pytest.raises(BadInput, match="has no graded held-out answers"):
        read(bench, ppo(tmp_path / "p3", "short", {"u": 1.0}, held_out={"prompts": 0}))


def test_folders_of_the_wrong_kind_are_told(bench: Path, best: Path, tmp_path: Path, data: Path) -> None:
    empty, other, unfinished = (tmp_path / name for name in ("empty", "other", "unfinished"))
    for folder in (empty, other, unfinished):
        folder.mkdir()
    write_json(other / "config.json", {"format": FORMAT, "train": {}})
    write_json(unfinished / "config.json", {"format": FORMAT, "bon": {}})
    for sides, says in (
        ((empty, best), "is not a run: it has no config.json"),
        ((best, best), "--bench must be a run of `prb evaluate` on pairs"),
        ((bench, bench), "--downstream must be a run of `prb bon` or `prb ppo`"),
        ((bench, other), "is not a run of"),
        ((bench, unfinished), "is not finished"),
    ):
        with pytest.raises(BadInput, match=says):
            read(*sides)


def items(name: str, data: str, **cells: dict[str, list[float]]) -> RunColumn:
    return RunColumn(name, data, cells)


def test_draws_spread_as_wide_as_the_clustered_standard_error() -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(size=40)
    (column,) = resampled_columns([items("x", "d", m={f"c{n}": [float(v)] for n, v in enumerate(means)})], ["m"])
    assert column.draws is not None
    assert column.draws.shape == (2000, 1)
    # the bootstrap's variance is that of the mean with n instead of n - 1
    assert column.draws.std() == pytest.approx(means.std() / np.sqrt(40), rel=0.05)


def test_models_that_answer_alike_on_every_item_never_change_places() -> None:
    cells = {f"c{n}": [float(n % 3)] for n in range(12)}
    lower = {name: [value[0] - 1] for name, value in cells.items()}
    (column,) = resampled_columns([items("x", "d", a=cells, b=lower)], ["a", "b"])
    assert column.draws is not None
    assert np.ptp(column.draws[:, 0] - column.draws[:, 1]) == pytest.approx(0)


def test_one_draw_serves_all_columns_on_the_same_data_and_no_other() -> None:
    cells = {f"c{n}": [float(n)] for n in range(12)}
    same, again, other = resampled_columns(
        [items("x", "d", m=cells), items("y", "d", m=cells), items("z", "e", m=cells)],
        ["m"],
    )
    assert same.draws is not None
    assert again.draws is not None
    assert other.draws is not None
    assert (same.draws == again.draws).all()
    assert not (same.draws == other.draws).all()


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [items("x", "d", m={f"c{n}": [float(n)] for n in range(12)})]
    whole = resampled_columns(table, ["m"])[0].draws
    monkeypatch.setattr("prb.downstream.correlate.MAX_CELLS", 12 * 7)
    assert whole is not None
    assert (resampled_columns(table, ["m"])[0].draws == whole).all()


def test_a_single_cluster_says_nothing_about_the_next() -> None:
    (column,) = resampled_columns([items("x", "d", m={"c": [0.5, 1.0]})], ["m"])
    assert (column.values.tolist(), column.errors, column.draws) == ([0.75], None, None)
