"""`prb correlate`."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from prb.cli.parse import parse
from prb.downstream.correlate import CorrelateConfig
from tests.cli.conftest import Prb
from tests.runs import names
from tests.stats.test_ranking import BON


@pytest.fixture
def six(tmp_path: Path) -> Path:
    lines = [f"m{n},{-n},{-place}" for n, place in enumerate(BON)]
    (tmp_path / "six.csv").write_text("\n".join(["model,bench,bon", *lines]), "utf-8")
    return tmp_path / "six.csv"


def test_a_table_of_two_columns_needs_nothing_else(prb: Prb, six: Path) -> None:
    said = prb("correlate", six)
    assert said.code == 0
    for text in ("Spearman's ρ", "0.257", "NDCG", "0.918", "0.658", "does not predict bon sign", "31 models would be"):
        assert text in said.out
    assert "testing" in said.err


def test_json_is_the_result_and_nothing_else(prb: Prb, six: Path) -> None:
    found = prb("correlate", six, "--json", "--quiet", "--measure", "spearman").json
    assert found["sets"][0]["correlations"][0]["p"] == pytest.approx(0.658, abs=5e-4)
    assert found["sentences"][0].startswith("With 6 models, bench does not predict bon")


def test_files_are_written_where_asked_for(prb: Prb, six: Path, tmp_path: Path) -> None:
    said = prb("correlate", six, "--out", tmp_path / "out", "--quiet", "--measure", "ndcg", "spearman")
    assert (said.code, said.err) == (0, "")
    assert names(tmp_path / "out") == ["correlation.json", "scatter.svg", "table.md", "table.tex"]
    assert "NDCG 0.92" in (tmp_path / "out" / "table.md").read_text("utf-8")
    assert "bench & bon &" in (tmp_path / "out" / "table.tex").read_text("utf-8")
    again = orjson.loads((tmp_path / "out" / "correlation.json").read_bytes())
    assert [c["measure"] for c in again["sets"][0]["correlations"]] == ["ndcg", "spearman"]


def test_without_matplotlib_the_rest_is_written(
    prb: Prb, six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = prb("correlate", six, "--out", tmp_path / "out", "--measure", "rbo")
    assert (said.code, "no scatter.svg" in said.err) == (0, True)
    assert names(tmp_path / "out") == ["correlation.json", "table.md", "table.tex"]


def test_bad_input_ends_with_one_line_and_writes_nothing(prb: Prb, tmp_path: Path) -> None:
    (tmp_path / "same.csv").write_text("model,x,y\na,1,1\nb,1,2\nc,1,3\n", "utf-8")
    for words, says in (
        ((tmp_path / "same.csv",), "column 'x' is the same for all 3 models"),
        ((tmp_path / "nowhere.csv",), "does not exist"),
        ((), "give a table, or run folders"),
        (("--bench", tmp_path, "--downstream", tmp_path), "is not a run"),
    ):
        said = prb("correlate", *words, "--out", tmp_path / "out")
        assert (said.code, said.out) == (2, "")
        assert says in said.err
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("x", "utf-8")
    (tmp_path / "ok.csv").write_text("model,x,y\na,1,1\nb,2,2\nc,3,3\n", "utf-8")
    said = prb("correlate", tmp_path / "ok.csv", "--out", tmp_path / "file", "--quiet", "--measure", "rbo")
    assert (said.code, "cannot be written to" in said.err) == (2, True)


def test_flags_take_several_values_and_may_be_repeated(prb: Prb, six: Path, tmp_path: Path) -> None:
    found = prb("correlate", six, "--json", "--quiet", "--measure", "rbo", "spearman", "--measure", "ndcg").json
    assert [c["measure"] for c in found["sets"][0]["correlations"]] == ["rbo", "spearman", "ndcg"]
    for folders in (("--bench", "a", "b"), ("--bench", "a", "--bench", "b")):
        config = parse(CorrelateConfig, [*folders, "--downstream", "c", "--quiet"], "correlate")
        assert (config.bench, config.downstream, config.constructed) == (("a", "b"), ("c",), ("noisy*",))


def test_a_table_after_a_flag_is_told_where_it_belongs(prb: Prb, six: Path) -> None:
    said = prb("correlate", "--bench", "bench", "--downstream", "bon", six)
    assert (said.code, f"a table comes first: prb correlate {six}" in said.err) == (2, True)
