from __future__ import annotations

import sys

import pytest

from prb import progress
from prb.progress import Bar, Lines, Tally, watch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_lines_begin_with_what_is_to_be_done(capsys):
    Lines().begin("scoring", total=10, done=4)
    Lines().begin("reading")
    captured = capsys.readouterr()
    assert captured.err == "scoring: 4 of 10\nreading\n"
    assert captured.out == ""


def test_lines_speak_only_now_and_then(clock, capsys):
    lines = Lines(every=10)
    lines.begin("scoring", total=9)
    capsys.readouterr()
    for second in range(30):
        clock.now = 100.0 + second
        lines.advance(2 if second == 0 else 0)
    assert capsys.readouterr().err == "scoring: 2 of 9\n" * 2


def test_a_bar_keeps_stdout_clean_and_prints_notes_as_they_are(capsys):
    bar = Bar()
    bar.advance()
    bar.begin("scoring", total=3)
    bar.advance(2)
    bar.begin("again", total=2, done=1)
    bar.note("[bold]12 of 13[/bold]")
    bar.stop()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "[bold]12 of 13[/bold]" in captured.err


@pytest.mark.parametrize(
    ("quiet", "terminal", "kind"), [(True, True, "Silent"), (False, False, "Lines"), (False, True, "Bar")]
)
def test_the_kind_of_progress_follows_the_terminal(quiet, terminal, kind, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with watch(quiet) as shown:
        assert type(shown).__name__ == kind


def test_a_bar_is_taken_down_when_the_work_fails(monkeypatch):
    stopped: list[Bar] = []

    def stop(self: Bar) -> None:
        stopped.append(self)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Bar, "stop", stop)
    with pytest.raises(ValueError, match="broken"), watch():
        raise ValueError("broken")
    assert len(stopped) == 1


def test_a_tally_shows_failures_and_cost_once_there_are_some(clock, capsys):
    lines = Lines(every=1)
    lines.begin("judge", total=9)
    tally = Tally(lines)
    for failures, costs in (([None], [0.0]), ([None, "busy"], [0.25, 0.5])):
        clock.now += 1
        tally.add(failures, costs)
        lines.advance(len(failures))
    assert capsys.readouterr().err.splitlines()[1:] == ["judge: 1 of 9", "judge: 3 of 9, 0.5/s, 1 failed, $0.7500"]
