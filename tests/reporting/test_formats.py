"""Every export is read back by the library it is for, and says what `summary.json` says."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from prb.cli import run as cli
from prb.errors import BadInput
from prb.evaluation.metrics import Rows
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.reporting import formats
from prb.reporting.formats import ExportConfig, export, file_names, model_id, write_file
from prb.runs import read_json, write_lines
from prb.summary import METRICS, Metric
from prb.types import Ask, Estimate, Failure
from tests.conftest import make_row, make_twins
from tests.runs import prefers, result, settings

Write = Callable[..., Path]
TEXTS = "How do I water"


def fails_on_three(ask: Ask) -> float | Failure:
    return Failure("busy", "for today") if "number 3" in ask.query.question else float(len(ask.answer))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one of which fails on a row and one of which compares; twins, a conversation and several answers."""
    folder = tmp_path_factory.mktemp("formats")
    rows = [row for n in range(2) for row in make_twins(n)] + [make_row(n) for n in range(10, 13)]
    rows += [make_row(3), make_row(4, context=[{"role": "user", "text": "Hello there."}], groups={"age": "young"})]
    data = folder / "rows.jsonl"
    write_lines(data, rows)
    models = {"long=er?": ScriptedScorer(fails_on_three), "judge": prefers(lambda duel: len(duel.first) < 40 or None)}
    config = settings(data, folder / "run", model=tuple(models), condition=("none", "profile", "shuffled"))
    evaluate(config, models=models)
    return folder / "run"


def exported(run: Path, out: Path, to: Any, **changes: Any) -> list[Path]:
    return export(ExportConfig(run=run, to=to, out=out, **changes))


def test_the_hub_reads_the_results_of_each_model(run: Path, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the hub extra")
    files = exported(run, tmp_path, "hf?dataset=owner/mirror&date=2025-10-15")
    assert [str(path.relative_to(tmp_path)) for path in files] == [
        "models/long-er/.eval_results/personalized-rewardbench.yaml",
        "models/judge/.eval_results/personalized-rewardbench.yaml",
    ]
    entries = hub.parse_eval_result_entries(yaml.safe_load(files[0].read_text("utf-8")))
    by_task = {entry.task_id: entry for entry in entries}
    accuracy = result(read_json(run / "summary.json"), "profile", "long=er?")["accuracy"]
    entry = by_task["accuracy_profile"]
    assert entry.value == pytest.approx(100 * accuracy["value"], abs=1e-3)
    assert (entry.dataset_id, entry.date) == ("owner/mirror", "2025-10-15")
    assert f"n = {accuracy['n']}, 1 failed" in entry.notes
    assert {"gain", "control", "person_effect_profile", "accuracy_shuffled"} <= set(by_task)


def test_the_id_of_the_benchmark_comes_from_the_run_or_must_be_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"hf\?dataset=owner/name"):
        exported(run, tmp_path / "out", "hf")
    with pytest.raises(BadInput, match="'mirror' is not owner/name"):
        exported(run, tmp_path / "out", "hf?dataset=mirror")
    assert not (tmp_path / "out").exists()


def test_every_eval_ever_takes_a_record_per_model(run: Path, tmp_path: Path) -> None:
    files = exported(run, tmp_path, "every-eval-ever?organization=Example Lab")
    assert len(files) == 2
    record = orjson.loads(files[0].read_bytes())
    assert str(run.parent) not in files[0].read_text("utf-8"), "a record for others names no folder of this machine"
    results = {result["evaluation_result_id"]: result for result in record["evaluation_results"]}
    for row in (row for row in read_json(run / "summary.json")["results"] if row["model"] == "long=er?"):
        details = results[f"accuracy/{row['condition']}"]["score_details"]
        assert details["score"] == row["accuracy"]["value"]
        assert details["uncertainty"]["num_samples"] == row["accuracy"]["n"] == 8
        assert details["details"]["failed"] == "1"


