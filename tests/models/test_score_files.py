"""Results of other tools as scores files: recognized by their content, refused if damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.evaluation.run import evaluate
from prb.models.scores import RecordedScores
from prb.types import Failure, Record
from tests.runs import result, settings

CHOSEN, REJECTED, TIE = (Record(verdicts=(winner, None)) for winner in ("first", "second", "tie"))


def write(folder: Path, content: Any, name: str = "results.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def recall(path: Path, *rows: str, **options: Any) -> list[Record | Failure]:
    model = RecordedScores(path, **options)
    return [model.recall(row, "profile") for row in rows]


def log(*samples: dict[str, Any], **about: Any) -> dict[str, Any]:
    return {"eval": {"model": "org/some-rm", **about}, "samples": list(samples)}


def sample(own_id: object, value: Any, **more: Any) -> dict[str, Any]:
    return {"id": own_id, "epoch": 1, "scores": {"preference": {"value": value}}, **more}


REWARD_BENCH = {
    "id": [1, 2, 1],
    "subset": ["alpacaeval-easy", "alpacaeval-easy", "hep-cpp"],
    "text_chosen": ["a", "b", "c"],
    "scores_chosen": [0.5, [2.0], 1.0],
    "scores_rejected": [-1.0, [3.0], 1.0],
    "results": [1, 0, 0],
    "model": "org/some-rm",
    "model_type": "Seq. Classifier",
}


def test_results_of_reward_bench_are_columns_and_ids_get_their_subset(tmp_path: Path) -> None:
    rows = ("alpacaeval-easy-1", "alpacaeval-easy-2", "hep-cpp-1")
    records = recall(write(tmp_path, REWARD_BENCH), *rows)
    assert records == [Record(scores=(0.5, -1.0)), Record(scores=(2.0, 3.0)), Record(scores=(1.0, 1.0))]


def test_results_of_reward_bench_2_hold_all_scores_of_a_row(tmp_path: Path) -> None:
    scores = [[1.0, 0.5, 0.2, 0.1], [[0.3], [0.4], [0.1], [0.2]]]
    content = {"id": ["7", "tied:3"], "subset": ["Focus", "Ties"], "scores": scores, "model": "m"}
    first, second = recall(write(tmp_path, content), "Focus-7", "Ties-tied:3")
    assert first == Record(scores=(1.0, 0.5, 0.2, 0.1))
    assert second == Record(scores=(0.3, 0.4, 0.1, 0.2))


def test_the_first_ten_ids_of_factuality_are_repaired_by_position_and_nothing_else(tmp_path: Path) -> None:
    ids = [*map(str, range(30, 40)), *map(str, range(10, 45))]
    content = {"id": ids, "subset": ["Factuality"] * len(ids), "scores": [[float(n), 0.0] for n in range(len(ids))]}
    with pytest.warns(UserWarning, match="read as 0 to 9"):
        records = recall(write(tmp_path, content), "Factuality-0", "Factuality-9", "Factuality-30")
    assert records == [Record(scores=(0.0, 0.0)), Record(scores=(9.0, 0.0)), Record(scores=(30.0, 0.0))]
    other = {**content, "id": [*map(str, range(30, 39)), "50", *ids[10:]]}
    with pytest.raises(BadInput):
        recall(write(tmp_path, other, "other.json"), "Factuality-30")


def test_a_judge_of_reward_bench_has_only_results(tmp_path: Path) -> None:
    content = {"id": [1, 2, 3, 4], "subset": ["s"] * 4, "results": [1, 0, 0.5, 0.25], "model": "judge"}
    records = recall(write(tmp_path, content), "s-1", "s-2", "s-3", "s-4")
    assert records == [CHOSEN, REJECTED, TIE, Failure("no verdict", "0.25")]


def test_results_of_reward_bench_fit_the_dataset_of_that_name(tmp_path: Path) -> None:
    rows = [
        {"id": own_id, "subset": subset, "prompt": f"Question {n}?", "chosen": f"Good {n}.", "rejected": f"Bad {n}."}
        for n, (own_id, subset) in enumerate(zip(REWARD_BENCH["id"], REWARD_BENCH["subset"], strict=True))
    ]
    data = tmp_path / "set.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    spec = f"mine:=scores?path={write(tmp_path, REWARD_BENCH)}"
    config = settings(f"rewardbench?path={data}", tmp_path / "run", model=(spec,), condition=("profile",))
    row = result(evaluate(config).summary, "profile")
    assert (row["accuracy"]["value"], row["accuracy"]["failed"], row["strict_accuracy"]["value"]) == (0.5, 0, 1 / 3)


def test_a_log_of_inspect_is_read_with_its_unscored_samples(shared_data: Path) -> None:
    path = shared_data / "formats" / "inspect_ai" / "minimal_log.json"
    assert recall(path, "p1", "p2") == [CHOSEN, Failure("no verdict")]
    assert recall(path, "p1", model="org/some-rm") == [CHOSEN]


@pytest.mark.parametrize(
    ("value", "record"),
    [
        ("C", CHOSEN),
        ("I", REJECTED),
        ("P", TIE),
        (0.5, TIE),
        (0, REJECTED),
        (True, CHOSEN),
        ([0.5, -1], Record(scores=(0.5, -1.0))),
        ("N", Failure("not scored")),
        (float("nan"), Failure("not scored")),
    ],
)
def test_values_of_inspect_are_verdicts_or_scores(value: Any, record: Record | Failure, tmp_path: Path) -> None:
    assert recall(write(tmp_path, log(sample(7, value))), "7") == [record]


def test_a_log_of_inspect_may_say_its_condition(tmp_path: Path) -> None:
    content = log(sample("a", 1), sample("b", 1, metadata={"condition": "oracle"}), task_args={"condition": "profile"})
    model = RecordedScores(write(tmp_path, content))
    assert (model.recall("a", "profile"), model.recall("b", "oracle")) == (CHOSEN, CHOSEN)
    assert isinstance(model.recall("a", "none"), Failure)
    assert isinstance(model.recall("b", "profile"), Failure)


def test_a_list_of_rows_is_read_from_json(tmp_path: Path) -> None:
    assert recall(write(tmp_path, [{"pair": "r1", "verdict": "tie"}]), "r1") == [TIE]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ({"rows": []}, "neither a list of rows nor a result of reward-bench or inspect"),
        ({"id": [1, 2], "results": [1]}, "cannot be read as reward-bench"),
        ({"id": [1], "subset": ["s"]}, "cannot be read as reward-bench: 'results' is missing"),
        ({**REWARD_BENCH, "subset": ["s"]}, "cannot be read as reward-bench"),
        ({"eval": {}, "samples": [sample(1, 1)]}, "cannot be read as inspect: 'model' is missing"),
        (log(sample(1, {"a": 1})), "cannot be read as inspect"),
        (log(sample(1, 0.7)), "0.7 is neither a verdict nor a list of scores"),
        (log({"id": 1, "scores": {"a": {"value": 1}, "b": {"value": 0}}}), "sample 1 has several scores: a, b"),
        (log(sample(1, 1), sample(1, 1, epoch=2)), "line 2: a second score for row '1'"),
    ],
)
def test_damaged_results_are_refused_with_a_clear_line(content: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=problem) as error:
        RecordedScores(write(tmp_path, content))
    assert "\n" not in str(error.value)


def test_a_format_that_is_named_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read as inspect"):
        RecordedScores(write(tmp_path, REWARD_BENCH), form="inspect")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pair,verdict\nr1,tie,more\n", "line 2: the row has 3 cells, the header 2"),
        ("pair,verdict\nr1\n", "line 2: the row has 1 cells, the header 2"),
        ('pair,verdict\nr1,"tie\n', "line 2: broken CSV"),
        ("pair,verdict\nr1,\n", "line 2: there must be a score"),
    ],
)
def test_a_damaged_csv_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=problem):
        RecordedScores(write(tmp_path, text, "scores.csv"))


def test_a_packed_log_of_inspect_says_how_to_convert_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="inspect log convert --to json"):
        RecordedScores(write(tmp_path, "PK", "log.eval"))
