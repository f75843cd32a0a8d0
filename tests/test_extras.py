"""Without an optional dependency, what needs it says so in one line; with it, it works in a process that imported
nothing else. `make test-oldest` runs this file with the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import prb
from prb.errors import EXTRAS
from tests.conftest import make_row
from tests.llm import server, tiny

BLOCKED = """
import json, os, sys
import prb.api, prb.cli.parse, prb.data.load, prb.evaluation.run
from prb.cli import run
for modules, words, folder in json.load(sys.stdin):  # each in a child that has imported no optional dependency
    if not os.fork():
        for name in modules.split(","):
            assert name not in sys.modules
            sys.modules[name] = None  # importing it fails, as if it were not installed
        os.chdir(folder)
        os.dup2(os.open("stderr", os.O_CREAT | os.O_WRONLY), 2)
        code = run(words)
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
URL = "base_url=http://localhost:1/v1"


TORCH = "torch,transformers"
MISSING = (
    ("evaluate --model likelihood?lm=WEIGHTS", TORCH, "torch"),
    ("evaluate --model classifier?path=WEIGHTS", TORCH, "torch"),
    ("evaluate --model classifier?path=WEIGHTS --protocol paper", TORCH, "torch"),
    ("evaluate --model judge?llm=transformers/WEIGHTS", TORCH, "torch"),
    ("evaluate --model judge?llm=llamacpp/WEIGHTS/x.gguf", "xllamacpp", "llamacpp"),
    (f"evaluate --model judge?llm=openai/m?{URL}", "httpx2", "api"),
    ("evaluate --dataset hub:a/b", "datasets,huggingface_hub", "hub"),
    ("train vpl", TORCH, "torch"),
    ("train reward-model --base WEIGHTS", "trl", "train"),
    ("ppo --policy transformers/x --model length", f"{TORCH},trl", "torch"),
    ("ppo --policy transformers/x --model length --engine verl", "torch", "torch"),
    ("evaluate --model classifier?url=http://localhost:1", "httpx2", "api"),
    ("serve --model length", "fastapi,uvicorn", "serve"),
    ("study demo", "sqlalchemy,fastapi", "study"),
)


def test_a_missing_extra_is_named_in_one_line(tmp_path):
    cases = []
    for n, (words, modules, _) in enumerate(MISSING):
        weights = tmp_path / str(n) / "weights"
        weights.mkdir(parents=True)
        for name in ("config.json", "x.gguf"):
            (weights / name).write_text("{}")
        cases.append((modules, words.replace("WEIGHTS", str(weights)).split(), str(weights.parent)))
    command = [sys.executable, "-c", BLOCKED]
    done = subprocess.run(command, input=orjson.dumps(cases), capture_output=True, check=False)
    assert done.stdout.decode().split() == ["2"] * len(MISSING), done.stderr.decode()
    for n, (words, _, extra) in enumerate(MISSING):
        said = (tmp_path / str(n) / "stderr").read_text("utf-8")
        assert f"pip install 'personalized-rewardbench[{extra}]'" in said, (words, said)
        assert "Traceback" not in said, (words, said)
        assert not list((tmp_path / str(n)).glob("runs/*")), words


REVISION = "b" * 40


def write_rows(folder: Path) -> None:
    """Three rows as a file, and as `huggingface_hub` leaves a dataset in its cache."""
    repo = folder / "hf" / "hub" / "datasets--owner--name"
    for path in (repo / "snapshots" / REVISION, repo / "refs"):
        path.mkdir(parents=True)
    rows = b"".join(orjson.dumps(make_row(n), option=orjson.OPT_APPEND_NEWLINE) for n in range(3))
    for path in (folder / "rows.jsonl", repo / "snapshots" / REVISION / "test.jsonl"):
        path.write_bytes(rows)
    (repo / "refs" / "main").write_text(REVISION)


def fresh(words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(("-c", words) if words.startswith("import ") else ("-m", "prb", *words.split()))]
    given = {
        **os.environ,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PRB_CACHE": str(folder / "cache"),
        **environment,
    }
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=given)


BON = "bon --dataset rows.jsonl --n 2 --max-tokens 4 --model length --limit 2 --out bon --policy"


