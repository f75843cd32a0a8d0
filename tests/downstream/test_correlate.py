"""`correlate`: scores from tables and from run folders, the published facts, what is corrected for what."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.downstream import correlate as module
from prb.downstream.bon import best_of_n
from prb.downstream.columns import RunColumn, ScoreColumn, Scores, checked, read_runs, read_table, resampled_scores
from prb.downstream.correlate import CorrelateConfig
from prb.errors import BadInput
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.runs import FORMAT, json_line, read_json, write_json
from prb.summary import short_name
from prb.types import Ask, Failure
from tests.conftest import make_row, make_twins
from tests.downstream import fakes
from tests.reporting.results import ends, ppo_run
from tests.runs import result, settings
from tests.stats.test_ranking import BON, PPO

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS", 200)


# --- what is computed ---


def correlate(path: Path | None = None, *, progress: Any = None, **changes: Any) -> dict[str, Any]:
    more = {"progress": progress} if progress else {}
    found: dict[str, Any] = msgspec.to_builtins(module.correlate(CorrelateConfig(table=path, **changes), **more))
    return found


def table(path: Path, **columns: Any) -> Path:
    names = columns.pop("names", None) or [f"m{n}" for n in range(len(next(iter(columns.values()))))]
    rows = [dict(zip(("model", *columns), row, strict=True)) for row in zip(names, *columns.values(), strict=True)]
    (path / "t.json").write_bytes(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY))
    return path / "t.json"


def test_the_published_correlations_and_what_they_are_worth(tmp_path):
    """The six reward models of the paper: the order of the benchmark and the two of downstream."""
    six = table(tmp_path, bench=-np.arange(6), bon=[-place for place in BON], ppo=[-place for place in PPO])
    found = correlate(six, downstream=("bon", "ppo"))["sets"][0]
    cells = {(c["downstream"], c["measure"]): c for c in found["correlations"]}
    for down, rho, p, gain, p_gain in (("bon", 9 / 35, 0.658, 0.9180, 0.129), ("ppo", 13 / 35, 0.497, 0.9265, 0.114)):
        of_rho, of_ndcg = cells[down, "spearman"], cells[down, "ndcg"]
        assert (of_rho["value"], of_rho["p"]) == (pytest.approx(rho), pytest.approx(p, abs=5e-4))
        assert (of_ndcg["value"], of_ndcg["p"]) == (pytest.approx(gain, abs=5e-5), pytest.approx(p_gain, abs=5e-4))
        assert (of_rho["exact"], of_rho["interval"], of_rho["noise"]) == (True, None, None)
        # two columns: Holm doubles the smaller p, then takes the larger of the two
        assert of_rho["p_holm"] == pytest.approx(2 * 0.497222, abs=1e-5)
    assert len(cells) == 2 * 7
    assert found["power"]["needed"] == 31


def test_ten_models_or_more_have_intervals_over_models(tmp_path):
    x = np.arange(10.0)
    y = x + np.array([0, 3, -3, 0, 2, -2, 0, 1, -1, 0.5])
    (cell,) = correlate(table(tmp_path, x=x, y=y), measure=("spearman",))["sets"][0]["correlations"]
    low, high = cell["interval"]
    assert low < cell["value"] <= high <= 1
    (fewer,) = correlate(table(tmp_path, x=x[:9], y=y[:9]), measure=("spearman",))["sets"][0]["correlations"]
    assert fewer["interval"] is None


def test_two_benchmarks_are_compared_on_the_same_downstream(tmp_path):
    x = np.arange(8.0)
    few = correlate(table(tmp_path, good=x, bad=-x, down=x), downstream=("down",))
    found = {row["measure"]: row for row in few["sets"][0]["comparisons"]}
    assert "pearson" not in found  # it has no test with so few models
    row = found["spearman"]
    assert (row["first"], row["second"], row["difference"]) == ("good", "bad", pytest.approx(2.0))
    assert (row["p"], row["p_holm"], row["test"], row["exact"]) == (2 / 2**8, 2 / 2**8, "swap", True)
    rng = np.random.default_rng(0)
    x = rng.normal(size=20)
    columns = {"good": x + 0.1 * rng.normal(size=20), "bad": rng.normal(size=20), "down": x}
    twenty = correlate(table(tmp_path, **columns), downstream=("down",), measure=("pearson",))
    (row,) = twenty["sets"][0]["comparisons"]
    assert (row["test"], row["p"] < 0.001) == ("williams", True)


def test_constructed_models_and_families_are_named_and_left_out_a_second_time(tmp_path, written):
    names = ["noisy?model=a&sd=1", "noisy?model=a&sd=2", "mine-1", "b", "c", "d"]
    path = table(tmp_path, names=names, x=[6, 5, 4, 1, 2, 3], y=[6, 5, 4, 3, 2, 1])
    found = correlate(path, measure=("spearman",), constructed=("noisy*", "mine-*"))
    assert found["constructed"] == names[:3]
    assert [(part["set"], part["n"]) for part in found["sets"]] == [
        ("all models", 6),
        ("without constructed models", 3),
    ]
    assert [part["correlations"][0]["value"] > 0 for part in found["sets"]] == [True, False]
    path = table(tmp_path, names=["noisy1", "noisy2", "a", "b"], x=[1, 2, 3, 4], y=[1, 2, 4, 3])
    _, without = correlate(path, measure=("spearman",))["sets"]
    assert (without["n"], without["correlations"]) == (2, [])
    assert without["problem"].startswith("2 models with all scores")
    rows = "".join(f"m{n},f{n},{n},{n % 3}\n" for n in range(4))
    path = written(f"model,family,bench,down\nnoisy 1,noisy,9,9\nnoisy 2,noisy,8,9\n{rows}")
    found = correlate(path, unit="family", measure=("spearman",))
    assert found["constructed"] == ["noisy"]
    assert [(s["set"], s["n"]) for s in found["sets"]] == [("all families", 5), ("without constructed families", 4)]


# --- families ---

FAMILIES = """model,family,bench,down
a1,a,0,1
a2,a,2,1
b1,b,2,2
c1,c,2,5
c2,c,4,3
d1,d,4,3
"""
"""The means of a, b, c and d: 1, 2, 3, 4 on the benchmark, 1, 2, 4, 3 downstream."""


def test_families_are_tested_by_their_means_and_left_out_one_at_a_time(written):
    """By hand: ρ = 1 − 6·2/(4·15) = 0.8, reached by 8 of 24 orders. Without a or b, ρ of three is 0.5, which every
    order reaches; without c or d it is 1, which two of six reach."""
    found = correlate(written(FAMILIES), unit="family", measure=("spearman", "kendall"))
    assert found["unit"] == "family"
    assert found["models"] == ["a", "b", "c", "d"]
    assert found["members"] == {"a": ["a1", "a2"], "b": ["b1"], "c": ["c1", "c2"], "d": ["d1"]}
    assert (found["bench"][0]["values"], found["downstream"][0]["values"]) == ([1, 2, 3, 4], [1, 2, 4, 3])
    (part,) = found["sets"]
    rho, tau = part["correlations"]
    assert (part["set"], part["n"]) == ("all families", 4)
    assert (rho["value"], rho["p"], rho["exact"]) == (pytest.approx(0.8), pytest.approx(8 / 24), True)
    left = rho["leave_one_out"]
    assert (left["low"], left["high"], left["highest_p"]) == (pytest.approx(0.5), pytest.approx(1), 1)
    assert (left["family"], left["value"], left["p"]) == ("a", pytest.approx(0.5), 1)
    assert "leave_one_out" not in tau  # of the measure that decides only


def test_models_of_a_family_do_not_count_as_independent(written):
    """Three families of four equal models: ρ = 1 either way, but only 2 of 6 orders of families could tell."""
    rows = [f"{f}{n},{f},{x},{x}\n" for x, f in enumerate("abc") for n in range(4)]
    path = written("model,family,bench,down\n" + "".join(rows))
    by = {unit: correlate(path, unit=unit, measure=("spearman",))["sets"][0] for unit in ("model", "family")}
    assert by["model"]["correlations"][0]["p"] < 0.01
    assert (by["family"]["n"], by["family"]["correlations"][0]["p"]) == (3, pytest.approx(1 / 3))
    assert "leave_one_out" not in by["family"]["correlations"][0]  # two families would be left


def test_a_family_on_which_a_column_rests_alone_leaves_nothing_to_correlate(written):
    path = written("model,family,bench,down\na,a,1,4\nb,b,1,2\nc,c,1,3\nd,d,2,5\n")
    (cell,) = correlate(path, unit="family", measure=("spearman",))["sets"][0]["correlations"]
    left = cell["leave_one_out"]
    assert (left["family"], left["value"], left["p"], left["highest_p"]) == ("d", None, 1, 1)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("model,bench,down\na,1,1\nb,2,2\nc,3,4\n", "'a' has no family: --unit family needs a table"),
        ("model,family,bench,down\na,x,1,1\nb,x,2,2\nc,y,3,4\n", "2 families with all scores"),
        ("model,family,bench,down\nnoisy 1,x,1,1\nb,x,2,2\nc,y,3,4\n", "'x' has constructed models and others"),
    ],
)
def test_families_that_cannot_be_used_are_refused(written, table, says):
    with pytest.raises(BadInput, match=says):
        correlate(written(table), unit="family")


def test_a_table_by_cluster_is_resampled_by_cluster(written):
    """What is easy for one model is easy for all: the order of the models is the same in every resample."""
    rows = [f"m{n},f{n},{c},{n + 5 * k},{n - 5 * k}\n" for n in range(4) for k, c in enumerate("uvw")]
    found = correlate(written("model,family,cluster,x,y\n" + "".join(rows)), measure=("spearman",))
    assert found["models"] == ["m0", "m1", "m2", "m3"]
    assert [column["values"] for column in found["bench"]] == [[5, 6, 7, 8]]
    # sd over resamples of the mean of three clusters at 0, 5 and 10: √(50/3 / 3)
    assert found["bench"][0]["errors"] == pytest.approx([(50 / 9) ** 0.5] * 4, rel=0.05)
    assert found["sets"][0]["correlations"][0]["noise"] == (pytest.approx(1), pytest.approx(1))
    by_family = correlate(written("model,family,cluster,x,y\n" + "".join(rows)), unit="family", measure=("spearman",))
    assert by_family["sets"][0]["correlations"][0]["noise"] == (pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"best_of": 0}, "best_of must be at least 1, not 0"),
        ({}, "give a table, or run folders"),
        ({"bench": ("runs/a",)}, "give a table, or run folders"),
    ],
)
def test_bad_settings_are_refused(changes, says):
    with pytest.raises(BadInput, match=says):
        correlate(**changes)


# --- published tables, which are no part of the project ---


@pytest.mark.parametrize(
    ("file", "bench", "downstream", "rho", "n"),
    [
        ("skywork_v2_seven_benchmarks.csv", "RewardBench v1", "RewardBench v2", 0.907, 15),
        ("skywork_v2_seven_benchmarks.csv", "RewardBench v1", "PPE Correctness", 0.321, 15),
        ("skywork_v2_seven_benchmarks.csv", "PPE Preference", "RMB", 0.996, 15),
        ("alpaca_eval_benchmarks.csv", "LC AlpacaEval 2.0", "Arena Elo [Feb 2, 2024]", 0.975, 37),
    ],
)
def test_published_benchmarks_agree_as_published(file, bench, downstream, rho, n, shared_data, tmp_path):
    path = shared_data / "rm_tables" / file
    if file.startswith("skywork"):  # the published numbers are of the models that have all scores
        with path.open(encoding="utf-8", newline="") as table:
            complete = [row for row in csv.DictReader(table) if all(row.values())]
        path = tmp_path / "complete.json"
        path.write_bytes(orjson.dumps(complete))
    (found,) = correlate(path, bench=(bench,), downstream=(downstream,), measure=("spearman",))["sets"]
    assert (round(found["correlations"][0]["value"], 3), found["n"]) == (rho, n)


# --- tables: every format, which columns are meant, and what is wrong with bad ones ---

CSV = "model,bench,down\na,0.5,1\nb,0.6,3\nc,0.7,2\n"
SIDES = "model,ppo,x,y\na,1,2,3\nb,2,3,1\nc,3,1,2\n"


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(text: str, name: str = "t.csv") -> Path:
        (tmp_path / name).write_text(text, "utf-8")
        return tmp_path / name

    return write


def test_every_format_says_the_same(written, tmp_path):
    lines = list(csv.DictReader(CSV.splitlines()))
    rows = [{"model": row["model"], "bench": float(row["bench"]), "down": float(row["down"])} for row in lines]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    for path in (
        written(CSV),
        written("\ufeff" + CSV.replace(",", "\t"), "t.tsv"),
        written(orjson.dumps(rows).decode(), "t.json"),
        written("\n".join(orjson.dumps(row).decode() for row in rows) + "\n", "t.jsonl"),
        tmp_path / "t.parquet",
    ):
        found = read_table(path, (), ())
        assert found.models == ("a", "b", "c"), path
        assert [(c.name, c.values.tolist()) for c in found.columns] == [
            ("bench", [0.5, 0.6, 0.7]),
            ("down", [1.0, 3.0, 2.0]),
        ]


@pytest.mark.parametrize(
    ("text", "named", "bench", "downstream"),
    [
        (SIDES, ((), ("ppo",)), ["x", "y"], ["ppo"]),
        (SIDES, (("x",), ("y",)), ["x"], ["y"]),
        ('Kind,Model,"Arena  Elo\n[Feb]",Bench\nx,a,1,2\ny,b,2,1\n', ((), ("Arena Elo [Feb]",)), ["Bench"], None),
    ],
)
def test_columns_are_on_the_side_that_is_asked_for_and_headers_may_be_broken_over_lines(
    written, text, named, bench, downstream
):
    found = read_table(written(text), *named)
    assert [column.name for column in found.bench] == bench
    assert [column.name for column in found.downstream] == (downstream or list(named[1]))


def test_short_rows_lack_scores_and_blank_rows_are_none(written):
    found = read_table(written("model,x,y\na,1,\nb,2,3\n,,\n\nc,n/a,1\nd,4\n"), (), ())
    assert found.models == ("a", "b", "c", "d")
    assert np.isnan(found.bench[0].values).tolist() == [False, False, True, False]
    assert np.isnan(found.downstream[0].values).tolist() == [True, False, False, True]


WORDY = "model,x,y\na,1,high\nb,2,inf\nc,3,1\n"


@pytest.mark.parametrize(
    ("text", "named", "says"),
    [
        ("model,x,y\n", ((), ()), "holds no rows"),
        ("model,x,y,z\na,1,2,3\n", ((), ()), "name the columns of downstream scores .*; columns of numbers: 'x'"),
        ("model,x\na,1\n", ((), ()), "columns of numbers: 'x'"),
        ("x,y\n1,2\n2,3\n", ((), ()), "no column of model names"),
        ("model,x,x\na,1,2\n", ((), ()), "has two columns of one name"),
        ("model,x,y\na,1,2,3\n", ((), ()), "a row with more cells than the header"),
        ("model,x,y\n,1,2\n", ((), ()), "row 1 has no name in column 'model'"),
        (WORDY, (("xx",), ("y",)), "no column named 'xx'; did you mean 'x'"),
        (WORDY, (("x",), ("y",)), "column 'y' of 'a' is 'high', not a number"),
        (WORDY, (("x",), ("x",)), "'x' cannot be on both sides"),
        ("model,x,y\na,1,2\n", ((), ("x", "y")), "no column is left for a benchmark"),
    ],
)
def test_bad_tables_and_columns_are_told_what_is_wrong(written, text, named, says):
    with pytest.raises(BadInput, match=says):
        read_table(written(text), *named)


@pytest.mark.parametrize("cell", ["inf", "12*", "fifty"])
def test_a_column_of_numbers_with_a_word_in_it_is_told_and_not_passed_over(written, cell):
    text = f"model,licence,x,z,y\na,mit,1,1,1\nb,2,2,{cell},2\nc,apache,3,3,5\n"
    with pytest.raises(BadInput, match=f"column 'z' of 'b' is '{re.escape(cell)}', not a number"):
        read_table(written(text), (), ("y",))
    found = read_table(written(text), ("x",), ("y",))  # who names columns needs no others
    assert [column.name for column in found.columns] == ["x", "y"]


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(BadInput, match="is a folder: give runs with --bench and --downstream"):
        read_table(tmp_path, (), ())


def scores(x: list[float], y: list[float], names: str = "abcdefgh") -> Scores:
    column = ScoreColumn("x", np.array(x), np.array([x, x]))
    return Scores(tuple(names[: len(x)]), (column,), (ScoreColumn("y", np.array(y)),))


def test_a_model_that_lacks_a_score_is_left_out():
    kept, left_out = checked(scores([1, np.nan, 3, 4, 5], [1, 2, np.nan, 4, 3]))
    assert (kept.models, left_out) == (("a", "d", "e"), ["b", "c"])
    column = kept.bench[0]
    assert column.draws is not None
    assert (column.values.tolist(), column.draws.tolist()) == ([1, 4, 5], [[1, 4, 5]] * 2)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (scores([1], [1]), "1 model with all scores: correlating needs 3"),
        (scores([2, 2, 2], [1, 2, 3]), "column 'x' is the same for all 3 models"),
        (scores([1, 2, 3], [1, 2, 3], names="aba"), "'a': more than one row"),
        (scores([1, np.nan, 3], [1, 2, 3]), r"2 models with all scores: .* \(left out for a missing score: 1\)"),
        (scores([np.nan, np.nan], [1, 2]), "0 models with all scores"),
    ],
)
def test_what_cannot_be_correlated_is_refused(found, says):
    with pytest.raises(BadInput, match=says):
        checked(found)


# --- run folders: which line counts for which model, and how the items are drawn anew ---

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
        {"stage": stage, "cluster": cluster, "grade": {"score": score if stage == "after" else 0.0}}
        for stage in ("before", "after")
        for cluster, score in grades.items()
    ]
    (folder / "answers.jsonl").write_bytes(b"".join(map(json_line, lines)))
    return folder


def read_folders(bench: object, downstream: object, **changes: Any) -> Scores:
    how = {"condition": None, "best_of": None, **changes}
    sides = [[str(f) for f in (side if isinstance(side, list) else [side])] for side in (bench, downstream)]
    return read_runs(*sides, **how)


def test_datasets_are_named_without_their_folders():
    assert short_name("mirror") == "mirror"
    assert short_name("some/where/set.jsonl") == "set.jsonl"
    assert short_name("rewardbench?path=some/where/set.jsonl") == "rewardbench set.jsonl"
    assert short_name("polis?path=some/polis&conversation=x&mirror=true") == "polis, conversation=x, mirror=true"
    assert len(short_name(f"votes?path=some/set.json&answers={'a' * 99}")) == 60
    assert short_name("hub:owner/name?revision=a") == "hub:owner/name?revision=a"


def test_values_are_those_of_the_summaries(bench, best):
    found = read_folders(bench, best)
    ours, theirs = found.columns
    evaluated = orjson.loads((bench / "summary.json").read_bytes())
    sampled = orjson.loads((best / "summary.json").read_bytes())
    assert found.models == ("short", "long")
    assert ours.name == "set.jsonl (profile)"
    assert ours.values == pytest.approx([result(evaluated, "profile", m)["accuracy"]["value"] for m in found.models])
    assert theirs.name == "best of 4 on set.jsonl (mine, profile)"
    assert theirs.values == pytest.approx([row["curve"][-1]["value"] for row in sampled["results"]])
    assert sampled["queries"]["grading_failed"] > 0  # some queries were left out, the same ones here as there


def test_another_condition_and_another_k_are_read_without_the_dataset(bench, best, data):
    data.unlink()
    found = read_folders(bench, best, condition="none", best_of=1)
    sampled = orjson.loads((best / "summary.json").read_bytes())
    assert found.bench[0].name.endswith("(none)")
    assert found.downstream[0].values == pytest.approx([row["curve"][0]["value"] for row in sampled["results"]])
    with pytest.raises(BadInput, match="has no condition 'oracle'; it has none, profile"):
        read_folders(bench, best, condition="oracle")


def test_a_folder_of_another_version_or_without_a_file_is_told_with_what_to_do(bench, best):
    (best / "scores.jsonl").unlink()
    with pytest.raises(BadInput, match=r"is incomplete: it has no scores\.jsonl"):
        read_folders(bench, best)
    summary = orjson.loads((best / "summary.json").read_bytes())
    write_json(best / "summary.json", {key: value for key, value in summary.items() if key != "clusters"})
    with pytest.raises(BadInput, match="run its command again"):
        read_folders(bench, best)


def test_grades_carry_the_validity_of_their_grader(bench, best, tmp_path):
    trained = ppo(tmp_path / "p", "short", {"u": 0.5})
    ours, *theirs = read_folders(bench, [best, trained]).columns
    assert ours.note == ""
    assert [column.note for column in theirs] == [
        "Graded by marks. Right on 3 of 4 known pairs.",
        "Graded by marks. Its validity has not been measured.",
    ]


def test_runs_with_some_models_each_are_one_column(data, bench, best, tmp_path):
    more = evaluate(
        settings(data, tmp_path / "more", model=("knows",), condition=("profile",)),
        models={"knows": ScriptedScorer(lambda ask: float(len(ask.answer) % 7), "mod")},
    ).folder
    found = read_folders([bench, more], best)
    assert found.models == ("short", "long", "knows")
    assert len(found.bench) == 1
    assert np.isnan(found.downstream[0].values).tolist() == [False, False, True]
    with pytest.raises(BadInput, match="has two scores in"):
        read_folders([bench, bench], best)


def test_runs_made_in_different_ways_are_not_one_column(data, bench, best, tmp_path, write_jsonl):
    def evaluated(name: str, **changes: Any) -> Path:
        config = settings(data, tmp_path / name, model=("long",), condition=("profile",), **changes)
        return evaluate(config, models=OWN).folder

    fewer = evaluated("fewer", limit=3)
    with pytest.raises(BadInput, match=r"two runs on 'set.jsonl \(profile\)' differ in limit; correlate them one at"):
        read_folders([bench, fewer], best)
    colder = best_of_n(
        fakes.settings(data, tmp_path / "colder", model=("knows",), temperature=0.5, seed=1),
        models=OWN,
        policy=fakes.policy(),
        grader=fakes.Marks(),
    ).folder
    with pytest.raises(BadInput, match="differ in seed, temperature"):
        read_folders(bench, [best, colder])
    trained = [ppo(tmp_path / name, name, {"u": 0.5}, lr=lr) for name, lr in (("short", 1e-5), ("long", 1e-6))]
    with pytest.raises(BadInput, match="differ in lr"):
        read_folders(bench, trained)
    write_jsonl(ROWS[:4])
    with pytest.raises(BadInput, match="differ in their data"):
        read_folders([bench, evaluated("other")], best)


def test_runs_on_other_candidates_are_not_one_column(data, bench, tmp_path, write_jsonl):
    def take(name: str, model: str, texts: list[str]) -> Path:
        (tmp_path / name).mkdir()
        lines = [{"pair": row["id"], "answers": texts} for row in ROWS]
        pool = write_jsonl(lines, name=f"{name}/pool.jsonl")
        config = fakes.settings(data, tmp_path / name / "run", policy=None, candidates=pool, n=2, model=(model,))
        return best_of_n(config, models=OWN, grader=fakes.Marks()).folder

    one, same = (take(name, model, ["once", "soon"]) for name, model in (("a", "short"), ("b", "long")))
    (column,) = read_folders(bench, [one, same]).downstream
    assert column.name == "best of 2 on set.jsonl (candidates pool.jsonl, profile)"
    with pytest.raises(BadInput, match="differ in candidates"):
        read_folders(bench, [one, take("c", "long", ["once", "often"])])


def test_ppo_runs_give_one_model_each_graded_after_training(bench, tmp_path):
    folders = [
        ppo(tmp_path / "p1", "short", {"u": 0.5, "v": 1.0}),
        ppo(tmp_path / "p2", "long", {"u": 0.25, "v": None}),
    ]
    (column,) = read_folders(bench, folders).downstream
    assert column.name == "PPO on set (mine, profile)"
    assert column.values == pytest.approx([0.75, 0.25])
    with pytest.raises(BadInput, match="has no graded held-out answers"):
        read_folders(bench, ppo(tmp_path / "p3", "short", {"u": 1.0}, held_out={"prompts": 0}))


def test_folders_of_the_wrong_kind_are_told(bench, best, tmp_path):
    empty, unfinished = tmp_path / "empty", tmp_path / "unfinished"
    for folder in (empty, unfinished):
        folder.mkdir()
    write_json(unfinished / "config.json", {"format": FORMAT, "bon": {}})
    for sides, says in (
        ((empty, best), "is not a run: it has no config.json"),
        ((best, best), "--bench must be a run of `prb evaluate`"),
        ((bench, bench), "--downstream must be a run of `prb bon` or `prb ppo`"),
        ((bench, unfinished), "is not finished"),
    ):
        with pytest.raises(BadInput, match=says):
            read_folders(*sides)


def draws_of(*columns: tuple[str, dict[str, Any]]) -> list[Any]:
    """The resamples of columns on some data, each with the values of its models by cluster."""
    made = [RunColumn(f"column {n}", data, cells) for n, (data, cells) in enumerate(columns)]
    return [column.draws for column in resampled_scores(made, []).bench]


TWELVE = {f"c{n}": [float(n)] for n in range(12)}


def test_draws_spread_as_wide_as_the_clustered_standard_error():
    means = np.random.default_rng(0).normal(size=40)
    (draws,) = draws_of(("d", {"m": {f"c{n}": [float(v)] for n, v in enumerate(means)}}))
    assert draws.shape == (2000, 1)
    # the bootstrap's variance is that of the mean with n instead of n - 1
    assert draws.std() == pytest.approx(means.std() / np.sqrt(40), rel=0.05)


def test_models_that_answer_alike_on_every_item_never_change_places():
    lower = {name: [value[0] - 1] for name, value in TWELVE.items()}
    (draws,) = draws_of(("d", {"a": TWELVE, "b": lower}))
    assert np.ptp(draws[:, 0] - draws[:, 1]) == pytest.approx(0)


def test_one_draw_serves_all_columns_on_the_same_data_and_no_other():
    same, again, other = draws_of(("d", {"m": TWELVE}), ("d", {"m": TWELVE}), ("e", {"m": TWELVE}))
    assert (same == again).all()
    assert not (same == other).all()


def test_a_single_cluster_says_nothing_about_the_next():
    (column,) = resampled_scores([RunColumn("x", "d", {"m": {"c": [0.5, 1.0]}})], []).bench
    assert (column.values.tolist(), column.draws) == ([0.75], None)
