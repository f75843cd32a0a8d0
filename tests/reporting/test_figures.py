"""Figures for papers: one look that everybody can read on either paper, the same bytes each time."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.progress import SILENT
from prb.reporting.figures import SERIES, contrasts, drawing, write_figure_of
from prb.reporting.gather import gather, read_any
from prb.reporting.results import BestOfN
from prb.runs import read_json
from prb.summary import CONDITIONS
from prb.types import Failure, RewardModel
from tests.conftest import make_row, make_twins
from tests.reporting.results import EVIL, bon_run, correlation, svg_texts
from tests.reporting.sites import write_site
from tests.runs import by_length, names, settings

Write = Callable[..., Path]
SITE_CSS = Path(sys.modules["prb.reporting.figures"].__file__ or "").parent / "site" / "assets" / "site.css"


@pytest.fixture
def run(write_jsonl: Write, tmp_path: Path) -> Path:
    rows = [row for n in (1, 2, 3) for row in make_twins(n, tier="easy" if n == 1 else "hard")]
    rows += [make_row(9, category=EVIL), make_row(10)]
    models: dict[str, RewardModel] = {
        "length": ScriptedScorer(by_length),
        "$x_1$ & <b>": ScriptedScorer(lambda ask: len(ask.answer) * (1 if "b1" in str(ask.query.user) else -1)),
        "failing": ScriptedScorer(lambda _: Failure("busy")),
    }
    conditions = ("none", "profile", "shuffled", "oracle")
    folder = tmp_path / "evaluated"
    evaluate(settings(write_jsonl(rows), folder, model=tuple(models), condition=conditions), models=models)
    return folder


def test_every_dataset_has_its_figure_the_same_every_time(run: Path, tmp_path: Path) -> None:
    folders = [write_site([run], tmp_path / name, figures=True).parent / "figures" for name in ("one", "two")]
    assert [names(folder) for folder in folders] == [["gain-control-d0.svg"]] * 2
    first, second = (folder / "gain-control-d0.svg" for folder in folders)
    assert first.read_bytes() == second.read_bytes()


def test_names_are_text_and_nothing_else(run: Path, tmp_path: Path) -> None:
    (group,) = gather([run]).groups
    contrasts(group.summary, tmp_path / "l.svg")
    assert "$x_1$ & <b>" in svg_texts(tmp_path / "l.svg")
    assert (Xml.parse(tmp_path / "l.svg").getroot().get("aria-label") or "").startswith("Gain and control of ")
    assert not [node for node in Xml.parse(tmp_path / "l.svg").iter() if node.tag.endswith(("}b", "}script"))]


def test_verbs_leave_their_figure_in_their_folder(tmp_path: Path) -> None:
    bon = bon_run(tmp_path / "bon")
    for place in (bon, correlation(tmp_path / "c")):
        write_figure_of(read_any(place), SILENT)
    assert "Right on 3 of 4" in "\n".join(svg_texts(bon / "bon.svg"))
    assert (tmp_path / "c" / "scatter.svg").exists()


def test_a_run_without_a_usable_answer_still_has_its_figure(tmp_path: Path) -> None:
    summary = read_json(bon_run(tmp_path / "bon") / "summary.json")
    nothing = [{**point, "value": None, "low": None, "high": None} for point in summary["random"]]
    results = [{**result, "curve": nothing, "bend": None} for result in summary["results"]]
    changed = {**summary, "random": nothing, "oracle": nothing, "results": results}
    write_figure_of(BestOfN(tmp_path, changed), SILENT)
    assert (tmp_path / "bon.svg").exists()


def test_nothing_is_written_if_drawing_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), drawing(tmp_path / "x.svg", width=2, height=2, alt=""):
        _ = 1 / 0
    assert names(tmp_path) == []


# --- can everybody tell the colours apart? ---
# How deuteranopes and protanopes see linear RGB: Machado, Oliveira & Fernandes 2009, severity 1.
SEEN = {
    "by most": np.eye(3),
    "without green cones": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "without red cones": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}


def linear(colour: str) -> Any:
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: Any) -> Any:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    fx, fy, fz = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def contrast_of(a: str, b: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


CSS = SITE_CSS.read_text("utf-8")
LIGHT, DARK, BY_SYSTEM = (
    dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root[^{]*\{([^}]*)\}", CSS)[:3]
)
"""The colors of the site by name: the light ones, and the dark ones as chosen and as the system says."""


@pytest.mark.parametrize("eye", SEEN)
@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_colours_of_lines_can_be_told_apart(eye: str, palette: dict[str, str]) -> None:
    seen = {c: lab(SEEN[eye] @ linear(c)) for c in (palette[f"s{n}"] for n in range(len(SERIES)))}
    nearest = min((float(np.linalg.norm(seen[a] - seen[b])), a, b) for a, b in combinations(seen, 2))
    assert nearest[0] > 12, nearest


def test_the_site_and_the_figures_have_one_palette_that_stands_out_from_its_paper() -> None:
    assert DARK == BY_SYSTEM
    assert [LIGHT[f"s{n}"] for n in range(len(SERIES))] == list(SERIES)
    lines = [(LIGHT[f"s{n}"], DARK[f"s{n}"]) for n in range(len(SERIES))]
    for light, dark in [*((c.color, c.dark) for c in CONDITIONS.values()), *lines]:
        assert contrast_of(light, LIGHT["card"]) >= 3, light
        assert contrast_of(dark, DARK["card"]) >= 3, dark
