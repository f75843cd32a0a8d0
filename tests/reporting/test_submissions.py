"""Submissions of others: what holds is merged, and everything that does not is refused with its reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput, NotAccepted
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.reporting.submissions import Leaderboard, LeaderboardConfig, credit_problem, leaderboard
from prb.runs import read_json, read_lines, write_json, write_lines
from prb.types import Failure
from tests.conftest import make_row, make_twins
from tests.reporting.sites import data_of
from tests.runs import by_length, names, prefers, settings

Write = Callable[..., Path]
ROWS = [row for n in range(3) for row in make_twins(n)] + [make_row(9)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, a good submission `alice` of two models, and one from elsewhere."""
    folder = tmp_path_factory.mktemp("submissions")
    data = folder / "rows.jsonl"
    write_lines(data, ROWS)
    models = {"long": ScriptedScorer(by_length), "judge": prefers(lambda duel: len(duel.first) < 40)}
    evaluate(settings(data, folder / "runs" / "alice", model=tuple(models)), models=models)
    return folder


@pytest.fixture
def board(made: Path, tmp_path: Path) -> Callable[..., Leaderboard]:
    shutil.copytree(made / "runs", tmp_path / "runs")

    def call(**changes: Any) -> Leaderboard:
        own = {name: changes.pop(name) for name in ("strict",) if name in changes}
        reference = reference_run(tmp_path, **{"dataset": str(made / "rows.jsonl"), **changes})
        config = LeaderboardConfig(submissions=tmp_path / "runs", config=reference, out=tmp_path / "site", **own)
        return leaderboard(config)

    return call


def reference_run(folder: Path, **settings: Any) -> Path:
    """A config.json with settings that all submissions must have."""
    usual = {"history": "both?ranker=recency", "k": 5, "condition": ["none", "profile", "shuffled"]}
    write_json(folder / "reference.json", {"evaluate": {**usual, **settings}})
    return folder / "reference.json"


def forge(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    path = folder / name
    if name.endswith("jsonl"):
        write_lines(path, change(list(read_lines(path))))
    else:
        write_json(path, change(read_json(path)))


def test_submissions_that_hold_are_one_leaderboard(board: Callable[..., Leaderboard], tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "runs" / "alice", tmp_path / "runs" / "bob")
    done = board()
    assert (done.accepted, done.refused) == (("alice", "bob"), {})
    assert done.index == tmp_path / "site" / "index.html"
    models = data_of(tmp_path / "site", "site")["datasets"][0]["models"]
    assert [model["name"] for model in models] == ["long (alice)", "judge (alice)", "long (bob)", "judge (bob)"]
    assert {"README.md", ".nojekyll", "pairs.html"} <= set(names(tmp_path / "site"))
    assert "Refused" not in done.index.read_text("utf-8")


OTHER = "it was run with other settings:"


def win(lines: Any) -> Any:
    return [{**line, "credit": 1.0} if line["model"] == "long" and line["credit"] == 0 else line for line in lines]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (win, r"credit 1\.0 and margin -?[\d.]+ are not what the answers of the model earn"),
        (lambda lines: lines[:-1], "judge under shuffled has 6 of 7 rows"),
        (lambda lines: lines[1:], "is where the dataset has"),
        (lambda lines: [{**line, "user": "me"} for line in lines], "user or cluster is not that of the row"),
    ],
)
def test_a_forged_submission_is_refused(
    board: Callable[..., Leaderboard], tmp_path: Path, change: Callable[[Any], Any], reason: str
) -> None:
    shutil.copytree(tmp_path / "runs" / "alice", tmp_path / "runs" / "mallory")
    forge(tmp_path / "runs" / "mallory", "outcomes.jsonl", change)
    done = board()
    assert done.accepted == ("alice",)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(done.refused["mallory"])
    page = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "Refused submissions" in page
    assert "mallory" in page


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"k": 7}, f"{OTHER} k is 5, not 7"),
        ({"seed": 1, "history": "posts"}, f"{OTHER} history is both?ranker=recency, not posts; seed is 0, not 1"),
        ({"limit": 4}, f"{OTHER} limit is None, not 4"),
        ({"condition": ("oracle",)}, "it lacks the condition oracle"),
        ({"dataset": "mirror"}, "it is about other data: fingerprint"),
    ],
)
def test_other_data_and_other_settings_are_refused_and_nothing_is_written(
    board: Callable[..., Leaderboard], tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotAccepted, match="1 of 1 submissions were refused") as failed:
        board(**changes)
    assert failed.value.result.refused["alice"].startswith(reason)
    assert failed.value.exit_code == 1
    assert not (tmp_path / "site").exists()


def test_the_site_shows_what_is_computed_from_the_outcomes(board: Callable[..., Leaderboard], tmp_path: Path) -> None:
    summary = tmp_path / "runs" / "alice" / "summary.json"
    true = read_json(summary)["results"][0]["accuracy"]
    for said in (b'{"results": [{"accuracy": {"value": 0.99}}]}', b"{"):  # it is not even read
        summary.write_bytes(said)
        assert board().accepted == ("alice",)
        (row, *_) = data_of(tmp_path / "site", "d0/board")["slices"]["all"]
        assert row["accuracy"]["none"] == true


