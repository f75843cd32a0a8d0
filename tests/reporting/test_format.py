"""Numbers as text, and how Markdown, CSV, LaTeX and terminals of any width carry a table."""

from __future__ import annotations

import csv
import io
import os
import re

import pytest
from rich.cells import cell_len

from prb.reporting.format import (
    Table,
    as_csv,
    bounds,
    interval,
    layout,
    markdown,
    number,
    p_equals,
    p_value,
    percent,
    points,
    say,
    show,
    stars,
    without_folders,
)

WIDTHS = (40, 60, 80, 100, 120, 200)
SHARE = {"value": 0.633, "low": 0.57, "high": 0.692}
UNKNOWN = {"value": None, "low": None, "high": None}
SIGNED = {"value": 0.1234, "low": -0.2, "high": 0.5}


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (percent(0.6334), "63.3"),
        (percent(1.0), "100.0"),
        (percent(None), "–"),
        (number(None), "–"),
        (interval(SHARE), "63.3 [57.0, 69.2]"),
        (interval({**UNKNOWN, "value": 0.633}), "63.3"),
        (interval(UNKNOWN), "–"),
        (interval(None), "–"),
        (interval(SIGNED, 2, scale=1, sign=True), "+0.12 [-0.20, +0.50]"),
        (bounds(SIGNED, sign=True), "[-20.0, +50.0]"),
        (bounds(UNKNOWN), "–"),
        (points({"value": 0.133, "p_holm": 0.0005}), "+13.3***"),
        (points({"value": -0.02, "p_holm": 0.03}), "-2.0*"),
        (points({"value": 0.1, "p_holm": None}), "+10.0"),
        (points(UNKNOWN), "–"),
        (points(None), "–"),
        (p_equals(0.0004), "p < 0.001"),
        (p_equals(0.0234), "p = 0.023"),
        # ties are rounded away from zero, as on the site
        (number(0.0625, scale=100, sign=True), "+6.3"),
        (number(-0.0625, scale=100, sign=True), "-6.3"),
        (number(0.0635, scale=100, sign=True), "+6.3"),
        (number(0, scale=100, sign=True), "+0.0"),
    ],
)
def test_numbers_as_text(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("p", "star", "text"),
    [
        (0.0009, "***", "<0.001"),
        (0.001, "**", "0.001"),
        (0.0099, "**", "0.010"),
        (0.01, "*", "0.010"),
        (0.05, "", "0.050"),
        (None, "", "–"),
    ],
)
def test_stars_and_p_values(p: float | None, star: str, text: str) -> None:
    assert (stars(p), p_value(p)) == (star, text)


def test_markdown_and_csv_cells_cannot_break_the_table() -> None:
    awkward = Table("Title", ("model", "none"), (("a|b*c", "50.0*"), ('say "hi", you', "–")), ("A note.",))
    head = ["Title", "", "| model | none |", "| --- | ---: |"]
    rows = ["| a\\|b\\*c | 50.0\\* |", '| say "hi", you | – |']
    assert markdown(awkward).splitlines() == [*head, *rows, "", "A note."]
    assert list(csv.reader(io.StringIO(as_csv(awkward)))) == [list(awkward.columns), *map(list, awkward.rows)]


# --- terminals ---
def leaderboard_of(names: list[str], conditions: int = 3) -> Table:
    """Cells that differ from each other, so that one that is lost is missed."""
    rows = []
    for r, name in enumerate(names):
        cells = [f"{10 * r + c}.{c} [{10 * r + c - 1}.1, {10 * r + c + 1}.9]" for c in range(conditions)]
        rows.append((name, *cells, f"+{r}.5***", "<0.001", f"{1000 + r}"))
    heads = ("none", "profile", "plan", "shuffled", "oracle")[:conditions]
    return Table("Title", ("model", *heads, "person effect", "p (Holm)", "failed"), tuple(rows), ("A note.",))


NAMES = ["random", "embedding?encoder=minilm&k=10", "personal?path=/a/long/path/" + "x" * 50, "模型" * 20]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("conditions", [1, 3, 5])
def test_every_number_is_shown_whole_at_every_width(width: int, conditions: int) -> None:
    table = leaderboard_of(NAMES, conditions)
    lines = layout(table, width)
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    shown = re.findall(r"\[[^\]]*\]|\S+", text)
    for row in table.rows:
        for cell in row[1:]:
            for part in re.findall(r"\[[^\]]*\]|\S+", cell):
                assert part in shown, (part, width)
    for name in NAMES:
        pieces = [line.split("  ")[0].strip() for line in lines]
        assert name in "".join(pieces)  # wrapped at most, never shortened


def test_what_gives_way_first() -> None:
    table = leaderboard_of(["random", "embedding?encoder=minilm"])
    natural = max(map(len, layout(table, None)))
    assert layout(table, natural) == layout(table, None)
    blocks = [len([line for line in layout(table, natural - n) if line.startswith("model")]) for n in (10, 11)]
    assert blocks == [1, 2]  # first names are wrapped, then columns go below


def test_texts_are_wrapped_at_words() -> None:
    table = Table("T", ("name", "what"), (("a", "Floor: a number drawn by hash of question and answer."),))
    assert layout(table, 30)[2:] == ["a     Floor: a number drawn by", "      hash of question and", "      answer."]


def test_a_pipe_gets_natural_lines_whatever_the_environment_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table = leaderboard_of(NAMES[:3], 5)._replace(title="t" * 150 + " end", notes=("[/] a note " * 20,))
    show(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [table.title, "", *layout(table, None), "", table.notes[0]]
    assert [line for line in layout(table, None) if line != line.rstrip()] == []
    assert max(map(len, lines)) > 150


def test_a_terminal_gets_lines_that_fit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((50, 20)))
    show(leaderboard_of(NAMES)._replace(title="words " * 30))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(cell_len, plain.splitlines())) <= 50
    say("unbroken " * 20, "", "x")
    assert set(capsys.readouterr().out.split()) == {"unbroken", "x"}


def test_cells_that_look_like_markup_or_escapes_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    show(Table("A [bold]title[/bold]", ("model", "none"), (("[red]m[/red]\x1b[2J\n", "x" * 150),), ("[/] note",)))
    out = capsys.readouterr().out
    for part in ("A [bold]title[/bold]", "[red]m[/red] [2J", "x" * 150, "[/] note"):
        assert part in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("scores?path=/home/ada/runs/x.jsonl&model=m", "scores?path=x.jsonl&model=m"),
        ("/tmp/runs/set.jsonl cannot be read", "set.jsonl cannot be read"),
        ("~/data/set.jsonl has changed", "set.jsonl has changed"),
        ("../data/set.jsonl", "set.jsonl"),
        ("hub:owner/name", "hub:owner/name"),
        ("judge?llm=openai/gpt-5", "judge?llm=openai/gpt-5"),
        ("classifier?url=http://localhost:8000/v1/score", "classifier?url=http://localhost:8000/v1/score"),
    ],
)
def test_places_of_this_machine_become_file_names(text: str, public: str) -> None:
    assert without_folders(text) == public