def test_the_validator_of_every_eval_ever_has_nothing_to_say(run: Path, tmp_path: Path) -> None:
    validator = pytest.importorskip("every_eval_ever.validator.validate", reason="`make test-extras` has it")
    for path in exported(run, tmp_path, "every-eval-ever?organization=Example Lab"):
        report = validator.validate_file(path)
        assert (report.valid, report.errors, report.warnings) == (True, [], [])


def test_inspect_reads_its_logs(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="needs the inspect extra; `make test-extras` has it")
    from inspect_ai.log import read_eval_log

    files = exported(run, tmp_path, "inspect")
    assert len(files) == 6
    for path in files:
        log = read_eval_log(str(path))
        row = result(read_json(run / "summary.json"), log.eval.metadata["condition"], log.eval.model)
        values = [sample.scores["preference"].value for sample in log.samples]
        scored = [value for value in values if not math.isnan(value)]
        assert len(values) == 9
        assert log.status == "success"
        assert log.results.scores[0].metrics["accuracy"].value == row["accuracy"]["value"]
        assert row["accuracy"]["value"] == pytest.approx(sum(scored) / len(scored))
        assert len(scored) == row["accuracy"]["n"] == log.results.scores[0].scored_samples
    first = read_eval_log(str(files[0]))
    failed = next(sample for sample in first.samples if sample.id == "r3")
    assert failed.scores["preference"].explanation == "busy: for today"
    assert TEXTS in first.samples[0].input
    talk = next(sample for sample in first.samples if sample.id == "r4")
    assert talk.input[0].text == "Hello there."
    again = exported(run, tmp_path, "inspect", texts=False)
    assert read_eval_log(str(again[0])).samples[0].input == first.samples[0].id


