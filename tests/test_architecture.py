"""The folder list is the architecture: imports point only up it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import prb

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


def test_the_way_from_a_file_to_a_table_is_at_most_fifteen_files_and_they_exist():
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    section = text.partition("## From a file to a table\n")[2].partition("\n## ")[0]
    paths = re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)
    assert 0 < len(paths) <= 15
    assert [path for path in paths if not (SOURCE / path).is_file()] == []


def test_every_public_name_can_be_imported():
    for name in prb.__all__:
        assert getattr(prb, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = prb.nonsense
