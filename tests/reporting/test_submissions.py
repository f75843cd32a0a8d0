"""Submissions of others: what holds is merged, and everything that does not is refused with its reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.errors import BadInput, NotAccepted
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.reporting.submissions import Leaderboard, LeaderboardConfig, credit_problem, leaderboard
from prb.runs import content_digest, read_identity, sealed, write_sealed
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
    data.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in ROWS))
    models = {"long": ScriptedScorer(by_length), "judge": prefers(lambda duel: len(duel.first) < 40)}
    evaluate(settings(data, folder / "runs" / "alice", model=tuple(models)), models=models)
    return folder


@pytest.fixture
def board(made: Path, tmp_path: Path) -> Callable[..., Leaderboard]:
    shutil.copytree(made / "runs", tmp_path / "runs")

    def call(**changes: Any) -> Leaderboard:
        config = {"dataset": str(made / "rows.jsonl"), "ranker": "recency", "k": 5, **changes}
        return leaderboard(LeaderboardConfig(submissions=tmp_path / "runs", out=tmp_path / "site", **config))

    return call


def forge(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change a file of a run and all digests with it, as somebody would who knows the format."""
    path = folder / name
    if name.endswith("jsonl"):
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        changed = change([{k: v for k, v in line.items() if k != "crc"} for line in lines])
        path.write_bytes(b"".join(map(sealed, changed)))
    else:
        path.write_bytes(orjson.dumps(change(orjson.loads(path.read_bytes()))))
    config = read_identity(folder)
    config["digests"][name] = content_digest(path)
    write_sealed(folder / "config.json", config)


def test_submissions_that_hold_are_one_leaderboard(board: Callable[..., Leaderboard], tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "runs" / "alice", tmp_path / "runs" / "bob")
    done = board(publish="pages")
    assert (done.accepted, done.refused) == (("alice", "bob"), {})
    assert done.index == tmp_path / "site" / "index.html"
    models = data_of(tmp_path / "site", "site")["datasets"][0]["models"]
    assert [model["name"] for model in models] == ["long (alice)", "judge (alice)", "long (bob)", "judge (bob)"]
    assert {"README.md", ".nojekyll", "pairs.html"} <= set(names(tmp_path / "site"))
    assert "Refused" not in done.index.read_text("utf-8")


def double(content: Any) -> Any:
    content["results"][0]["accuracy"]["value"] = 0.99
    return content


def win(lines: Any) -> Any:
    return [{**line, "credit": 1.0} if line["model"] == "long" and line["credit"] == 0 else line for line in lines]


def rescore(lines: Any) -> Any:
    """Scores, credit and margin agree, but the summary is an old one."""
    change = {"scores": [9.0, 1.0], "credit": 1.0, "margin": 8.0}
    return [{**line, **change} if line["model"] == "long" else line for line in lines]


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (
            "summary.json",
            double,
            r"summary\.json does not follow from the outcomes: results\[0\]\.accuracy\.value is 0\.99",
        ),
        ("outcomes.jsonl", win, r"credit 1\.0 and margin -?[\d.]+ are not what the answers of the model earn"),
        ("outcomes.jsonl", rescore, r"summary\.json does not follow from the outcomes"),
        ("outcomes.jsonl", lambda lines: lines[:-1], "judge under shuffled has 6 of 7 rows"),
        ("outcomes.jsonl", lambda lines: lines[1:], "is where the dataset has"),
        ("users.json", lambda content: {**content, "users": []}, r"users\.json does not follow"),
        ("summary.json", lambda content: {**content, "results": [{}]}, "does not follow|damaged"),
    ],
)
def test_a_forged_submission_is_refused(
    board: Callable[..., Leaderboard], tmp_path: Path, name: str, change: Callable[[Any], Any], reason: str
) -> None:
    shutil.copytree(tmp_path / "runs" / "alice", tmp_path / "runs" / "mallory")
    forge(tmp_path / "runs" / "mallory", name, change)
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
        ({"k": 7}, "it was run with other settings: k is 5, not 7"),
        (
            {"seed": 1, "history": "posts"},
            "it was run with other settings: history is both, not posts; seed is 0, not 1",
        ),
        ({"limit": 4}, "it has 7 rows, the leaderboard has 4"),
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


def test_what_is_no_finished_run_is_refused_and_strict_fails_with_a_site(
    board: Callable[..., Leaderboard], tmp_path: Path
) -> None:
    (tmp_path / "runs" / "empty").mkdir()
    shutil.copytree(tmp_path / "runs" / "alice", tmp_path / "runs" / "half")
    (tmp_path / "runs" / "half" / "summary.json").unlink()
    shutil.copytree(tmp_path / "runs" / "alice", tmp_path / "runs" / "torn")
    with (tmp_path / "runs" / "torn" / "summary.json").open("ab") as file:
        file.write(b" ")
    with pytest.raises(NotAccepted, match="3 of 4") as failed:
        board(strict=True)
    refused = failed.value.result.refused
    assert refused["empty"] == "empty is not a run"
    assert refused["half"].startswith("half is not finished")
    assert "was changed after the run wrote it" in refused["torn"]
    assert (tmp_path / "site" / "index.html").exists()
    assert board().accepted == ("alice",)


def test_a_model_that_fails_on_the_hard_rows_is_refused(made: Path, tmp_path: Path) -> None:
    data = made / "rows.jsonl"
    shy = ScriptedScorer(lambda ask: Failure("busy") if "number 2" in ask.query.question else by_length(ask))
    evaluate(settings(data, tmp_path / "runs" / "shy"), models={"mine": shy})
    config = LeaderboardConfig(
        submissions=tmp_path / "runs", out=tmp_path / "site", dataset=str(data), ranker="recency", k=5
    )
    with pytest.raises(NotAccepted) as failed:
        leaderboard(config)
    assert "mine under none" in failed.value.result.refused["shy"]


def test_the_dataset_that_a_submission_names_is_not_opened(board: Callable[..., Leaderboard], tmp_path: Path) -> None:
    """It might be a Python file that the submission brings along."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nrows = None\n")
    folder = tmp_path / "runs" / "alice"
    config = read_identity(folder)
    config["evaluate"]["dataset"] = f"{evil}:rows"
    write_sealed(folder / "config.json", config)
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
