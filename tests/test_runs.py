from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from prb.errors import BadInput, RunConflict
from prb.runs import CONFIG, OUTCOMES, SUMMARY, USERS, Run, read_json, read_outcomes, write_json
from prb.types import Outcome

CONFIGURED = {"dataset": "mirror", "seed": 0, "retrieval": {"k": 10, "ranker": "bm25"}}
HOLD = """
import sys
from pathlib import Path
from prb.runs import Run
with Run(Path(sys.argv[1]), {"seed": 0}):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def outcome(n: int, text: str = "") -> Outcome:
    return Outcome(
        pair=f"r{n}",
        user=f"u{n}",
        cluster=f"u{n}",
        model="m",
        condition="none",
        scores=(1.0, 0.5),
        credit=1.0,
        text=(text,),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


def written(folder: Path, n: int = 3) -> bytes:
    with Run(folder, CONFIGURED) as run:
        run.append([outcome(k) for k in range(1, n + 1)])
    return (folder / OUTCOMES).read_bytes()


def ids(rows: Iterator[dict[str, object]]) -> list[object]:
    return [row["pair"] for row in rows]


# appending and resuming


def test_lines_are_there_as_soon_as_they_are_appended(folder: Path) -> None:
    with Run(folder, CONFIGURED) as run:
        assert run.count() == 0
        run.append([outcome(1), outcome(2)])
        assert ids(read_outcomes(folder)) == ["r1", "r2"]
        run.append([outcome(3)])
        assert run.count() == 3
        assert ids(run.lines()) == ["r1", "r2", "r3"]


def test_an_outcome_comes_back_with_every_field(folder: Path) -> None:
    written(folder, 1)
    [row] = read_outcomes(folder)
    assert row == orjson.loads(orjson.dumps(outcome(1)))


def test_a_resumed_run_goes_on_where_it_stopped(folder: Path) -> None:
    whole = written(folder, 4)
    other = folder.with_name("second")
    written(other, 2)
    with Run(other, CONFIGURED) as run:
        assert (run.count(), run.dropped_tail) == (2, False)
        run.append([outcome(3), outcome(4)])
    assert (other / OUTCOMES).read_bytes() == whole


def test_lines_of_an_unfinished_batch_can_be_cut(folder: Path) -> None:
    whole = written(folder, 3)
    with Run(folder, CONFIGURED) as run:
        run.keep(1)
        assert ids(run.lines()) == ["r1"]
        run.append([outcome(2), outcome(3)])
    assert (folder / OUTCOMES).read_bytes() == whole


def test_finishing_writes_summary_and_users(folder: Path) -> None:
    with Run(folder, CONFIGURED) as run:
        run.append([outcome(1)])
        run.finish({"results": [1]}, {"u1": 1.0})
    assert read_json(folder / SUMMARY) == {"results": [1]}
    assert read_json(folder / USERS) == {"u1": 1.0}
    assert not list(folder.glob("*.part"))


# damage


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_torn_last_line_is_dropped_and_written_again(cut: int, folder: Path) -> None:
    whole = written(folder, 3)
    (folder / OUTCOMES).write_bytes(whole[:-cut])
    with Run(folder, CONFIGURED) as run:
        assert run.dropped_tail
        assert ids(run.lines()) == ["r1", "r2"]
        run.append([outcome(3)])
    assert (folder / OUTCOMES).read_bytes() == whole


def test_a_torn_first_line_leaves_an_empty_file(folder: Path) -> None:
    whole = written(folder, 1)
    (folder / OUTCOMES).write_bytes(whole[:20])
    with Run(folder, CONFIGURED) as run:
        assert (run.dropped_tail, run.count()) == (True, 0)
        run.append([outcome(1)])
    assert (folder / OUTCOMES).read_bytes() == whole


def test_a_torn_line_longer_than_a_block_is_dropped_whole(folder: Path) -> None:
    whole = written(folder, 1)
    with (folder / OUTCOMES).open("ab") as file:
        file.write(b'{"text": "' + b"a" * 200_000)
    with Run(folder, CONFIGURED) as run:
        assert run.dropped_tail
    assert (folder / OUTCOMES).read_bytes() == whole


def test_a_damaged_middle_line_is_named_and_never_skipped(folder: Path) -> None:
    lines = written(folder, 3).splitlines(keepends=True)
    (folder / OUTCOMES).write_bytes(lines[0] + b'{"pair": \n' + lines[2])
    with Run(folder, CONFIGURED) as run:
        assert not run.dropped_tail
        rows = run.lines()
        assert next(rows)["pair"] == "r1"
        with pytest.raises(BadInput, match=r"outcomes.jsonl is damaged at line 2; remove the folder and run again"):
            next(rows)


def test_a_folder_without_outcomes_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is not a run: it has no outcomes.jsonl"):
        list(read_outcomes(tmp_path))


# conflicts


def test_a_second_process_is_kept_out_and_let_in_later(folder: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RunConflict, match=r"first is being written by another process"), Run(folder, {"seed": 0}):
            pass
        assert (folder / CONFIG).exists()
    finally:
        holder.communicate("done\n")
    assert holder.returncode == 0
    with Run(folder, {"seed": 0}) as run:
        assert run.count() == 0


def test_another_configuration_is_refused_with_every_key_that_differs(folder: Path) -> None:
    before = written(folder)
    other = {"dataset": "mirror", "seed": 1, "retrieval": {"k": 10, "ranker": "recency"}, "limit": 5}
    with pytest.raises(RunConflict) as caught, Run(folder, other):
        pass
    told = str(caught.value).splitlines()
    assert told[0] == f"{folder} was made with another configuration; choose another --out or repair:"
    assert [line.strip() for line in told[1:]] == [
        "seed: 0 → 1",
        'retrieval.ranker: "bm25" → "recency"',
        "limit: null → 5",
    ]
    assert (folder / OUTCOMES).read_bytes() == before
    assert read_json(folder / CONFIG) == CONFIGURED


def test_a_refused_run_does_not_stay_locked(folder: Path) -> None:
    written(folder)
    with pytest.raises(RunConflict), Run(folder, {"seed": 1}):
        pass
    with Run(folder, CONFIGURED) as run:
        assert run.count() == 3


def test_tuples_and_lists_are_the_same_configuration(folder: Path) -> None:
    with Run(folder, {"models": {}, "conditions": ("none", "profile")}) as run:
        run.append([outcome(1)])
    with Run(folder, {"conditions": ["none", "profile"]}) as run:
        assert run.count() == 1


def test_a_folder_that_is_no_run_is_left_alone(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("precious")
    with pytest.raises(RunConflict, match=r"exists and is not a run; choose another --out"), Run(folder, CONFIGURED):
        pass
    assert [entry.name for entry in folder.iterdir()] == ["thesis.txt"]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match=r"cannot be a run folder"), Run(folder, CONFIGURED):
            pass
    assert (tmp_path / "file").read_text() == "precious"


def test_an_empty_folder_may_become_a_run(folder: Path) -> None:
    folder.mkdir(parents=True)
    written(folder, 1)
    assert read_json(folder / CONFIG) == CONFIGURED


def test_a_model_that_changed_under_its_name_is_refused(folder: Path) -> None:
    with Run(folder, CONFIGURED) as run:
        run.confirm_model("embedding", "wordllama-1")
        run.confirm_model("embedding", "wordllama-1")
        run.append([outcome(1)])
    with Run(folder, CONFIGURED) as run:
        run.confirm_model("lexical", "v1")
        with pytest.raises(
            RunConflict, match=r"model 'embedding' was 'wordllama-1' when the run began and is 'wordllama-2' now"
        ):
            run.confirm_model("embedding", "wordllama-2")
    assert read_json(folder / CONFIG)["models"] == {"embedding": "wordllama-1", "lexical": "v1"}


# leaving no trace


def test_a_run_that_fails_before_its_first_outcome_leaves_no_trace(folder: Path) -> None:
    with pytest.raises(ValueError, match="bad"), Run(folder, CONFIGURED):
        raise ValueError("bad input")
    assert not folder.exists()


def test_a_run_that_fails_after_its_first_outcome_is_kept(folder: Path) -> None:
    def fail() -> None:
        with Run(folder, CONFIGURED) as run:
            run.append([outcome(1)])
            raise ValueError("bad luck")

    with pytest.raises(ValueError, match="bad"):
        fail()
    assert ids(read_outcomes(folder)) == ["r1"]
    assert read_json(folder / CONFIG) == CONFIGURED


def test_a_resumed_run_that_fails_at_once_is_kept(folder: Path) -> None:
    before = written(folder)
    with pytest.raises(ValueError, match="bad"), Run(folder, CONFIGURED):
        raise ValueError("bad luck")
    assert (folder / OUTCOMES).read_bytes() == before


# small files


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert path.read_bytes().endswith(b"}\n")


def test_a_missing_or_broken_json_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"x.json does not exist"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(BadInput, match=r"x.json is not JSON: "):
        read_json(tmp_path / "x.json")
