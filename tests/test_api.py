"""The Python API: every verb, config or keywords, results as objects, and nothing heavy until it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import prb
from prb.errors import BadInput, GateFailed, UnknownName
from prb.models.scripted import ScriptedScorer
from prb.reporting.evaluation_results import Evaluation
from prb.reporting.results import Audit
from tests.conftest import make_twins
from tests.runs import by_length

Write = Callable[..., Path]
VERBS = [
    "audit", "best_of_n", "build", "compare", "correlate", "evaluate", "grade", "merge", "ppo", "report", "serve",
    "train",
]  # fmt: skip


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl([row for n in range(6) for row in make_twins(n)])


@pytest.fixture
def result(data: Path, tmp_path: Path) -> Evaluation:
    settings = {"model": ("length", "random"), "condition": ("none", "profile", "shuffled")}
    return prb.evaluate(dataset=data, history="both?ranker=recency", out=tmp_path / "run", quiet=True, **settings)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_function_that_shows_its_settings(verb: str) -> None:
    function = getattr(prb, verb)
    assert inspect.isfunction(function)
    names = set(inspect.signature(function).parameters)
    assert names & {"dataset", "run_a", "runs", "model", "input", "bench"}
    assert "settings" not in names


def test_importing_the_package_loads_nothing_but_itself() -> None:
    code = "import sys; before = set(sys.modules); import prb; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['prb']"


def test_a_config_and_keywords_mean_the_same(data: Path, tmp_path: Path) -> None:
    config = prb.EvaluateConfig(model="length", dataset=data, condition="none", k=3, out=tmp_path / "a", quiet=True)
    one = prb.evaluate(config)
    two = prb.evaluate(model="length", dataset=str(data), condition=("none",), k=3, out=str(tmp_path / "b"), quiet=True)
    three = prb.evaluate(config, out=tmp_path / "c")
    assert one.summary == two.summary == three.summary
    assert [path.name for path in sorted(tmp_path.glob("?"))] == ["a", "b", "c"]


def test_a_result_gives_estimates_by_model_and_condition(result: Evaluation) -> None:
    assert result.accuracy("length", "none").value == 0.5
    assert result.accuracy("length").n == 12
    assert result.metric("person_effect", "random").value == 0.5
    assert (result.metric("gain", "length").value, result.metric("control", "length").value) == (0.0, 0.0)
    assert (result.models, result.conditions) == (["length", "random"], ["none", "profile", "shuffled"])
    with pytest.raises(UnknownName, match="did you mean 'length'"):
        result.accuracy("lenght")
    with pytest.raises(UnknownName, match="no condition of this run named 'oracle'"):
        result.accuracy("length", "oracle")


def test_a_result_becomes_data_frames(result: Evaluation) -> None:
    summary = result.frame()
    assert len(summary) == 6
    assert {"model", "condition", "accuracy.value", "accuracy.low", "gain.p"} <= set(summary.columns)
    assert len(result.frame("outcomes")) == 2 * 3 * 12


def test_a_notebook_shows_an_escaped_table(data: Path, tmp_path: Path) -> None:
    models = {"<script>": ScriptedScorer(by_length)}
    result = prb.evaluate(model="<script>", models=models, dataset=data, out=tmp_path / "run", quiet=True)
    html = result._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert str(result).startswith(str(result.verdict))


def test_a_run_is_opened_again_from_its_folder(result: Evaluation, tmp_path: Path) -> None:
    again = prb.open_run(result.folder)
    assert isinstance(again, Evaluation)
    assert again.summary == result.summary
    with pytest.raises(BadInput, match="is not a run"):
        prb.open_run(tmp_path)


def test_a_gate_holds_in_python_too_and_carries_the_result(data: Path, tmp_path: Path) -> None:
    settings = {"model": "length", "dataset": data, "out": tmp_path / "run", "quiet": True}
    assert prb.evaluate(**settings, require="accuracy>0.4").accuracy().value == 0.5
    with pytest.raises(GateFailed, match=r"accuracy>0\.9: length under profile has 0\.5000") as failed:
        prb.evaluate(**settings, require="accuracy>0.9")
    assert failed.value.result.accuracy().value == 0.5


def test_compare_report_and_audit_return_objects(result: Evaluation, data: Path, tmp_path: Path) -> None:
    comparison = prb.compare(run_a=result.folder, run_b=result.folder)
    assert len(comparison.summary["comparisons"]) == 3
    assert prb.report([result.folder], out=tmp_path / "site", quiet=True) == tmp_path / "site" / "index.html"
    audit = prb.audit(dataset=data, out=tmp_path / "audit", quiet=True)
    assert isinstance(prb.open_run(tmp_path / "audit"), Audit)
    assert audit.summary["dataset"]["rows"] == 12


def test_a_text_is_a_spec_and_an_object_takes_its_place(data: Path, tmp_path: Path) -> None:
    graded = prb.grade(grader="embedded", dataset=data, validate=True, limit=2, out=tmp_path / "grade", quiet=True)
    assert graded.summary["grader"]["spec"] == "embedded"
    with pytest.raises(BadInput, match="EvaluateConfig or keyword arguments expected, not int"):
        prb.evaluate(data, 5)


def refuse(_: object) -> float:
    raise AssertionError("a dry run asks nobody")


def test_a_dry_run_counts_the_calls_of_every_model_and_asks_and_writes_nothing(data: Path, tmp_path: Path) -> None:
    settings = {"model": "mine", "dataset": data, "out": tmp_path / "run", "quiet": True}
    settings["condition"] = ("none", "profile")
    planned = prb.evaluate(models={"mine": ScriptedScorer(refuse)}, dry_run=True, **settings)
    (row,) = planned.summary["dry_run"]
    # 12 rows of 6 twins: what twins ask under `none` is the same
    assert (row["model"], row["calls"], row["owed"]) == ("mine", 12 + 24, 36)
    assert row["tokens"] > 0
    assert "Nothing was asked." in str(planned)
    assert not (tmp_path / "run").exists()
    prb.evaluate(models={"mine": ScriptedScorer(by_length)}, **{**settings, "condition": ("none",)})
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "run").iterdir())
    (row,) = prb.evaluate(models={"mine": ScriptedScorer(refuse)}, dry_run=True, **settings).summary["dry_run"]
    assert (row["calls"], row["owed"]) == (36, 24)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "run").iterdir()) == before


def test_a_dry_run_knows_what_the_default_folder_has(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"model": "mine", "dataset": data, "condition": ("none", "profile"), "cache": False, "quiet": True}
    prb.evaluate(models={"mine": ScriptedScorer(by_length)}, **settings)
    (row,) = prb.evaluate(models={"mine": ScriptedScorer(refuse)}, dry_run=True, **settings).summary["dry_run"]
    assert (row["calls"], row["owed"]) == (36, 0)


def test_a_dry_run_needs_no_key(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings = {"model": "judge?llm=openai/m", "dataset": data, "condition": "profile", "quiet": True}
    (row,) = prb.evaluate(dry_run=True, out=tmp_path / "run", **settings).summary["dry_run"]
    assert row["owed"] == 24
    with pytest.raises(BadInput, match="OPENAI_API_KEY is not set"):
        prb.evaluate(out=tmp_path / "run", **settings)


def test_a_dry_run_of_an_audit_counts_the_calls_of_all_its_runs(data: Path, tmp_path: Path) -> None:
    settings = {"dataset": data, "out": tmp_path / "audit", "cache": False, "quiet": True}
    before = prb.audit(dry_run=True, **settings).summary["dry_run"]
    assert [row["model"] for row in before] == ["length", "lexical", "embedding", "aspect-match"]
    assert not (tmp_path / "audit").exists()
    prb.audit(**settings)
    after = prb.audit(dry_run=True, **settings).summary["dry_run"]
    assert [(row["calls"], row["owed"]) for row in after] == [(row["owed"], 0) for row in before]


def test_a_dry_run_of_best_of_n_counts_what_comes_after_the_samples(data: Path, tmp_path: Path) -> None:
    prices = "judge?llm=(openai/m?base_url=http://127.0.0.1:9/v1&usd_in=2&usd_out=8)"
    config = prb.BonConfig(policy="scripted/x", model=("length", prices), dataset=data, limit=2, n=3, dry_run=True)
    rows = prb.best_of_n(config, out=tmp_path / "run", quiet=True).summary["dry_run"]
    assert [row["calls"] for row in rows if row["model"] != prices] == [6, 6, 6]
    (judge,) = [row for row in rows if row["model"] == prices]
    assert judge["usd"] == pytest.approx((judge["tokens"] * 2 + judge["owed"] * 200 * 8) / 1e6)
