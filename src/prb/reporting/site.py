"""`prb report`: finished runs as a static site that opens from disk. No server, no network, nothing to install.

A page is a template, its script under `site/assets/` and its data: files `data/NAME.js`, each one call
`prb.data("NAME", …)`, because a page on disk may load scripts but not fetch. A page whose `build` finds nothing in what
was given is left out of the site and of the top bar.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import orjson

from prb import __version__
from prb.errors import BadInput
from prb.progress import SILENT, Progress
from prb.reporting import board, evidence, pairs, person
from prb.reporting.figures import write_figures
from prb.reporting.format import as_csv, markdown
from prb.reporting.gather import Given, gather
from prb.reporting.tables import leaderboard

DataFile = tuple[str, Any]
"""Name without suffix, such as `d0/board`, and what it holds."""
SHIPPED = files("prb.reporting") / "site"


@dataclass(frozen=True)
class Page:
    name: str
    """Of the file, the template and the script."""
    short: str
    """In the top bar."""
    title: str
    build: Callable[[Given], Iterable[DataFile] | None]
    """The page's data files, made one after the other; `None` if nothing for it was given."""
    helpers: tuple[str, ...] = ()
    """Further scripts under `assets/`, loaded before its own."""


def _of_pairs(build: Callable[[Given], Iterable[DataFile]]) -> Callable[[Given], Iterable[DataFile] | None]:
    """A page that is there if an evaluation on pairs was given."""
    return lambda given: build(given) if given.groups else None


PAGES = (
    Page("index", "Leaderboard", "Leaderboard", board.build),
    Page("model", "Models", "One model", _of_pairs(person.build)),
    Page("pairs", "Pairs", "Pair explorer", _of_pairs(pairs.build), ("diff", "explore")),
    Page("compare", "Compare", "Two models", _of_pairs(lambda _: ())),
    Page("downstream", "Downstream", "Downstream", evidence.downstream_page, ("evidence",)),
    Page("study", "Study", "What people say", evidence.study_page, ("evidence",)),
    Page("audit", "Audit", "What needs the person?", evidence.audit_page, ("evidence",)),
)


def write_site(
    places: Sequence[Path], out: Path, *, texts: bool = True, figures: bool = False, progress: Progress = SILENT
) -> Path:
    """All of the site or nothing: it is drawn up beside `out` and then takes its place. Returns `index.html`."""
    check_place(out)
    given = gather(places, texts=texts, progress=progress)
    draft = out.resolve().with_name(f".{out.resolve().name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _fill(draft, given, progress)
        if figures:
            progress.begin("figures")
            write_figures(given, draft / "figures")
        _swap(draft, out)
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out / "index.html"


def _swap(draft: Path, out: Path) -> None:
    old = draft.with_suffix(".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    draft.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def check_place(out: Path) -> None:
    """A site is only written where nothing is, or over a report."""
    if not out.exists():
        return
    if not out.is_dir():
        raise BadInput(f"{out} is a file; choose another --out")
    names = {path.name for path in out.iterdir()}
    ours = (out / "data" / "site.js").exists() or names <= {"index.html", "table.md", "table.csv"}
    if not ours:
        raise BadInput(f"{out} holds other things than a report; choose another --out")


def _fill(folder: Path, given: Given, progress: Progress) -> None:
    (folder / "data").mkdir(parents=True)
    with as_file(SHIPPED / "assets") as assets:
        shutil.copytree(assets, folder / "assets")
    shown = []
    for page in PAGES:
        made = page.build(given)
        if made is not None:
            progress.begin(f"page {page.name}")
            shown.append(page)
            for name, value in made:
                write_data(folder, name, value)
    write_data(folder, "site", describe(given))
    for page in shown:
        (folder / f"{page.name}.html").write_text(render(page, shown, given), "utf-8")
    tables = [leaderboard(run.summary) for run in given.evaluations]
    (folder / "table.md").write_text("\n".join(markdown(table) for table in tables), "utf-8")
    (folder / "table.csv").write_text("\n".join(as_csv(table) for table in tables), "utf-8")


def write_data(folder: Path, name: str, value: Any) -> None:
    path = folder / "data" / f"{name}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"prb.data(" + script_json(name) + b"," + script_json(value) + b");\n")


def script_json(value: Any) -> bytes:
    """JSON that stays a value wherever a script may stand: no tag can open or close, no line can end."""
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    for raw, safe in ((b"<", b"\\u003c"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029")):
        text = text.replace(raw, safe)
    return text


def render(page: Page, pages: Sequence[Page], given: Given) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("prb.reporting", "site/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template(f"{page.name}.html")
    return template.render(
        page=page,
        pages=pages,
        title=title(given),
        version=__version__,
        scripts=[f"assets/{name}.js" for name in (*page.helpers, page.name)],
        ratings=[leaderboard(run.summary) for run in given.ratings],
    )


def title(given: Given) -> str:
    names = [run.folder.name for run in given.evaluations]
    return " + ".join(names[:3]) + (f" + {len(names) - 3} more" if len(names) > 3 else "") or "Personalized RewardBench"


def describe(given: Given) -> Mapping[str, Any]:
    """`data/site.js`: what every page knows."""
    return {
        "title": title(given),
        "version": __version__,
        "datasets": [board.describe(group) for group in given.groups],
    }
