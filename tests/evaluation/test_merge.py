"""Shards, merged, are the run that one process would have made; what is not all shards of one run is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

import prb
from prb.data.load import Shard, deal
from prb.errors import BadInput, RunConflict
from prb.evaluation.outcomes import read_outcomes
from prb.evaluation.run import evaluate
from prb.progress import SILENT
from prb.reporting.gather import dataset_of, read_run
from tests.conftest import make_row, make_twins
from tests.runs import names, same_files, settings

ROWS = [row for n in range(1, 12) for row in (*make_twins(n), make_row(20 + n))]
MODELS = ("lexical", "random")


@pytest.fixture
def data(write_jsonl):
    return write_jsonl(ROWS)


def run(data: Path, out: Path, shard: str | None = None, **changes: Any) -> Path:
    evaluate(settings(data, out, model=MODELS, shard=shard, **changes))
    return out


@pytest.mark.parametrize("total", [1, 2, 5])
def test_merged_shards_are_the_unsharded_run(total, data, tmp_path):
    whole = run(data, tmp_path / "whole")
    shards = [run(data, tmp_path / f"s{n}", f"{n}/{total}") for n in range(total, 0, -1)]
    merged = prb.merge(shards, out=tmp_path / "merged")
    assert same_files(whole, merged.folder)
    assert names(whole) == names(merged.folder)
    a, b = (orjson.loads((folder / "config.json").read_bytes()) for folder in (whole, merged.folder))
    assert a == b
    assert prb.merge(shards, out=tmp_path / "merged").summary == merged.summary
    assert run(data, merged.folder) == merged.folder  # a finished run like any other


def test_clusters_and_twins_stay_whole_and_donors_come_from_all_rows(data, tmp_path):
    shards = [run(data, tmp_path / f"s{n}", f"{n}/3") for n in (1, 2, 3)]
    lines = [
        [orjson.loads(line) for line in (folder / "outcomes.jsonl").read_bytes().splitlines()] for folder in shards
    ]
    clusters = [{line["cluster"] for line in part} for part in lines]
    assert sum(map(len, clusters)) == len(set().union(*clusters))
    assert max(map(len, clusters)) - min(map(len, clusters)) <= 2
    own = {line["user"] for line in lines[0]}
    lent = {
        post.rpartition("-")[0] for line in lines[0] if line["condition"] == "shuffled" for post in line["post_ids"]
    }
    assert not lent <= own


def test_what_is_not_all_shards_of_one_run_is_refused(data, tmp_path):
    one, two = (run(data, tmp_path / f"s{n}", f"{n}/3") for n in (1, 2))
    with pytest.raises(BadInput, match="missing shards: 3/3"):
        prb.merge([one, two])
    with pytest.raises(BadInput, match="both shard 1/3"):
        prb.merge([one, shutil.copytree(one, tmp_path / "copy"), two])
    with pytest.raises(RunConflict, match=r"evaluate\.k: 5 → 4"):
        prb.merge([one, run(data, tmp_path / "other", "2/3", k=4)])
    with pytest.raises(RunConflict, match="shards: 3 → 4"):
        prb.merge([one, run(data, tmp_path / "fourth", "2/4")])
    with pytest.raises(BadInput, match="made without --shard"):
        prb.merge([one, run(data, tmp_path / "whole")])
    (two / "summary.json").unlink()
    with pytest.raises(BadInput, match="is not finished"):
        prb.merge([one, two])
    assert not (tmp_path / "runs").exists()


def test_shards_are_counted_from_one_and_need_enough_users(data, tmp_path):
    for text in ("0/3", "4/3", "1", "a/b", "1/0"):
        with pytest.raises(BadInput, match="shard must be i/n such as 3/8"):
            run(data, tmp_path / "out", text)
    with pytest.raises(BadInput, match="22 independent users cannot be split into 99 shards"):
        run(data, tmp_path / "out", "1/99")
    with pytest.raises(BadInput, match="protocol paper"):
        run(data, tmp_path / "out", "1/2", protocol="paper")


def test_parts_differ_by_no_more_than_the_largest_cluster():
    clusters = [f"c{n % 7}" for n in range(100)]
    parts = deal(clusters, 3)
    sizes = [parts.count(n) for n in range(3)]
    assert max(sizes) - min(sizes) <= 15
    assert parts == deal(clusters, 3)
    assert sorted(row for n in (1, 2, 3) for row in Shard(n, 3).rows(clusters)) == list(range(100))


def test_a_shard_is_reported_with_the_texts_of_its_own_rows(data, tmp_path):
    shard = run(data, tmp_path / "s1", "1/3")
    pairs = read_outcomes(shard).pairs
    dataset, missing = dataset_of([read_run(shard)], pairs, SILENT)
    assert (missing, dataset and [item.id for item in dataset]) == ("", pairs)