def instead(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_instead(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(30 << 30)


BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no outcomes": ("outcomes.jsonl", Path.unlink, "it has no outcomes.jsonl"),
    "a folder": ("config.json", folder_instead, "config.json is not a file"),
    "a pipe": ("outcomes.jsonl", pipe_instead, "outcomes.jsonl is not a file"),
    "a link": ("config.json", link_instead, "config.json cannot be read: Too many levels of symbolic links"),
    "30 GB of nothing": ("outcomes.jsonl", sparse, "outcomes.jsonl has 32,212,254,720 bytes"),
    "one long line": ("outcomes.jsonl", instead(b" " * (5 << 20)), "outcomes.jsonl, line 1: not JSON"),
    "not JSON": ("config.json", instead(b"{"), "config.json is not JSON"),
    "a list": ("config.json", instead(b"[]"), "it is not a run of `prb evaluate`"),
    "another verb": ("config.json", instead(b'{"bon": {}}'), "it is not a run of `prb evaluate`"),
    "unknown settings": ("config.json", instead(b'{"evaluate": {"k": "x", "y": 1}}'), ""),
}


def test_each_bad_submission_is_refused_alone_with_one_line(board: Callable[..., Leaderboard], tmp_path: Path) -> None:
    alice = tmp_path / "runs" / "alice"
    for case, (name, damage, _) in BAD.items():
        shutil.copytree(alice, tmp_path / "runs" / case)
        damage(tmp_path / "runs" / case / name)
    (tmp_path / "runs" / "zz linked").symlink_to(alice)
    shutil.copytree(alice, Path(os.fsdecode(os.fsencode(tmp_path / "runs") + b"/\xff")))
    done = board()
    assert done.accepted == ("alice",)
    assert {case: done.refused[case][: len(reason)] for case, (_, _, reason) in BAD.items()} == {
        case: reason for case, (_, _, reason) in BAD.items()
    }
    assert done.refused["zz linked"] == "it is a link"
    assert done.refused["�"] == "its name has characters that cannot be shown"
    assert not any("\n" in reason for reason in done.refused.values())
    with pytest.raises(NotAccepted, match=f"{len(BAD) + 2} of {len(BAD) + 3}"):
        board(strict=True)


def test_a_model_that_fails_on_the_hard_rows_is_refused(made: Path, tmp_path: Path) -> None:
    data = made / "rows.jsonl"
    shy = ScriptedScorer(lambda ask: Failure("busy") if "number 2" in ask.query.question else by_length(ask))
    evaluate(settings(data, tmp_path / "runs" / "shy"), models={"mine": shy})
    reference = reference_run(tmp_path, dataset=str(data))
    with pytest.raises(NotAccepted) as failed:
        leaderboard(LeaderboardConfig(submissions=tmp_path / "runs", config=reference, out=tmp_path / "site"))
    assert "mine under none" in failed.value.result.refused["shy"]


def test_the_dataset_that_a_submission_names_is_not_opened(board: Callable[..., Leaderboard], tmp_path: Path) -> None:
    """It might be a Python file that the submission brings along."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nrows = None\n")
    settings = {"dataset": f"{evil}:rows"}
    change = lambda content: {**content, "evaluate": {**content["evaluate"], **settings}}  # noqa: E731
    forge(tmp_path / "runs" / "alice", "config.json", change)
    assert board().accepted == ("alice",)
    assert not (tmp_path / "ran").exists()


def test_a_folder_without_submissions_is_bad_input(tmp_path: Path) -> None:
    for place, said in ((tmp_path / "nowhere", "is not a folder"), (tmp_path, "holds no submissions")):
        with pytest.raises(BadInput, match=said):
            leaderboard(LeaderboardConfig(submissions=place, out=tmp_path / "site"))


def test_credit_is_what_scores_or_verdicts_earn() -> None:
    line = {"failure": None, "scores": [2.0, 1.0], "verdicts": None, "credit": 1.0, "margin": 1.0}
    assert credit_problem(line, 1, 2, None) is None
    assert "3 scores expected" in str(credit_problem(line, 1, 3, None))
    assert "not what the answers" in str(credit_problem({**line, "margin": 3.0}, 1, 2, None))
    assert credit_problem({**line, "credit": None}, 1, 2, "no-evidence") is None
    duel = {**line, "scores": None, "verdicts": ["first", "first"], "credit": 0.5, "margin": 0.0}
    assert credit_problem(duel, 1, 2, None) is None
    assert "do not fit" in str(credit_problem({**duel, "verdicts": [None, None]}, 1, 2, None))
    assert credit_problem({**duel, "log_odds": [3.0, 1.0], "credit": 1.0, "margin": 1.0}, 1, 2, None) is None
    assert "not what the answers" in str(credit_problem({**duel, "log_odds": [3.0, 1.0]}, 1, 2, None))
