"""From scores to claims: the published facts, what is corrected for what, and what a set is allowed to say."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest

from prb.downstream import correlate as module
from prb.downstream.correlate import CorrelateConfig
from prb.errors import BadInput
from prb.stats.estimate import share
from tests.runs import Notes
from tests.stats.test_ranking import BON, PPO


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS", 200)


def correlate(config: CorrelateConfig, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = msgspec.to_builtins(module.correlate(config, **more))
    return result


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """The six reward models of the paper: the order of the benchmark and the two of downstream."""
    columns = zip(range(6), BON, PPO, strict=True)
    rows = [{"model": f"m{n}", "bench": -n, "bon": -bon, "ppo": -ppo} for n, bon, ppo in columns]
    (tmp_path / "six.json").write_bytes(orjson.dumps(rows))
    return tmp_path / "six.json"


def table(path: Path, **columns: Any) -> Path:
    names = columns.pop("names", None) or [f"m{n}" for n in range(len(next(iter(columns.values()))))]
    rows = [dict(zip(("model", *columns), row, strict=True)) for row in zip(names, *columns.values(), strict=True)]
    (path / "t.json").write_bytes(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY))
    return path / "t.json"


def cells(result: dict[str, Any], at: int = 0) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(c["bench"], c["downstream"], c["measure"]): c for c in result["sets"][at]["correlations"]}


def test_the_published_correlations_and_what_they_are_worth(six: Path) -> None:
    result = correlate(CorrelateConfig(table=six, downstream=("bon", "ppo")))
    found = cells(result)
    for down, rho, p, gain, p_gain in (("bon", 9 / 35, 0.658, 0.9180, 0.129), ("ppo", 13 / 35, 0.497, 0.9265, 0.114)):
        of_rho, of_ndcg = found["bench", down, "spearman"], found["bench", down, "ndcg"]
        assert (of_rho["value"], of_rho["p"]) == (pytest.approx(rho), pytest.approx(p, abs=5e-4))
        assert (of_ndcg["value"], of_ndcg["p"]) == (pytest.approx(gain, abs=5e-5), pytest.approx(p_gain, abs=5e-4))
        assert (of_rho["exact"], of_rho["orders"], of_rho["interval"], of_rho["noise"]) == (True, 720, None, None)
        # two columns: Holm doubles the smaller p, then takes the larger of the two
        assert of_rho["p_holm"] == pytest.approx(2 * 0.497222, abs=1e-5)
    assert len(found) == 2 * 7
    assert result["sets"][0]["power"]["needed"] == 31


def test_ten_models_or_more_have_intervals_over_models(tmp_path: Path) -> None:
    x = np.arange(10.0)
    y = x + np.array([0, 3, -3, 0, 2, -2, 0, 1, -1, 0.5])
    config = CorrelateConfig(table=table(tmp_path, x=x, y=y), measure=("spearman",))
    (cell,) = correlate(config)["sets"][0]["correlations"]
    low, high = cell["interval"]
    assert low < cell["value"] <= high <= 1
    fewer = CorrelateConfig(table=table(tmp_path, x=x[:9], y=y[:9]), measure=("spearman",))
    assert correlate(fewer)["sets"][0]["correlations"][0]["interval"] is None


def test_the_scores_own_errors_are_carried_through(tmp_path: Path) -> None:
    x = np.arange(5.0)
    sharp = CorrelateConfig(table=table(tmp_path, x=x, x_se=0.01 + 0 * x, y=x), measure=("spearman",))
    assert correlate(sharp)["sets"][0]["correlations"][0]["noise"] == (pytest.approx(1), pytest.approx(1))
    blunt = CorrelateConfig(table=table(tmp_path, x=x, x_se=3 + 0 * x, y=x), measure=("spearman",))
    low, high = correlate(blunt)["sets"][0]["correlations"][0]["noise"]
    assert low < 0.2 < high


def test_two_benchmarks_are_compared_on_the_same_downstream(tmp_path: Path) -> None:
    x = np.arange(8.0)
    result = correlate(CorrelateConfig(table=table(tmp_path, good=x, bad=-x, down=x), downstream=("down",)))
    found = {row["measure"]: row for row in result["sets"][0]["comparisons"]}
    assert "pearson" not in found  # it has no test with so few models
    row = found["spearman"]
    assert (row["first"], row["second"], row["difference"]) == ("good", "bad", pytest.approx(2.0))
    assert (row["p"], row["p_holm"], row["test"], row["exact"]) == (2 / 2**8, 2 / 2**8, "swap", True)


def test_pearson_is_compared_by_williams_with_twenty_models(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=20)
    columns = {"good": x + 0.1 * rng.normal(size=20), "bad": rng.normal(size=20), "down": x}
    config = CorrelateConfig(table=table(tmp_path, **columns), downstream=("down",), measure=("pearson",))
    (row,) = correlate(config)["sets"][0]["comparisons"]
    assert (row["test"], row["p"] < 0.001) == ("williams", True)


def test_constructed_models_are_named_and_left_out_a_second_time(tmp_path: Path) -> None:
    names = ["noisy?model=a&sd=1", "noisy?model=a&sd=2", "mine-1", "b", "c", "d"]
    path = table(tmp_path, names=names, x=[6, 5, 4, 1, 2, 3], y=[6, 5, 4, 3, 2, 1])
    result = correlate(CorrelateConfig(table=path, measure=("spearman",), constructed=("noisy*", "mine-*")))
    assert result["constructed"] == names[:3]
    assert [(part["set"], part["n"]) for part in result["sets"]] == [
        ("all models", 6),
        ("without constructed models", 3),
    ]
    assert [part["correlations"][0]["value"] > 0 for part in result["sets"]] == [True, False]


def test_too_few_models_without_the_constructed_ones_are_said_to_be_too_few(tmp_path: Path) -> None:
    path = table(tmp_path, names=["noisy1", "noisy2", "a", "b"], x=[1, 2, 3, 4], y=[1, 2, 4, 3])
    _, without = correlate(CorrelateConfig(table=path, measure=("spearman",)))["sets"]
    assert (without["n"], without["correlations"]) == (2, [])
    assert without["problem"].startswith("2 models with all scores")


def test_results_are_the_same_each_time_and_are_plain_json(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns = {name: rng.normal(size=12) for name in ("x", "x2", "y")}
    config = CorrelateConfig(table=table(tmp_path, **columns), downstream=("y",))
    progress = Notes()
    first = correlate(config, progress=progress)
    assert orjson.dumps(first) == orjson.dumps(correlate(config))
    assert progress.begun == [("testing", 2 + 1, 0)]  # two columns, and one against the other
    assert progress.advanced == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"best_of": 0}, "best_of must be at least 1, not 0"),
        ({}, "give a table, or run folders"),
        ({"bench": ("runs/a",)}, "give a table, or run folders"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        correlate(CorrelateConfig(**changes))


# published tables, which are no part of the project


def spearman_of(path: Path, x: str, y: str, **changes: Any) -> tuple[float, int]:
    config = CorrelateConfig(table=path, bench=(x,), downstream=(y,), measure=("spearman",), **changes)
    result = correlate(config)
    return result["sets"][0]["correlations"][0]["value"], result["sets"][0]["n"]


def test_published_benchmarks_of_reward_models_agree_as_published(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "rm_tables" / "skywork_v2_seven_benchmarks.csv"
    with source.open(encoding="utf-8", newline="") as file:
        complete = [row for row in csv.DictReader(file) if all(row.values())]
    assert len(complete) == 15
    path = tmp_path / "complete.json"
    path.write_bytes(orjson.dumps(complete))
    for x, y, rho in (
        ("RewardBench v1", "RewardBench v2", 0.907),
        ("RewardBench v1", "PPE Correctness", 0.321),
        ("PPE Preference", "RMB", 0.996),
    ):
        value, n = spearman_of(path, x, y)
        assert (round(value, 3), n) == (rho, 15)


def test_length_controlled_alpaca_eval_agrees_with_the_arena_as_published(shared_data: Path) -> None:
    path = shared_data / "rm_tables" / "alpaca_eval_benchmarks.csv"
    value, n = spearman_of(path, "LC AlpacaEval 2.0", "Arena Elo [Feb 2, 2024]")
    assert (round(value, 4), n) == (0.9746, 37)


def credits_of(margins: list[float]) -> np.ndarray:
    return np.array([1.0 if m > 0 else 0.5 if m == 0 else 0.0 for m in margins])


def test_accuracies_of_judgebench_come_out_as_published(shared_data: Path) -> None:
    with (shared_data / "rm_tables" / "judgebench_scores_and_verdicts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    models = list(dict.fromkeys(name.removesuffix("|A") for name in rows[0] if name.endswith("|A")))
    strict, half = [], []
    for model in models:
        scored = [row for row in rows if row[f"{model}|A"]]
        margins = [float(row[f"{model}|A"]) - float(row[f"{model}|B"]) for row in scored]
        labels = [row["label"] for row in scored]
        credits = credits_of([m if label == "A>B" else -m for m, label in zip(margins, labels, strict=True)])
        assert len(credits) == 350
        strict.append(round(100 * float((credits == 1).mean()), 2))
        half.append(round(100 * (share(credits, np.arange(350)).value or 0), 2))
    assert strict == [59.43, 64.29, 62.29, 63.43, 59.43]
    assert half[1:3] == [64.71, 62.43]


def test_accuracy_of_a_model_on_rmb_comes_out_as_published(shared_data: Path) -> None:
    (path,) = (shared_data / "rm_tables").glob("rmb_ArmoRM*.json")
    rows = orjson.loads(path.read_bytes())
    credits = credits_of([row["chosen_reward"] - row["reject_reward"] for row in rows])
    found = share(credits, np.arange(len(rows)))
    assert (found.n, found.ties) == (849, 12)
    assert round(float((credits == 1).mean()), 4) == 0.7951
    assert round(found.value or 0, 4) == 0.8021
