"""Scores that were given elsewhere: what a file may hold, and what is refused with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.load import load_pairs
from prb.errors import BadInput, UnknownName
from prb.models import MODELS, NOT_RECORDED, RECORDED
from prb.types import Comparer, Failure, Record, Recorded, Scorer

Write = Callable[..., Path]


def recorded(path: Path, options: str = "") -> Recorded:
    model = MODELS.make(f"scores?path={path}{options}")
    assert isinstance(model, Recorded)
    return model


def test_a_scores_file_is_neither_a_scorer_nor_a_comparer(write_jsonl: Write) -> None:
    model = recorded(write_jsonl([{"pair": "r1", "verdict": "chosen"}]))
    assert not isinstance(model, Scorer | Comparer)


SAME = Record(scores=(0.5, -1.0))
ONE_ANSWER_PER_ROW = [{"pair": "r1", "answer": 1, "score": -1}, {"id": "r1", "answer": 0, "score": 0.5}]


@pytest.mark.parametrize(
    ("rows", "record"),
    [
        ([{"pair": "r1", "scores": [0.5, -1.0]}], SAME),
        (ONE_ANSWER_PER_ROW, SAME),
        ([{"pair": "r1", "scores_chosen": 0.5, "scores_rejected": [-1]}], SAME),
        ([{"pair": "r1", "chosen_score": 0.5, "rejected_score": -1, "scores": None}], SAME),
        ([{"pair": "r1", "verdict": "first"}], Record(verdicts=("first", None))),
        ([{"pair": "r1", "verdict": "rejected"}], Record(verdicts=("second", None))),
        ([{"pair": "r1", "verdict": "tie"}], Record(verdicts=("tie", None))),
        ([{"pair": "r1", "verdicts": ["first", "tie"]}], Record(verdicts=("first", "tie"))),
        ([{"pair": "r1", "score": 0.7}], Record(scores=(0.7,))),
        ([{"pair": "r1", "failure": "empty reply: twice"}], Failure("empty reply", "twice")),
    ],
)
def test_a_row_is_scores_or_verdicts_or_a_failure(write_jsonl: Write, rows: list[Any], record: Record) -> None:
    assert recorded(write_jsonl(rows)).recall("r1", "profile") == record


def test_texts_tokens_and_costs_of_a_rows_answers_add_up(write_jsonl: Write) -> None:
    rows = [{**row, "tokens": 10, "cost": 0.25, "text": f"reply {n}"} for n, row in enumerate(ONE_ANSWER_PER_ROW)]
    record = recorded(write_jsonl(rows)).recall("r1", "profile")
    assert record == Record(scores=(0.5, -1.0), tokens=20, cost=0.5, text=("reply 0", "reply 1"))


def test_a_row_without_condition_counts_under_profile_or_the_condition_that_is_named(write_jsonl: Write) -> None:
    path = write_jsonl([{"pair": 1, "verdict": "tie"}, {"pair": 1, "condition": "shuffled", "verdict": "first"}])
    tie, first = Record(verdicts=("tie", None)), Record(verdicts=("first", None))
    assert [recorded(path).recall("1", c) for c in ("profile", "shuffled")] == [tie, first]
    assert recorded(path, "&condition=none").recall("1", "none") == tie
    elsewhere = recorded(path).recall("1", "none")
    assert elsewhere == Failure(f"{NOT_RECORDED}, but without one, so under profile")
    assert isinstance(elsewhere, Failure)
    assert elsewhere.kind == "unmeasured"


def test_a_missing_row_is_a_failure_that_names_the_file(write_jsonl: Write) -> None:
    model = recorded(write_jsonl([{"pair": "r1", "condition": "none", "verdict": "tie"}], "theirs.jsonl"))
    assert model.recall("r2", "none") == Failure("no score for this row in theirs.jsonl")
    assert model.recall("r1", "profile") == Failure(NOT_RECORDED)


def test_one_of_several_models_is_picked_by_name(write_jsonl: Write) -> None:
    path = write_jsonl([{"pair": "r1", "model": name, "scores": [n, 0]} for n, name in enumerate("ab")])
    assert recorded(path, "&model=b").recall("r1", "profile") == Record(scores=(1.0, 0.0))
    assert recorded(path, "&model=a").fingerprint != recorded(path, "&model=b").fingerprint
    with pytest.raises(BadInput, match="scores of several models; add model=… to pick one: a, b"):
        recorded(path)
    with pytest.raises(UnknownName, match=r"no model in .* named 'c'"):
        recorded(path, "&model=c")


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


def test_the_fingerprint_follows_the_content_and_never_the_path(write_jsonl: Write) -> None:
    rows = [{"pair": "r1", "scores": [1, 0]}]
    first, moved = write_jsonl(rows, "a.jsonl"), write_jsonl(rows, "b.jsonl")
    changed = write_jsonl([{"pair": "r1", "scores": [1, 2]}], "c.jsonl")
    assert recorded(first).fingerprint == recorded(moved).fingerprint != recorded(changed).fingerprint


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"pair": "r1", "verdict": "tie"}] * 2, "line 2: a second score for row 'r1'$"),
        ([{"pair": "r1", "condition": "none", "answer": 1, "score": 1}] * 2, "line 2: .* 'r1' under none, answer 1$"),
        ([*ONE_ANSWER_PER_ROW, {"pair": "r1", "scores": [1, 2]}], "line 3: a second score"),
        ([{"pair": "r1", "failure": "x"}, {"pair": "r1", "answer": 0, "score": 1}], "line 2: a second score"),
        ([{"verdict": "tie"}], "line 1: pair: Field required"),
        ([{"pair": "r1"}], "line 1: there must be a score, scores, a verdict or a failure"),
        ([{"pair": "r1", "scores": [1], "verdict": "tie"}], "line 1: scores and verdict cannot be combined"),
        ([{"pair": "r1", "scores_chosen": 1}], "line 1: scores_chosen and scores_rejected must both be there"),
        ([{"pair": "r1", "score": "high"}], "line 1: score: Input should be a valid number"),
        ([{"pair": "r1", "score": 1, "answer": -1}], "line 1: answer: Input should be greater than or equal to 0"),
        ([{"pair": "r1", "verdict": "A"}], "line 1: verdict: Input should be 'first', 'second', 'tie'"),
        ([{"pair": "r1", "verdict": "tie", "condition": "oracel"}], "line 1: condition: unknown"),
        ([["r1", 1]], "line 1: must be an object"),
        ([], "holds no scores"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(write_jsonl: Write, rows: list[Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        recorded(write_jsonl(rows))


def test_a_file_that_is_not_there_or_of_no_known_format_is_refused(tmp_path: Path) -> None:
    for name, problem in (("no.jsonl", "does not exist"), ("", "is not a file")):
        with pytest.raises(BadInput, match=problem):
            recorded(tmp_path / name)
    (tmp_path / "scores.txt").write_text("r1 1 0")
    with pytest.raises(BadInput, match="unknown format"):
        recorded(tmp_path / "scores.txt")


def test_noise_needs_a_model_that_can_score_new_answers(write_jsonl: Write) -> None:
    path = write_jsonl([{"pair": "r1", "verdict": "tie"}])
    with pytest.raises(BadInput, match="holds recorded scores; noise needs a model that can score new answers"):
        MODELS.make(f"noisy?model=(scores?path={path})")


def test_the_embedded_reader_knows_the_rows_of_mirror_and_says_where_it_has_none() -> None:
    reader = MODELS.make("reader")
    assert isinstance(reader, Recorded)
    for split in ("test", "hard", "restraint"):
        for pair in load_pairs("mirror", split=split):
            for condition in ("none", "profile", "shuffled"):
                record = reader.recall(pair.id, condition)
                assert isinstance(record, Record)
                assert len(record.scores) == len(pair.answers)
    assert reader.recall("c01-q1-amparo", "oracle") == Failure(NOT_RECORDED)
    assert reader.recall("no such row", "profile") == Failure("no score for this row in readers.jsonl")


def test_the_list_of_recorded_models_is_complete() -> None:
    recall = [name for name in MODELS if getattr(MODELS[name], "__annotations__", {}).get("return") == "Recorded"]
    assert set(recall) == set(RECORDED)
