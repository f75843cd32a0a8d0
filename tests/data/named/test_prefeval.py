"""PrefEval: the published layout, with rows written here by hand and with the real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.source import open_source
from prb.errors import BadInput
from tests.data.named.reading import Row, read

BASE: Row = {"preference": "I eat no meat.", "question": "Dinner?", "explanation": "Steak comes to mind."}
OPTIONS: Row = {**BASE, "classification_task_options": ["Lentils.", "Steak.", "Ham.", "Fish."]}
PERSONA: Row = {**BASE, "persona": "a nurse", "conversation": {"0": {"user": "No meat for me.", "assistant": "Noted."}}}
CHOICE: Row = {
    **BASE,
    "conversation": {"query": "Lunch?", "assistant_options": "1. Tofu\n2. Ham", "user_selection": "The first."},
}


def publish(folder: Path, **changes: Any) -> Path:
    files = {
        "mcq_options/food.json": [OPTIONS, {**OPTIONS, **changes.get("options", {})}],
        "mcq_options/food copy.json": [OPTIONS],
        "explicit_preference/food.json": [BASE, BASE],
        "implicit_preference/persona-driven/food.json": [PERSONA, {**PERSONA, **changes.get("persona", {})}],
        "implicit_preference/choice-based/food.json": [CHOICE, {**CHOICE, **changes.get("choice", {})}],
    }
    for name, rows in files.items():
        path = folder / "benchmark_dataset" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(rows))
    return folder


@pytest.mark.parametrize(
    ("form", "posts"),
    [
        ("persona", ["No meat for me."]),
        ("choice", ["Lunch?\n\n1. Tofu\n2. Ham\n\nThe first."]),
        ("explicit", ["I eat no meat."]),
    ],
)
def test_the_form_decides_how_the_user_is_known(tmp_path, form, posts) -> None:
    row, other = read(f"prefeval?path={publish(tmp_path)}&form={form}")
    assert [post["text"] for post in row["profile"]] == posts
    assert (row["id"], row["category"], other["id"]) == ("food-1", "food", "food-2")
    assert (row["chosen"], row["rejected"]) == ("Lentils.", ["Steak.", "Ham.", "Fish."])
    assert (row["rubric_aspects"][0]["aspect"], row["narrative"]) == ("I eat no meat.", "I eat no meat.")


def test_a_folder_without_the_lists_is_refused(tmp_path) -> None:
    with pytest.raises(BadInput, match="mcq_options does not exist"):
        open_source(f"prefeval?path={tmp_path}")
