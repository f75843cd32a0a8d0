"""Code of others: what plug-ins print and get wrong, and files of strangers that must not run any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput, PrbError
from prb.evaluation.config import EvaluateConfig
from prb.models import MODELS
from prb.registry import names_code
from prb.runs import CONFIG
from prb.types import Failure, Verdict
from prb.work import ask_model

CHATTY = """
print("on import")
class Chatty:
    fingerprint = "chatty"
    def __init__(self):
        print("when made")
    def score(self, asks):
        print("while scoring")
        return [len(ask.answer) for ask in asks]
"""


def test_what_a_plug_in_prints_does_not_spoil_the_json(prb: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CHATTY)
    done = prb("evaluate", "--model", f"{tmp_path}/mine.py:Chatty", "--limit", "4", "--out", tmp_path / "run", "--json")
    assert isinstance(done.json, dict)
    assert [words in done.err for words in ("on import", "when made", "while scoring")] == [True] * 3


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("['high' for _ in asks]", "Mine.score must return numbers or Failure(reason), not 'high'"),
        ("[10**400 for _ in asks]", "Mine.score must return numbers or Failure(reason), not 1000"),
        ("[True for _ in asks]", "Mine.score must return numbers or Failure(reason), not True"),
        ("[1.0]", "Mine.score returned 1 results for 8 inputs; it must return one for each"),
        ("None", "Mine.score failed: TypeError: 'NoneType' object is not iterable"),
        ("(_ for _ in ()).throw(RuntimeError('no weights'))", "Mine.score failed: RuntimeError: no weights (mine.py"),
        ("[1 / 0 for _ in asks]", "Mine.score failed: ZeroDivisionError: division by zero (mine.py, line 4)"),
    ],
)
def test_a_mistake_of_a_plug_in_is_one_line_that_names_its_class(
    code: str, message: str, prb: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        f"class Mine:\n    fingerprint = 'm'\n    def score(self, asks):\n        return {code}\n"
    )
    words = ("--limit", "4", "--condition", "profile", "--out", tmp_path / "run", "--quiet")
    done = prb("evaluate", "--model", f"{tmp_path}/mine.py:Mine", *words)
    assert done.code == 1
    assert done.err.startswith(f"prb: {message}")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("verdict", ["first", "A", 1, None, True, 0.5, Verdict(choice="A")])  # type: ignore[arg-type]
def test_a_wrong_verdict_is_refused(verdict: Any) -> None:
    class Mine:
        def prefer(self, duels: list[int]) -> list[Any]:
            return [verdict for _ in duels]

    with pytest.raises(PrbError, match=r"Mine.prefer must return Verdict\(choice='first'"):
        ask_model(Mine(), "prefer", [1, 2])


def test_scalars_of_other_libraries_are_numbers() -> None:
    import numpy as np

    class Mine:
        def score(self, asks: list[int]) -> Any:
            return [np.float32(0.5), 2, np.array(3.0), Failure("none")]

    assert ask_model(Mine(), "score", [1, 2, 3, 4]) == [0.5, 2.0, 3.0, Failure("none")]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("mine.py:X", True),
        ("hidden?lm=x&trust_remote_code=true", True),
        ("panel?models=a|(evil.py:X?y=1)", True),
        ("noisy?model=(classifier?path=x&trust_remote_code=1)", True),
        ("hidden?lm=x&trust_remote_code=false", False),
        ("judge?llm=(openai/gpt-5?concurrency=32)", False),
        ("length", False),
    ],
)
def test_a_spec_that_runs_code_is_recognized_however_it_is_written(spec: str, code: bool) -> None:
    assert names_code(spec) is code


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"method": "x/method.py:X"}, "would run code"),
        ({"features": "hidden?lm=smollm2&trust_remote_code=true"}, "would run code"),
        ({"features": None}, "features is missing"),
        ({"adapter": "../elsewhere"}, "must be a folder beside it"),
        ({"adapter": "/etc"}, "must be a folder beside it"),
        ({"features": "hidden?lm=nobody/has-this-model"}, "not on this machine"),
    ],
)
def test_a_strangers_head_runs_no_code_reads_no_other_folder_and_downloads_nothing(
    change: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prb.models.personal import EMBEDDED

    for file in (EMBEDDED / "smollm2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    (tmp_path / "method.py").write_text("raise SystemExit('it ran')")
    card = json.loads((tmp_path / "card.json").read_bytes()) | change
    (tmp_path / "card.json").write_text(json.dumps(card))
    with pytest.raises(BadInput, match=why):
        MODELS.make(f"personal?path={tmp_path}")


@pytest.mark.parametrize("name", ["out", "engine", "hook"])
def test_a_config_of_somebody_else_says_neither_where_to_write_nor_what_to_run(
    name: str, prb: Any, tmp_path: Path
) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"evaluate": {"limit": 2, name: str(tmp_path / "elsewhere")}}))
    done = prb("evaluate", "--config", tmp_path)
    assert (done.code, done.err) == (2, f"prb: {name} cannot come from a file; on the command line it is --{name}\n")
    with pytest.raises(BadInput, match="cannot come from a file"):  # as `prb merge` reads shards
        EvaluateConfig.restore({"evaluate": {name: "x"}})


def test_code_in_a_config_must_be_named_by_the_user(prb: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CHATTY)
    spec = f"{tmp_path}/mine.py:Chatty"
    (tmp_path / CONFIG).write_text(json.dumps({"evaluate": {"model": [spec], "limit": 2}}))
    refused = prb("evaluate", "--config", tmp_path, "--out", tmp_path / "run")
    assert (refused.code, "names code" in refused.err, "on import" in refused.err) == (2, True, False)
    assert prb("evaluate", "--config", tmp_path, "--model", spec, "--out", tmp_path / "run", "--quiet").code == 0
