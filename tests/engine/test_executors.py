"""A real Ray of several nodes on this machine: the files are those of a local run, whatever happens on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prb.errors import PrbError
from prb.evaluation.run import evaluate
from prb.types import RewardModel
from tests.conftest import make_row, make_twins
from tests.engine import fragile
from tests.engine.clusters import two_nodes
from tests.engine.fragile import Differing, Fragile, Picky
from tests.runs import Notes, outcomes, same_files, settings

ray = pytest.importorskip("ray", reason="needs the ray extra")
Write = Callable[..., Path]
ROWS = [row for n in range(1, 9) for row in (*make_twins(n), make_row(10 + n))]
TWO = "ray?actors=2&cpus=1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The test process is its driver."""
    with two_nodes() as made:
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        yield made
        ray.shutdown()


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl(ROWS)


def run(data: Path, out: Path, model: RewardModel, *, engine: str = "local", **changes: Any) -> Path:
    given = {"batch": 3, **changes}
    progress = given.pop("progress", Notes())
    evaluate(settings(data, out, engine=engine, **given), models={"mine": model}, progress=progress)
    return out


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("comparing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_outcomes_are_those_of_a_local_run(comparing: bool, data: Path, tmp_path: Path) -> None:
    model = Picky() if comparing else Fragile(str(tmp_path))
    here = run(data, tmp_path / "here", model)
    assert same_files(here, run(data, tmp_path / "there", model, engine=TWO))
    if not comparing:
        assert len({line["failure"] for line in outcomes(here)}) == 2  # some rows fail, in both runs alike
        pids = {path.name.split("-")[1] for path in tmp_path.glob("call-*")}
        assert len(pids) > 1  # this process, and one worker or two


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_costs_nothing_but_time(data: Path, tmp_path: Path) -> None:
    there = run(data, tmp_path / "there", Fragile(str(tmp_path), dies_once="plant 5 "), engine=TWO)
    assert (tmp_path / "died").exists()
    assert same_files(there, run(data, tmp_path / "here", Fragile(str(tmp_path))))


@pytest.mark.slow
def test_a_node_that_is_removed_costs_nothing_but_time(cluster: Any, data: Path, tmp_path: Path) -> None:
    spare = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)

    class Removing(Notes):
        def advance(self, n: int = 1) -> None:
            nonlocal spare
            if spare is not None:
                cluster.remove_node(spare, allow_graceful=False)
                spare = None

    there = run(data, tmp_path / "there", Fragile(str(tmp_path)), engine="ray?actors=3", progress=Removing())
    assert spare is None
    assert same_files(there, run(data, tmp_path / "here", Fragile(str(tmp_path))))


@pytest.mark.usefixtures("cluster")
def test_the_rows_of_a_poisoned_batch_fail_and_the_rest_goes_on(data: Path, tmp_path: Path) -> None:
    poisoned = Fragile(str(tmp_path), deadly="plant 15 ")
    there = run(data, tmp_path / "there", poisoned, engine=f"{TWO}&retries=1", condition=("none",))
    failed = {line["pair"]: line for line in outcomes(there) if line["failure"]}
    position = [row["id"] for row in ROWS].index("r15") // 3 * 3
    assert list(failed) == [row["id"] for row in ROWS[position : position + 3]]
    reason = "the batch could not be computed: "
    assert all(line["failure"].startswith(reason) for line in failed.values())
    assert {line["failure_kind"] for line in failed.values()} == {"transient"}
    assert len(outcomes(there)) == len(ROWS)
    run(data, there, Fragile(str(tmp_path)), condition=("none",))  # asks again, and only about these
    assert same_files(there, run(data, tmp_path / "here", Fragile(str(tmp_path)), condition=("none",)))


@pytest.mark.usefixtures("cluster")
def test_an_error_of_the_model_is_one_line_as_it_is_here(data: Path, tmp_path: Path) -> None:
    with pytest.raises(PrbError, match=r"^mine: ValueError: the tensor is too large$"):
        run(data, tmp_path / "there", Fragile(str(tmp_path), raises="plant 15"), engine=TWO)


@pytest.mark.usefixtures("cluster")
def test_a_replica_that_cannot_load_is_one_line(data: Path, tmp_path: Path) -> None:
    model = Fragile(str(tmp_path))
    (tmp_path / "broken").touch()
    with pytest.raises(PrbError, match=r"^'mine' cannot be loaded by a Ray worker: RuntimeError: no weights here$"):
        run(data, tmp_path / "out", fragile.Reloading(model), engine=TWO)
    assert not (tmp_path / "out").exists()


def test_a_run_that_ends_before_all_actors_have_started_ends_well(cluster: Any, tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from prb.engine.executors import open_executor
from prb.models.scripted import scripted

def make():
    try:
        Path({str(tmp_path / "first")!r}).touch(exist_ok=False)
    except FileExistsError:
        time.sleep(60)
    return scripted(1.0)

for _ in range(3):
    Path({str(tmp_path / "first")!r}).unlink(missing_ok=True)
    with open_executor("ray?actors=4&address={cluster.address}") as executor:
        executor.load(make, "one")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_replicas_with_other_weights_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(PrbError, match="replicas of 'mine' differ: 'weights-"):
        run(data, tmp_path / "out", fragile.Reloading(Differing(str(tmp_path))), engine=TWO, batch=1)


@pytest.mark.slow
def test_a_ray_of_our_own_needs_no_short_temporary_folder_and_leaves_nothing(data: Path, tmp_path: Path) -> None:
    long = tmp_path / ("a-folder-with-a-long-name-" * 4)
    long.mkdir()
    words = ["evaluate", "--model", "length", "--dataset", str(data), "--out", str(tmp_path / "run"), "--engine", "ray"]
    environment = {**os.environ, "TMPDIR": str(long), "HOME": str(tmp_path)}
    environment.pop("RAY_AUTH_MODE", None)
    done = subprocess.run(
        [sys.executable, "-m", "prb", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / ".ray").exists()
    assert not list(Path("/tmp").glob("prb-ray-*"))
