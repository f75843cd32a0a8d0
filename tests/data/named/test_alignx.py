"""Files in AlignX's format, written here by hand: its rows may not be copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.data.named.reading import Row, read

ROW: Row = {
    "prompt": "A post?",
    "chosen": "A kind comment.",
    "rejected": "A rude comment.",
    "Preference Direction": [0.5] * 90,
    "Demographic Information": "A nurse who likes dogs.",
    "User-Generated Content": [{"prompt": "Another post", "comment": "My comment.", "Preference Direction": [1] * 90}],
    "Pair-wise Comparative Feedback": [{"prompt": "A third post", "chosen": "Good.", "rejected": "Bad."}],
}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(*rows: Any) -> str:
        (tmp_path / "AlignX.json").write_bytes(orjson.dumps(list(rows)))
        return f"alignx?path={tmp_path / 'AlignX.json'}"

    return write


def test_a_row_brings_its_user_along(write) -> None:
    row, other = read(write(ROW, {**ROW, "User-Generated Content": [], "Pair-wise Comparative Feedback": []}))
    assert (row["id"], row["user"], row["question"]) == ("AlignX-1", "AlignX-1", "A post?")
    assert (row["chosen"], row["rejected"]) == ("A kind comment.", "A rude comment.")
    assert [post["text"] for post in row["profile"]] == ["A nurse who likes dogs.", "Another post\n\nMy comment."]
    assert row["choices"] == [{"question": "A third post", "chosen": "Good.", "rejected": "Bad."}]
    assert (len(other["profile"]), other.get("choices")) == (1, None)
    assert "Preference Direction" not in row