def test_tables_have_one_number_per_cell_and_the_metrics_of_the_summary(run: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the pandas extra")
    tables = {path.stem: pandas.read_csv(path) for path in exported(run, tmp_path, "csv")}
    assert set(tables) == {"estimates", "outcomes", "users"}
    row = read_json(run / "summary.json")["results"][1]
    estimates = tables["estimates"]
    (cell,) = estimates[(estimates.model == row["model"]) & (estimates.condition == "profile")].to_dict("records")
    names = ("low", "high", "n", "failed", "ties")
    assert cell["accuracy"] == row["accuracy"]["value"]
    assert [cell[f"accuracy_{name}"] for name in names] == [row["accuracy"][name] for name in names]
    assert {"gain", "control", "person_effect"} <= set(cell)
    outcomes = tables["outcomes"]
    assert len(outcomes) == 2 * 3 * 9
    assert outcomes.credit.isna().sum() == outcomes.failure.notna().sum() == 3
    assert {"score_1", "score_2", "verdict_1", "verdict_2"} <= set(outcomes.columns)
    assert outcomes[outcomes.model == "judge"].score_1.isna().all()


def test_a_contrast_whose_metric_is_not_installed_is_left_out(run: Path, tmp_path: Path) -> None:
    summary = read_json(run / "summary.json")
    summary["contrasts"][0]["kind"] = "of_a_package"
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    (copied / "summary.json").write_bytes(orjson.dumps(summary))
    assert "of_a_package" not in exported(copied, tmp_path / "out", "csv")[0].read_text("utf-8")


def test_a_number_that_is_no_share_is_exported_as_it_is(write_jsonl: Write, tmp_path: Path, monkeypatch: Any) -> None:
    def margin(rows: Rows) -> Estimate:
        return Estimate(value=float(rows.margin.mean()), low=10.0, high=90.0, n=len(rows.margin))

    metric = Metric(key="size", label="size", says="", of=margin, unit="number", limits=(0.0, math.inf))
    monkeypatch.setattr(METRICS, "_known", {**METRICS, "size": metric})
    config = settings(write_jsonl([make_row(n) for n in range(4)]), tmp_path / "run", condition=("none",))
    evaluate(config, models={"mine": ScriptedScorer(lambda ask: -float(len(ask.answer)))})
    of_hub, of_record = (
        exported(tmp_path / "run", tmp_path / "out", to)[0] for to in ("hf?dataset=a/b", "every-eval-ever")
    )
    (entry,) = [e for e in yaml.safe_load(of_hub.read_text("utf-8")) if e["dataset"]["task_id"] == "size_none"]
    assert (entry["value"], entry["notes"].partition(",")[0]) == (31.0, "95 % interval 10.00 to 90.00")
    (size,) = [
        r for r in orjson.loads(of_record.read_bytes())["evaluation_results"] if r["evaluation_name"] == "size (none)"
    ]
    assert size["score_details"]["score"] == 31.0
    assert (size["metric_config"]["min_score"], size["metric_config"]["max_score"]) == (0.0, "Infinity")
    assert "metric_unit" not in size["metric_config"]


def test_ratings_are_exported_as_tables(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [make_row(n, user="u", answer="x" * n, rating=n / 10, chosen=None, rejected=None) for n in range(1, 8)]
    config = settings(write_jsonl(rows), tmp_path / "run", task="ratings", condition=("none",))
    evaluate(config, models={"mine": ScriptedScorer(lambda ask: float(len(ask.answer)))})
    path = exported(tmp_path / "run", tmp_path / "out", "csv")[0]
    with path.open(newline="") as file:
        assert all(row["alignment"] for row in csv.DictReader(file))
    record = orjson.loads(exported(tmp_path / "run", tmp_path / "out", "every-eval-ever")[0].read_bytes())
    (skill,) = [r for r in record["evaluation_results"] if r["metric_config"]["metric_name"] == "skill"]
    assert skill["metric_config"]["min_score"] == "-Infinity"
    with pytest.raises(BadInput, match="no pairs"):
        exported(tmp_path / "run", tmp_path / "out", "inspect")


def test_no_cell_of_a_csv_file_is_a_formula_and_numbers_stay_numbers(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [make_row(n, user=user, category="@here") for n, user in enumerate(("=1+1", "-2", "+x", "\tu", "plain"))]
    name = "=cmd|'/c calc'!A1"
    config = settings(write_jsonl(rows), tmp_path / "run", model=(name,), condition=("none",))
    evaluate(config, models={name: ScriptedScorer(lambda ask: -float(len(ask.answer)))})
    for path in exported(tmp_path / "run", tmp_path / "out", "csv"):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        odd = [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert all(math.isfinite(float(cell)) for cell in odd)  # what is left are numbers
        assert f"'{name}" in cells
        if path.stem == "outcomes":
            assert any(float(cell) < -2 for cell in odd)


def test_a_format_is_a_function_and_its_registration(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = formats.Format(lambda exported, out: [write_file(out / "mine.txt", exported.about.name.encode())])
    monkeypatch.setitem(formats.FORMATS, "mine", mine)
    assert [path.name for path in exported(run, tmp_path, "mine")] == ["mine.txt"]
    with pytest.raises(BadInput, match="mine"):
        exported(run, tmp_path, "mime")


def test_help_and_docs_name_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli(["export", "--help"])
    text = capsys.readouterr().out
    assert [name for name in formats.FORMATS if f"`{name}" not in text] == []
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text("utf-8")
    table = page.partition("| format | what it holds |")[2]
    assert [name for name in formats.FORMATS if f"`{name}`" not in table] == []


def test_what_is_no_finished_evaluation_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        exported(tmp_path / "nowhere", tmp_path / "out", "csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be a folder"):
        exported(run, tmp_path / "file", "csv")


def test_names_of_files_are_safe_and_distinct() -> None:
    names = {"a/b": "a-b", "a?b": "a-b-2", "../..": "model", "A-b": "A-b-3"}
    assert file_names(list(names)) == names
    assert model_id("mine", "judge?llm=(openai/gpt-5?base_url=http://x)") == "openai/gpt-5"
    assert model_id("short", "embedding?encoder=minilm") == "prb/short"
