"""Results that somebody edited: every reader uses them or refuses them in one line, never with a traceback."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest

import prb
from prb.errors import BadInput, PrbError
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.reporting.site import ReportConfig, report_tables
from tests.conftest import make_row
from tests.reporting.results import agreement, audit, bon_run, correlation, ppo_run
from tests.reporting.sites import make_run, rows, write_site
from tests.runs import by_length, settings

EDITS = 15
"""Per kind of result; a longer run is one number away."""
VALUES = (None, "x", "", -1, 3, 0.5, 1e308, 2**62, True, [], {}, [1], {"a": 1}, [None], "9" * 50)
FILES = {
    "evaluate": ("summary.json", "config.json", "users.json", "outcomes.jsonl"),
    "ratings": ("summary.json", "config.json", "users.json"),
    "bon": ("summary.json", "config.json"),
    "ppo": ("summary.json",),
    "correlation": ("correlation.json",),
    "audit": ("audit.json",),
    "agreement.json": ("",),
}


def write(path: Path, content: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in content))
    return path


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    make_run(write(folder / "rows.jsonl", rows()), folder / "evaluate")
    rated = [make_row(n, answer="x" * n, rating=n / 20, chosen=None, rejected=None) for n in range(1, 9)]
    config = settings(write(folder / "rated.jsonl", rated), folder / "ratings", task="ratings", condition=("none",))
    evaluate(config, models={"mine": ScriptedScorer(by_length)})
    bon_run(folder / "made").rename(folder / "bon")
    ppo_run(folder / "ppo")
    correlation(folder / "correlation")
    audit(folder / "audit")
    agreement(folder / "agreement.json")
    return folder


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in parts:
        yield (*at, key)
        yield from places(value, (*at, key))


def edited(content: Any, draw: random.Random) -> Any:
    """With one value replaced or removed."""
    content = deepcopy(content)
    *path, last = draw.choice(list(places(content)))
    part = content
    for key in path:
        part = part[key]
    if draw.random() < 1 / 3:
        del part[last]
    else:
        part[last] = draw.choice(VALUES)
    return content


def edit(file: Path, draw: random.Random) -> None:
    if file.suffix == ".jsonl":
        lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        place = draw.randrange(len(lines))
        lines[place] = edited(lines[place], draw)
        write(file, [{k: v for k, v in line.items() if k != "crc"} for line in lines])
    else:
        content = {k: v for k, v in orjson.loads(file.read_bytes()).items() if k not in ("digest", "digests")}
        file.write_bytes(orjson.dumps(edited(content, draw)))


def readers(place: Path, out: Path) -> list[Callable[[], Any]]:
    def show() -> None:
        run = prb.open_run(place)
        assert str(run)
        run.frame()

    uses: list[Callable[[], Any]] = [
        lambda: report_tables(ReportConfig(runs=(place,), format="markdown")),
        lambda: write_site([place], out / "site"),
    ]
    if place.is_dir():
        uses.append(show)
    if place.name in ("evaluate", "ratings"):
        uses += [lambda to=to: prb.export(place, to=to, out=out / to, quiet=True) for to in ("csv", "every-eval-ever")]
    return uses


@pytest.mark.parametrize("kind", FILES)
def test_an_edited_result_is_used_or_refused_in_one_line(kind: str, originals: Path, tmp_path: Path) -> None:
    draw = random.Random(kind)
    refusals = []
    for _ in range(EDITS):
        place = tmp_path / kind
        if place.is_dir():
            shutil.rmtree(place)
        shutil.copytree(originals / kind, place) if "." not in kind else shutil.copy(originals / kind, place)
        if (place / "config.json").exists():  # without digests, as runs will be written
            config = orjson.loads((place / "config.json").read_bytes())
            kept = {k: v for k, v in config.items() if k not in ("digest", "digests")}
            (place / "config.json").write_bytes(orjson.dumps(kept))
        name = draw.choice(FILES[kind])
        edit(place / name if name else place, draw)
        for use in readers(place, tmp_path):
            try:
                use()
            except PrbError as error:
                refusals.append(str(error))
    assert refusals
    assert not any("\n" in reason for reason in refusals)


def test_a_link_in_a_run_folder_is_not_followed_when_writing(originals: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(originals / "evaluate", tmp_path / "run"))
    (tmp_path / "elsewhere").mkdir()
    for name, write in (("report", lambda: prb.report(runs=[place])), ("export", lambda: prb.export(place, to="csv"))):
        (place / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(BadInput, match=f"{name} is a link to another folder"):
            write()
    assert list((tmp_path / "elsewhere").iterdir()) == []
