"""Without an optional dependency, what needs it says so in one line; everything else works."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prb.errors import EXTRAS

BLOCKED = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # importing it fails, as if it were not installed
from prb.cli import run
sys.exit(run(sys.argv[2:]))
"""
URL = "base_url=http://localhost:1/v1"


@pytest.mark.parametrize(
    ("words", "modules", "extra"),
    [
        (("evaluate", "--model", "likelihood?lm=WEIGHTS"), "torch,transformers", "torch"),
        pytest.param(
            ("evaluate", "--model", "classifier?path=WEIGHTS"), "torch,transformers", "torch", marks=pytest.mark.slow
        ),
        pytest.param(
            ("evaluate", "--model", "classifier?path=WEIGHTS", "--protocol", "paper"),
            "torch,transformers",
            "torch",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("evaluate", "--model", "embedding?encoder=minilm%3Fpath=WEIGHTS"),
            "torch,transformers",
            "torch",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("evaluate", "--model", "judge?llm=transformers/WEIGHTS"),
            "torch,transformers",
            "torch",
            marks=pytest.mark.slow,
        ),
        (("evaluate", "--model", "judge?llm=llamacpp/WEIGHTS/x.gguf"), "xllamacpp", "llamacpp"),
        (("evaluate", "--model", f"judge?llm=openai/m;{URL}"), "httpx2", "api"),
        (("evaluate", "--dataset", "hub:a/b"), "datasets,huggingface_hub", "hub"),
        pytest.param(("train", "vpl"), "torch,transformers", "torch", marks=pytest.mark.slow),
        (("train", "reward-model", "--base", "WEIGHTS"), "trl", "train"),
        pytest.param(("train", "dpo", "--base", "WEIGHTS"), "peft", "train", marks=pytest.mark.slow),
        (("ppo", "--policy", "transformers/x", "--model", "length"), "torch,transformers,trl", "torch"),
        (("ppo", "--policy", "transformers/x", "--model", "length", "--engine", "verl"), "torch", "torch"),
        (("evaluate", "--model", "classifier?url=http://localhost:1"), "httpx2", "api"),
        (("serve", "--model", "length"), "fastapi,uvicorn", "serve"),
        (("study", "demo"), "sqlalchemy,fastapi", "study"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:40],
)
def test_a_missing_extra_is_named_in_one_line(words: tuple[str, ...], modules: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    for name in ("config.json", "x.gguf"):
        (tmp_path / "weights" / name).write_text("{}")
    given = [word.replace("WEIGHTS", str(tmp_path / "weights")) for word in words]
    command = [sys.executable, "-c", BLOCKED, modules, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert f"pip install 'personalized-rewardbench[{extra}]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_the_readme_lists_every_extra_once_and_all_has_them_all() -> None:
    root = Path(__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    table = re.findall(r"^\| (`[a-z`, ]+`) \|", (root / "README.md").read_text("utf-8"), re.M)
    assert sorted(re.findall(r"`(\w+)`", " ".join(table))) == sorted({*extras} - {"dev"})
    (everything,) = extras["all"]
    assert sorted(re.findall(r"\w+", everything.partition("[")[2])) == sorted({*extras} - {"all", "dev"})
    assert set(EXTRAS.values()) <= {*extras}
