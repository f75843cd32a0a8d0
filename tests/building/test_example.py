"""The walk-through in `examples/build`: its output is what the command makes of its log, without a server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prb.cli import run

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_is_made_again_from_its_replies_to_the_byte(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("httpx2", reason="needs the api extra")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    shown = (ROOT / "examples" / "build" / "README.md").read_text().split("```sh\n")[1].split("```")[0]
    words = shown.replace("\\\n", " ").replace('"', "").split()
    assert run([*words[1:], "--quiet"]) == 0
    assert "6 rows of 6 users (4 mirror rows)" in capsys.readouterr().out
    for name in ("pairs.jsonl", "rejects.jsonl", "gates.jsonl", "card.json", "replies.jsonl", "hub/README.md"):
        made, kept = tmp_path / "examples/build/out" / name, ROOT / "examples/build/out" / name
        assert made.read_bytes() == kept.read_bytes(), name
