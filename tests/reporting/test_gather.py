"""A run under way can be reported; what is missing is said, and what is shown is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.errors import BadInput
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.reporting.gather import read_partial
from prb.reporting.site import ReportConfig, report
from tests.conftest import make_twins
from tests.reporting.sites import data_of, write_site
from tests.reporting.sites import rows as site_rows
from tests.runs import by_length, settings

Write = Callable[..., Path]
MODELS = {"first": ScriptedScorer(by_length, "a"), "second": ScriptedScorer(lambda ask: -by_length(ask), "b")}


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl([row for n in range(4) for row in make_twins(n)])


def half_done(data: Path, folder: Path, rows: int) -> Path:
    """A run of two models that was stopped when it had done so many of its 2 × 8 rows; batches hold two."""
    done = 0

    class Stop:
        def on_batch(self, batch: Any) -> None:
            nonlocal done
            done += 2
            if done == rows:
                raise KeyboardInterrupt

    config = settings(data, folder, model=tuple(MODELS), batch=2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(config, models=MODELS, hooks=[Stop()])
    return folder


def test_the_first_model_is_shown_on_the_rows_it_has_done(data: Path, tmp_path: Path, visit: Any) -> None:
    run = half_done(data, tmp_path / "run", 4)
    index = report(ReportConfig(runs=(run,), out=tmp_path / "site"))
    (dataset,) = data_of(tmp_path / "site", "site")["datasets"]
    assert [model["name"] for model in dataset["models"]] == ["first"]
    page = index.read_text("utf-8")
    assert "Under way" in page
    assert '<td class="left">first</td><td>4 of 8</td>' in page
    assert '<td class="left">second</td><td>0 of 8</td>' in page
    assert "shows the first 4 rows" in page
    window = visit(tmp_path / "site", width=390)
    window.assert_quiet()
    window.assert_fits()


def test_numbers_so_far_are_those_of_a_run_on_these_rows(data: Path, write_jsonl: Write, tmp_path: Path) -> None:
    part, _ = read_partial(half_done(data, tmp_path / "run", 4))
    assert part is not None
    short = write_jsonl([orjson.loads(line) for line in data.read_bytes().splitlines()[:4]], "short.jsonl")
    whole = evaluate(settings(short, tmp_path / "short", model=("first",)), models=MODELS).summary
    assert part.summary.as_json()["results"] == whole["results"]
    assert part.summary.as_json()["contrasts"] == whole["contrasts"]


def test_finished_models_are_shown_in_full_and_the_next_one_as_progress(data: Path, tmp_path: Path) -> None:
    part, table = read_partial(half_done(data, tmp_path / "run", 10))
    assert part is not None
    assert [(row["model"], row["accuracy"]["n"]) for row in part.summary.as_json()["results"]] == [("first", 8)] * 3
    assert [row[1:] for row in table.rows] == [("first", "8 of 8"), ("second", "2 of 8")]


def test_a_site_can_wait_for_the_first_rows(data: Path, tmp_path: Path) -> None:
    run = half_done(data, tmp_path / "run", 2)
    (run / "outcomes.jsonl").write_bytes(b"")
    index = report(ReportConfig(runs=(run,), out=tmp_path / "site"))
    assert "Nothing can be shown yet." in index.read_text("utf-8")


def test_a_line_that_is_just_being_written_is_not_counted(data: Path, tmp_path: Path) -> None:
    run = half_done(data, tmp_path / "run", 4)
    content = (run / "outcomes.jsonl").read_bytes()
    (run / "outcomes.jsonl").write_bytes(content[:-30])
    part, table = read_partial(run)
    assert part is not None
    assert part.summary.dataset.rows == 3
    assert table.rows[0][2] == "3 of 8"


def test_without_its_dataset_a_run_under_way_cannot_be_reported(data: Path, tmp_path: Path) -> None:
    run = half_done(data, tmp_path / "run", 4)
    data.write_bytes(data.read_bytes().replace(b"Once a week", b"Once a year"))
    with pytest.raises(BadInput, match="has changed since it began"):
        read_partial(run)
    data.unlink()
    with pytest.raises(BadInput, match="its dataset cannot be read"):
        read_partial(run)


def test_recorded_scores_are_marked(write_jsonl: Write, tmp_path: Path) -> None:
    content = site_rows()
    scores = write_jsonl([{"pair": row["id"], "verdict": "chosen"} for row in content], "scores.jsonl")
    models: Any = (f"reader:=scores?path={scores}", f"scores?path={scores}&condition=none", "length")
    evaluate(settings(write_jsonl(content), tmp_path / "run", model=models, condition=("none", "profile")))
    site = write_site([tmp_path / "run"], tmp_path / "site").parent
    about = data_of(site, "site")["datasets"][0]["models"]
    assert [(model["name"], model["source"], model["seen"]) for model in about] == [
        ("reader", "recorded", "history not stated"),
        ("scores?path=scores.jsonl&condition=none", "recorded", "history not stated"),
        ("length", "live", "never sees the user"),
    ]
    written = [path for path in site.rglob("*") if path.is_file()]
    assert not [path for path in written if str(tmp_path).encode() in path.read_bytes()]  # names, not places
