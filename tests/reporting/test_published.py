"""Published results: read strictly, shown where they are about the dataset, and never part of a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.evaluation.run import evaluate
from prb.reporting.published import PublishedResult, read_published
from tests.reporting.sites import data_of, make_run, rows, write_site
from tests.runs import Notes, settings

Write = Callable[..., Path]
ROW = "- {dataset: set, model: theirs, value: 71.5, source: 'Their paper, Table 2'}\n"


def write(folder: Path, text: str) -> str:
    path = folder / "published.yaml"
    path.write_text(text, "utf-8")
    return str(path)


@pytest.fixture
def run(write_jsonl: Write, tmp_path: Path) -> Path:
    return make_run(write_jsonl(rows()), tmp_path / "run")


def test_rows_about_other_datasets_are_not_shown_and_the_user_is_told(run: Path, tmp_path: Path) -> None:
    place, notes = write(tmp_path, ROW.replace("set,", "other,")), Notes()
    site = write_site([run], tmp_path / "site", published=place, progress=notes).parent
    assert "published" not in data_of(site, "d0/board")
    assert [note for note in notes.notes if "has none about" in note]


@pytest.mark.parametrize(
    ("dataset", "name", "same"),
    [
        ("reward-bench-2", "rewardbench?path=hub:allenai/reward-bench-2?revision=05a9005", True),
        ("Reward-Bench-2", "rewardbench?path=data/reward-bench-2.jsonl", True),
        ("reward-bench", "rewardbench?path=hub:allenai/reward-bench-2?revision=05a9005", False),
        ("QiyaoMa/Personalized-RewardBench", "hub:QiyaoMa/Personalized-RewardBench?revision=1", True),
        ("prism_personalized_0125", "personalrewardbench?path=hub:MichaelR207/prism_personalized_0125", True),
        ("prism", "personalrewardbench?path=hub:MichaelR207/prism_personalized_0125", False),
        ("a.c", "abc", False),
    ],
)
def test_a_dataset_is_matched_by_a_whole_part_of_its_name(dataset: str, name: str, same: bool) -> None:
    assert PublishedResult(dataset=dataset, model="m", value=50, source="s").is_about(name) is same


def test_the_shipped_rows_have_sources_and_cover_the_three_benchmarks() -> None:
    shipped = read_published("default")
    names = {"hub:QiyaoMa/Personalized-RewardBench?revision=1", "hub:allenai/reward-bench-2?revision=1"}
    names |= {f"hub:MichaelR207/{name}_personalized_0125?revision=1" for name in ("prism", "chatbot_arena")}
    assert all(any(row.is_about(name) for row in shipped) for name in names)
    assert all(any(row.is_about(name) for name in names) for row in shipped)
    assert all(row.source for row in shipped)


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("models", "- {size: 8B}", "row 1: model"),
        ("models", "- {model: a, link: 'javascript:alert(1)'}", "row 1: link"),
        ("models", "- {model: a, wheels: 4}", "row 1: wheels"),
        ("published", "a: [", "is not YAML"),
        ("published", "dataset: set", "content: Input should be a valid list"),
        ("published", ROW.replace("source", "sourse"), "row 1: source: Field required"),
        ("published", ROW + ROW.replace("71.5", "0.715"), "row 2: value: Input should be greater than 1"),
        ("published", ROW.replace("71.5", "715"), "row 1: value: Input should be less than or equal to 100"),
        ("published", ROW.replace("source:", "interval: 3, source:"), "row 1: interval: Extra inputs are not"),
    ],
)
def test_a_wrong_file_is_refused_and_nothing_is_written(
    option: str, text: str, problem: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=problem) as error:
        write_site([run], tmp_path / "site", **{option: write(tmp_path, text)})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "site").exists()


def test_recorded_scores_are_marked(write_jsonl: Write, tmp_path: Path) -> None:
    content = rows()
    scores = write_jsonl([{"pair": row["id"], "verdict": "chosen"} for row in content], "scores.jsonl")
    models: Any = (f"reader:=scores?path={scores}", f"scores?path={scores}&condition=none", "length")
    evaluate(settings(write_jsonl(content), tmp_path / "run", model=models, condition=("none",)))
    site = write_site([tmp_path / "run"], tmp_path / "site").parent
    about = data_of(site, "site")["datasets"][0]["models"]
    assert [(model["name"], model["source"], model["seen"]) for model in about] == [
        ("reader", "recorded", "history not stated"),
        ("scores?path=scores.jsonl&condition=none", "recorded", "history not stated"),
        ("length", "live", "never sees the user"),
    ]
    written = [path for path in site.rglob("*") if path.is_file()]
    assert not [path for path in written if str(tmp_path).encode() in path.read_bytes()]  # names, not places
