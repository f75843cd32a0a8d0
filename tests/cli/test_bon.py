"""`prb bon`: flags, tables, JSON, what is refused, what survives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prb.grading import GRADERS
from prb.llm import LLMS, ScriptedLLM
from tests.cli.conftest import Prb
from tests.conftest import make_row, make_twins
from tests.downstream.fakes import Marks, lines, says
from tests.runs import names

Write = Callable[..., Path]
RECENT = ("--history", "both?ranker=recency")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy `words/…` and a grader `marks`, for these tests only."""

    def words(model: str) -> ScriptedLLM:
        return ScriptedLLM(says)

    monkeypatch.setitem(LLMS._known, "words", words)
    monkeypatch.setitem(GRADERS._known, "marks", Marks.plain)


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl([*make_twins(1), make_row(5), make_row(6)])


def flags(data: Path, out: Path, *more: object) -> list[object]:
    usual: list[object] = ["--policy", "words/x", "--grader", "marks", "--n", "4", *RECENT]
    return [*usual, "--dataset", data, "--out", out, *more]


def test_a_run_prints_curves_differences_and_how_far_the_grader_can_be_trusted(
    prb: Prb, data: Path, tmp_path: Path
) -> None:
    said = prb("bon", *flags(data, tmp_path / "run", "--model", "length", "--model", "random"))
    assert said.code == 0
    for part in ("4 queries, 3 clusters, N = 4", "best of 4", "headroom", "(oracle pick)", "length − random"):
        assert part in said.out
    assert said.out.count("Right on 3 of 4 known pairs.") == 2  # beside every table
    assert f"run: {tmp_path / 'run'}" in said.out
    assert "sampling words/x: 16 to go" in said.err
    again = prb("bon", *flags(data, tmp_path / "run", "--json", "--quiet"))
    assert (again.code, again.err) == (0, "")
    assert again.json == json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))


def test_a_grader_that_was_never_measured_says_so(
    prb: Prb, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Marks, "validity")
    said = prb("bon", *flags(data, tmp_path / "run", "--model", "length"))
    assert "Graded by marks. Its validity has not been measured." in said.out


def test_models_are_added_and_a_run_is_repeated_from_its_config(prb: Prb, data: Path, tmp_path: Path) -> None:
    prb("bon", *flags(data, tmp_path / "run", "--model", "length"))
    drawn = lines(tmp_path / "run", "samples")
    config = tmp_path / "run" / "config.json"
    added = prb("bon", "--config", config, "--model", "lexical", "--out", tmp_path / "run", "--json")
    assert [row["model"] for row in added.json["results"]] == ["length", "lexical"]
    assert lines(tmp_path / "run", "samples") == drawn
    again = prb("bon", "--config", config, "--out", tmp_path / "again", "--json", "--quiet")
    assert again.json == added.json


def test_without_out_the_folder_is_the_same_for_further_models(
    prb: Prb, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["bon", "--policy", "words/x", "--grader", "marks", "--n", "2", "--dataset", data, "--quiet"]
    prb(*words, "--model", "length")
    prb(*words, "--model", "random")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("bon-set-jsonl-")
    assert {line["model"] for line in lines(folder, "scores")} == {"length", "random"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "lenght"], "no model named 'lenght'; did you mean 'length'?"),
        (["--policy", "smollm2"], "'smollm2' is not an llm spec"),
        (["--policy", "lamacpp/x"], "no llm named 'lamacpp'; did you mean 'llamacpp'?"),
        (["--grader", "mark"], "no grader named 'mark'; did you mean 'marks'?"),
        (["--model", "scripted-judge", "--n", "17"], "only compares answers"),
        (["--split", "dev"], "there is no split 'dev'"),
        (["--condition", "nobody"], "nobody"),
        (["--condition", "none", "--condition", "profile"], "--condition takes one value here"),
        (["--n", "many"], "many"),
        (["--planner", "crystal-ball"], "no planner named 'crystal-ball'"),
    ],
)
def test_a_wrong_request_exits_2_and_writes_nothing(
    words: list[str], says: str, prb: Prb, data: Path, tmp_path: Path
) -> None:
    said = prb("bon", *flags(data, tmp_path / "run"), *words)
    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert names(tmp_path) == ["set.jsonl"]


@pytest.fixture
def pool(write_jsonl: Write) -> Path:
    texts = ["once it is", "never it is"]
    return write_jsonl([{"pair": id_, "answers": texts} for id_ in ("t1a", "t1b", "r5")], name="pool.jsonl")


def test_answers_of_a_file_are_scored_and_the_run_is_repeated_from_its_config(
    prb: Prb, data: Path, pool: Path, tmp_path: Path
) -> None:
    words = ["--grader", "marks", "--n", "2", *RECENT, "--dataset", data, "--out", tmp_path / "run"]
    said = prb("bon", "--candidates", pool, *words, "--model", "length")
    assert said.code == 0, said.err
    assert "left out 1 rows without candidates" in said.err
    for part in ("3 queries", "candidates pool.jsonl"):
        assert part in said.out
    added = prb("bon", "--config", tmp_path / "run", "--out", tmp_path / "run", "--model", "lexical", "--json")
    assert [row["model"] for row in added.json["results"]] == ["length", "lexical"]
    moved = pool.rename(tmp_path / "moved.jsonl")
    resumed = prb("bon", "--config", tmp_path / "run", "--out", tmp_path / "run", "--candidates", moved, "--json")
    assert resumed.json["results"] == added.json["results"]
    moved.write_text(moved.read_text("utf-8").replace("never", "often"), "utf-8")
    changed = prb("bon", "--config", tmp_path / "run", "--out", tmp_path / "run", "--json")
    assert (changed.code, "'policy: candidates' was " in changed.err) == (2, True)


def test_too_few_candidates_exit_2_with_the_number_that_works(prb: Prb, data: Path, pool: Path, tmp_path: Path) -> None:
    words = ("--candidates", pool, "--grader", "marks", "--dataset", data, "--model", "length")
    said = prb("bon", *words, "--n", 16, "--out", tmp_path / "run")
    assert (said.code, said.out) == (2, "")
    assert "row 't1a' has 2 candidates, fewer than --n 16; use --n 2" in said.err
    assert names(tmp_path) == ["pool.jsonl", "set.jsonl"]
    assert prb("bon", *words, "--out", tmp_path / "run", "--json").json["n"] == 2  # the default is what there is


def test_a_policy_or_candidates_are_needed_and_a_config_must_be_one(prb: Prb, pool: Path, tmp_path: Path) -> None:
    for words in ([], ["--policy", "words/x", "--candidates", pool]):
        said = prb("bon", *words)
        assert said.code == 2
        assert "needs either --policy, which is sampled from, or --candidates, answers in a file" in said.err
    (tmp_path / "config.json").write_text('{"evaluate": {}}')
    said = prb("bon", "--config", tmp_path / "config.json")
    assert (said.code, "holds no settings of `prb bon`" in said.err) == (2, True)


def test_best_of_n_begins_with_whether_it_gains(prb: Prb, tmp_path: Path) -> None:
    words = ("bon", "--candidates", "mirror", "--limit", "12", "--model", "random", "--grader", "recorded")
    said = prb(*words, "--out", tmp_path / "run", "--quiet")
    assert said.out.startswith("Best of 8: ")