@pytest.mark.parametrize(
    ("module", "words", "output"),
    [
        ("datasets", "evaluate --dataset hub:owner/name --model length", "3 pairs"),
        ("datasets", "evaluate --dataset hub:owner/missing", "is not in the local cache"),
        ("torch", f"{BON} transformers/tiny --model likelihood?lm=tiny", "likelihood?lm=tiny"),
        # at 0, since versions before 2026.10 refuse a reply that has part of a character
        ("xllamacpp", f"{BON} llamacpp/tiny.gguf --temperature 0", "llamacpp/tiny.gguf"),
        ("httpx2", f"{BON} openai/m?base_url=http://127.0.0.1:PORT/v1", "openai/m"),
        ("httpx2", "evaluate --model classifier?url=http://127.0.0.1:1", "cannot be reached"),
        pytest.param(
            "trl",
            "train reward-model --base tiny --limit 4 --validation 0",
            "train-reward-model",
            marks=pytest.mark.slow,  # importing it takes ten seconds; `make test-oldest` and `make test-slow` do
        ),
        ("matplotlib", "report run --figures", "index.html"),
        ("pandas", "import prb; print(prb.open_run('run').frame())", "length"),
    ],
    ids=lambda value: value[:60],
)
def test_each_optional_dependency_works_in_a_process_of_its_own(module, words, output, tmp_path):
    pytest.importorskip(module)
    write_rows(tmp_path)
    if "tiny.gguf" in words:
        tiny.gguf(tmp_path / "tiny.gguf")
    elif "tiny" in words:
        tiny.llama(tmp_path / "tiny", positions=4096)
    elif module in ("matplotlib", "pandas"):
        prb.evaluate(model="length", dataset=str(tmp_path / "rows.jsonl"), limit=2, out=tmp_path / "run")
    with server.serve(lambda _: server.says("Tea.")) as endpoint:
        done = fresh(words.replace("PORT", str(endpoint.port)), tmp_path, OPENAI_API_KEY="none")
    assert output in done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    assert done.returncode == {"is not in the local cache": 2, "cannot be reached": 1}.get(output, 0)


def test_the_readme_lists_every_extra_once_and_all_has_them_all():
    root = Path(__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    table = re.findall(r"^\| (`[a-z`, ]+`) \|", (root / "README.md").read_text("utf-8"), re.M)
    assert sorted(re.findall(r"`(\w+)`", " ".join(table))) == sorted({*extras} - {"dev"})
    (everything,) = extras["all"]
    assert sorted(re.findall(r"\w+", everything.partition("[")[2])) == sorted({*extras} - {"all", "dev"})
    assert set(EXTRAS.values()) <= {*extras}


def needed(project: dict[str, Any], extras: Sequence[str]) -> dict[str, list[Requirement]]:
    """All requirements by package, directly or through others, as the packages that are installed here state them."""
    by_package: dict[str, list[Requirement]] = {}
    own = canonicalize_name(project["name"])
    open_: list[tuple[Requirement, tuple[str, ...]]] = [(Requirement(f"{own}[{','.join(extras)}]"), ("",))]
    seen = set()
    while open_:
        requirement, wanted_by = open_.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in wanted_by):
            continue
        by_package.setdefault(name, []).append(requirement)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        wanted = tuple(requirement.extras) or ("",)
        if name == own:
            stated = [
                *project["dependencies"],
                *(line for each in wanted if each for line in project["optional-dependencies"][each]),
            ]
        else:
            stated = metadata.requires(name) or []
        open_ += [(Requirement(line), wanted) for line in stated]
    return {name: requirements for name, requirements in by_package.items() if name != own}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python need a few packages more or less")
def test_constraints_name_every_package_of_development_exactly():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    try:
        requirements = needed(project, ["dev", "torch"])
    except metadata.PackageNotFoundError as missing:
        pytest.skip(f"the environment is older than pyproject.toml: {missing}")
    lines = [line for line in (root / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    advice = "make constraints"
    unpinned = [
        name for name in requirements if name not in pinned and not name.startswith(("nvidia-", "cuda-", "triton"))
    ]
    assert unpinned == [], advice  # but for those that only a torch for GPUs needs
    assert sorted(pinned.keys() - requirements.keys() - {"pip", "setuptools"}) == [], advice
    for name, stated in requirements.items():
        assert all(each.specifier.contains(pinned[name], prereleases=True) for each in stated), f"{name}: {advice}"
    assert pinned["torch"] == "2.13.0"
