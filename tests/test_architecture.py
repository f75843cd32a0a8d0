"""The folder list is the architecture: imports point only up it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

import prb
from prb.cli import run
from prb.runs import write_lines
from tests.conftest import make_twins

SOURCE = Path(prb.__file__).parent
ORDER = """stats text data engine llm models grading evaluation building training downstream serving study reporting
    cli""".split()  # noqa: SIM905 - reads as the list in CONTRIBUTING.md does
ROOF = {"api"}
"""Modules above all packages but `cli`."""
FLOOR = {path.stem for path in SOURCE.glob("*.py")} - ROOF | {"prompts"}


def imported(path: Path) -> set[str]:
    """Every module that a file imports, function bodies included."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def packages(names: set[str]) -> set[str]:
    """Second parts of every `prb.x`."""
    return {name.split(".")[1] for name in names if name.startswith("prb.")}


@pytest.mark.parametrize("package", ORDER)
def test_imports_point_up_the_list(package):
    allowed = FLOOR | set(ORDER[: ORDER.index(package) + 1]) | (ROOF if package == "cli" else set())
    for path in (SOURCE / package).rglob("*.py"):
        assert packages(imported(path)) <= allowed, path


def test_every_folder_has_its_place_in_the_list():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders - {"prompts"} <= set(ORDER)


def test_the_floor_stands_on_nothing():
    for path in SOURCE.glob("*.py"):
        if not path.name.startswith("__") and path.stem not in ROOF:
            assert packages(imported(path)) <= FLOOR, path


def test_statistics_touch_no_files_and_no_torch():
    for path in (SOURCE / "stats").rglob("*.py"):
        assert not {name.split(".")[0] for name in imported(path)} & {"torch", "pathlib", "os", "io"}, path
        assert not re.search(r"\bopen\(", path.read_text("utf-8")), path


def test_help_loads_nothing_heavy():
    code = "import sys; from prb.cli import run; run(['--help']); print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert not loaded & {"torch", "numpy", "scipy", "pydantic", "pyarrow", "transformers", "rich"}


def test_source_files_stay_readable():
    long = {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text("utf-8").splitlines())) > 700}
    assert not long


def test_the_way_from_a_file_to_a_table_is_at_most_fifteen_files_and_names_all_that_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    section = text.partition("## From a file to a table\n")[2].partition("\n## ")[0]
    way = re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)
    assert 0 < len(way) <= 15
    named = set(re.findall(r"`([a-z_/]+\.py)`", section))
    assert [path for path in named if not (SOURCE / path).is_file()] == []
    called: set[str] = set()

    def follow(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            called.add(str(path.relative_to(SOURCE)))

    monkeypatch.chdir(tmp_path)
    write_lines(Path("rows.jsonl"), [row for n in (1, 2, 3) for row in make_twins(n)])
    words = ["evaluate", "rows.jsonl", "--model", "lexical", "--quiet", "--out"]
    assert run([*words, "imports"]) == 0  # the first run imports modules, which calls decorators all over the package
    sys.setprofile(follow)
    try:
        assert run([*words, "run"]) == 0
    finally:
        sys.setprofile(None)
    assert set(way) <= called
    assert called - named - {"__init__.py"} == set()


def test_every_public_name_can_be_imported():
    for name in prb.__all__:
        assert getattr(prb, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = prb.nonsense
