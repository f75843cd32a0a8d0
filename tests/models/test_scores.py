"""Scores that were given elsewhere: what a file may hold, results of other tools included, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.load import load_pairs
from prb.errors import BadInput, UnknownName
from prb.evaluation.run import evaluate
from prb.models import MODELS, NOT_RECORDED, RECORDED
from prb.models.scores import RecordedScores
from prb.types import Failure, Record
from tests.runs import result, settings

Write = Callable[..., Path]


def recorded(path: Path, options: str = "") -> Any:
    return MODELS.make(f"scores?path={path}{options}")


SAME = Record(scores=(0.5, -1.0))


@pytest.mark.parametrize(
    ("rows", "record"),
    [
        ([{"pair": "r1", "scores": [0.5, -1.0]}], SAME),
        ([{"id": "r1", "scores": [0.5, -1.0]}], SAME),
        ([{"pair": "r1", "verdict": "chosen"}], Record(verdicts=("first", None))),
        ([{"pair": "r1", "verdict": "rejected"}], Record(verdicts=("second", None))),
        ([{"pair": "r1", "verdict": "tie"}], Record(verdicts=("tie", None))),
        ([{"pair": "r1", "verdicts": ["first", "tie"]}], Record(verdicts=("first", "tie"))),
        ([{"pair": "r1", "score": 0.7}], Record(scores=(0.7,))),
        ([{"pair": "r1", "failure": "empty reply: twice"}], Failure("empty reply", "twice")),
        (
            [{"pair": "r1", "scores": [0.5, -1], "tokens": 20, "cost": 0.5, "text": ["Why.", "Why."]}],
            Record(scores=(0.5, -1.0), tokens=20, cost=0.5, text=("Why.", "Why.")),
        ),
    ],
)
def test_a_row_is_scores_or_verdicts_or_a_failure(write_jsonl: Write, rows: list[Any], record: Record) -> None:
    assert recorded(write_jsonl(rows)).recall("r1", "profile") == record


def test_a_row_without_condition_counts_under_profile_or_the_condition_that_is_named(write_jsonl: Write) -> None:
    path = write_jsonl([{"pair": 1, "verdict": "tie"}, {"pair": 1, "condition": "shuffled", "verdict": "chosen"}])
    tie, first = Record(verdicts=("tie", None)), Record(verdicts=("first", None))
    assert [recorded(path).recall("1", c) for c in ("profile", "shuffled")] == [tie, first]
    assert recorded(path, "&condition=none").recall("1", "none") == tie
    elsewhere = recorded(path).recall("1", "none")
    assert elsewhere == Failure(f"{NOT_RECORDED}, but without one, so under profile", kind="unmeasured")
    assert recorded(path).recall("2", "profile") == Failure(f"no score for this row in {path.name}")


def test_one_of_several_models_is_picked_by_name(write_jsonl: Write) -> None:
    path = write_jsonl([{"pair": "r1", "model": name, "scores": [n, 0]} for n, name in enumerate("ab")])
    assert recorded(path, "&model=b").recall("r1", "profile") == Record(scores=(1.0, 0.0))
    assert recorded(path, "&model=a").fingerprint != recorded(path, "&model=b").fingerprint
    with pytest.raises(BadInput, match="scores of several models; add model=… to pick one: a, b"):
        recorded(path)
    with pytest.raises(UnknownName, match=r"no model in .* named 'c'"):
        recorded(path, "&model=c")
    with pytest.raises(BadInput, match="is not a file"):
        recorded(path.with_name("no.jsonl"))


def test_the_fingerprint_follows_the_content_and_never_the_path(write_jsonl: Write) -> None:
    rows = [{"pair": "r1", "scores": [1, 0]}]
    first, moved = write_jsonl(rows, "a.jsonl"), write_jsonl(rows, "b.jsonl")
    changed = write_jsonl([{"pair": "r1", "scores": [1, 2]}], "c.jsonl")
    assert recorded(first).fingerprint == recorded(moved).fingerprint != recorded(changed).fingerprint


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"pair": "r1", "verdict": "tie"}] * 2, "line 2: a second score for row 'r1'$"),
        ([{"pair": "r1", "condition": "none", "score": 1}] * 2, "line 2: .* 'r1' under none$"),
        ([{"verdict": "tie"}], "line 1: pair: Field required"),
        ([{"pair": "r1"}], "line 1: there must be a score, scores, a verdict or a failure"),
        ([{"pair": "r1", "scores": [1], "verdict": "tie"}], "line 1: scores and verdict cannot be combined"),
        ([{"pair": "r1", "score": "high"}], "line 1: score: Input should be a valid number"),
        ([{"pair": "r1", "verdict": "A"}], "line 1: verdict: Input should be 'chosen', 'rejected' or 'tie'"),
        ([{"pair": "r1", "verdict": "tie", "condition": "oracel"}], "line 1: condition: unknown"),
        ([["r1", 1]], "line 1: must be an object"),
        ([], "holds no scores"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(write_jsonl: Write, rows: list[Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        recorded(write_jsonl(rows))


def test_the_embedded_reader_knows_the_rows_of_mirror_and_says_where_it_has_none() -> None:
    reader: Any = MODELS.make("reader")
    for split in ("test", "hard", "restraint"):
        for pair in load_pairs("mirror", split=split):
            for condition in ("none", "profile", "shuffled"):
                assert len(reader.recall(pair.id, condition).scores) == len(pair.answers)
    assert reader.recall("c01-q1-amparo", "oracle") == Failure(NOT_RECORDED)
    assert reader.recall("no such row", "profile") == Failure("no score for this row in readers.jsonl")


def test_the_list_of_recorded_models_is_complete() -> None:
    recall = [name for name in MODELS if getattr(MODELS[name], "__annotations__", {}).get("return") == "Recorded"]
    assert set(recall) == set(RECORDED)


CHOSEN, REJECTED, TIE = (Record(verdicts=(winner, None)) for winner in ("first", "second", "tie"))


def recall(path: Path, *rows: str, **options: Any) -> list[Record | Failure]:
    model = RecordedScores(path, **options)
    return [model.recall(row, "profile") for row in rows]


def write(folder: Path, content: Any, name: str = "results.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


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


TWO = {"id": ["7", "tied:3"], "subset": ["Focus", "Ties"], "model": "m"}
TWO["scores"] = [[1.0, 0.5, 0.2, 0.1], [[0.3], [0.4], [0.1], [0.2]]]
JUDGED = {"id": [1, 2, 3, 4], "subset": ["s"] * 4, "results": [1, 0, 0.5, 0.25], "model": "judge"}


@pytest.mark.parametrize(
    ("content", "records"),
    [
        (REWARD_BENCH, {"alpacaeval-easy-1": (0.5, -1.0), "alpacaeval-easy-2": (2.0, 3.0), "hep-cpp-1": (1.0, 1.0)}),
        (TWO, {"Focus-7": (1.0, 0.5, 0.2, 0.1), "Ties-tied:3": (0.3, 0.4, 0.1, 0.2)}),
        (JUDGED, {"s-1": CHOSEN, "s-2": REJECTED, "s-3": TIE, "s-4": Failure("no verdict", "0.25")}),
        ([{"pair": "r1", "verdict": "tie"}], {"r1": TIE}),
    ],
    ids=["reward-bench", "reward-bench 2", "a judge of reward-bench", "rows"],
)
def test_a_json_file_is_known_by_its_content(content: Any, records: dict[str, Any], tmp_path: Path) -> None:
    expected = [Record(scores=value) if isinstance(value, tuple) else value for value in records.values()]
    assert recall(write(tmp_path, content), *records) == expected


def test_the_first_ten_ids_of_factuality_are_repaired_by_position_and_nothing_else(tmp_path: Path) -> None:
    ids = [*map(str, range(30, 40)), *map(str, range(10, 45))]
    content = {"id": ids, "subset": ["Factuality"] * len(ids), "scores": [[float(n), 0.0] for n in range(len(ids))]}
    with pytest.warns(UserWarning, match="read as 0 to 9"):
        records = recall(write(tmp_path, content), "Factuality-0", "Factuality-9", "Factuality-30")
    assert records == [Record(scores=(0.0, 0.0)), Record(scores=(9.0, 0.0)), Record(scores=(30.0, 0.0))]
    other = {**content, "id": [*map(str, range(30, 39)), "50", *ids[10:]]}
    with pytest.raises(BadInput):
        recall(write(tmp_path, other, "other.json"), "Factuality-30")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("s.csv", "pair,verdict\nr1,tie,more\n", "line 2: the row has 3 cells, the header 2"),
        ("s.csv", "pair,verdict\nr1\n", "line 2: the row has 1 cells, the header 2"),
        ("s.csv", 'pair,verdict\nr1,"tie\n', "line 2: broken CSV"),
        ("s.csv", "pair,verdict\nr1,\n", "line 2: there must be a score"),
        ("scores.txt", "r1 1 0", "unknown format"),
        ("r.json", "{", "r.json cannot be read as JSON"),
        ("r.json", {"rows": []}, "line 1: pair: Field required"),
        ("r.json", {"id": [1, 2], "results": [1]}, "cannot be read as results of reward-bench"),
        ("r.json", {"id": [1], "subset": ["s"]}, "cannot be read as results of reward-bench: 'results' is missing"),
        ("r.json", {**REWARD_BENCH, "subset": ["s"]}, "cannot be read as results of reward-bench"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(name: str, content: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=problem) as error:
        RecordedScores(write(tmp_path, content, name))
    assert "\n" not in str(error.value)


def test_csv_and_parquet_say_the_same_as_jsonl(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [
        {"pair": "r1", "condition": "none", "scores": [0.5, -1.0], "verdict": None},
        {"pair": "r2", "condition": None, "scores": None, "verdict": "tie"},
    ]
    table, parquet = tmp_path / "s.csv", tmp_path / "s.parquet"
    table.write_text('pair,condition,scores,verdict\r\nr1,none,"[0.5, -1.0]",\r\nr2,,,tie\r\n', "utf-8")
    pq.write_table(pa.Table.from_pylist(rows), parquet)
    models = [recorded(path) for path in (write_jsonl(rows), table, parquet)]
    for model in models:
        assert model.recall("r1", "none") == SAME
        assert isinstance(model.recall("r1", "profile"), Failure)
        assert model.recall("r2", "profile") == Record(verdicts=("tie", None))


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
