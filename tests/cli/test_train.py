"""`prb train` as a newcomer meets it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Prb
from tests.training.synthetic import rows_of_twelve


@pytest.fixture
def data(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(rows_of_twelve())


def test_its_help_lists_the_methods_with_what_they_are_and_without_one_nothing_is_trained(prb: Prb) -> None:
    assert prb("train")[::2] == (
        2, "prb: the following arguments are required: METHOD; see `prb train --help`\n"
    )  # fmt: skip
    said = prb("train", "--help")
    assert said.code == 0
    for name in ("light", "bt", "bilinear", "vpl", "reward-model", "dpo"):
        assert name in said.out


def test_the_line_it_ends_with_evaluates_what_was_trained(prb: Prb, data: Path, tmp_path: Path) -> None:
    said = prb("train", "light", "--dataset", data, "--out", tmp_path / "head")
    assert said.code == 0
    assert "light: fitted on" in said.out
    *_, last = said.out.strip().splitlines()
    words = shlex.split(last.removeprefix("evaluate: prb "))
    assert words[words.index("--dataset") + 1] == str(data)
    settings = ("--split", "train", "--trained", "count", "--out", tmp_path / "run")
    evaluated = prb(*words, *settings, "--json")
    assert evaluated.code == 0
    assert {row["model"] for row in evaluated.json["results"]} == {"random", f"personal?path={tmp_path / 'head'}"}


def test_json_is_the_card_and_nothing_else(prb: Prb, data: Path, tmp_path: Path) -> None:
    said = prb("train", "light", "--dataset", data, "--out", tmp_path / "head", "--json", "--quiet")
    assert said.json["fitted_on"]["users"] + said.json["validation"]["users"] == 12
    assert said.err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("lihgt",), "did you mean 'light'"),
        (("light?rnak=3",), "rnak"),
        (("bilinear?rank=-3",), "rank='-3'"),
        (("light", "--features", "statics"), "did you mean 'static'"),
        (("light", "--dataset", "nowhere.jsonl"), "nowhere.jsonl"),
        (("light", "--split", "test"), "cannot be tested"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    prb: Prb, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    out = tmp_path / "head"
    said = prb("train", *words, "--out", out)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert "Traceback" not in said.err
    assert not (out / "weights.safetensors").exists()
