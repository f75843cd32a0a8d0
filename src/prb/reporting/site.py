"""`prb report`: finished runs as a static site that opens from disk. No server, no network, nothing to install.

A page is its script under `site/assets/` and its data: files `data/NAME.js`, each one call `prb.data("NAME", …)`,
because a page on disk may load scripts but not fetch. A page without data is left out.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from prb import __version__
from prb.config import OutputConfig, Place, PositionalWords, Rare, config
from prb.errors import BadInput
from prb.progress import SILENT, Progress
from prb.reporting.evaluation_results import evaluation_table, numbers_table
from prb.reporting.figures import contrasts, load_matplotlib
from prb.reporting.format import as_csv, distinct, markdown, without_folders
from prb.reporting.gather import DataFile, Inputs, gather, inside
from prb.reporting.leaderboard import board_data, cost_data, describe, stability_data
from prb.reporting.pages import evidence_data, model_data, pairs_data, users_data
from prb.runs import draft
from prb.summary import CONDITIONS, Summary, short_name

SHIPPED = files("prb.reporting") / "site"
MARKER = Path("data", "site.js")
"""Every report holds this file, and it begins with `prb.data("site",`: so a report is recognized."""
README, NO_JEKYLL = "README.md", ".nojekyll"
"""What hosts read: the metadata of a static Hugging Face Space, and that GitHub Pages has nothing to build."""
README_TEXT = """\
---
title: {title}
emoji: ⚖️
colorFrom: indigo
colorTo: purple
sdk: static
app_file: index.html
short_description: Does a reward model know whose preference it judges?
tags: [leaderboard, reward-model, personalization]
---

A [report](index.html) of Personalized RewardBench: does a reward model know whose preference it judges?
The numbers are also in [table.md](table.md) and [table.csv](table.csv). Made by `prb report`, prb {version}.
"""


@config
class ReportConfig(OutputConfig):
    """A static site from finished runs: leaderboard, models, pairs, comparison, downstream results; or a table."""

    runs: PositionalWords[Place]
    """Run folders of any verb; correlation.json, audit.json and agreement JSON, or their folders. Of an evaluation
    under way, what it has done so far."""
    out: Place | None = None
    """Folder of the site. Default: RUN/report. Only an earlier report is overwritten."""
    texts: bool = True
    """Include questions, answers, posts and replies of judges; without them the site holds ids and numbers only."""
    figures: Rare[bool] = False
    """Also draw gain and control for papers, as SVG in figures/."""
    format: Literal["site", "markdown"] = "site"
    """`site` writes files; `markdown` prints the tables of the commands to stdout."""


class Page(NamedTuple):
    name: str
    """Of the file and the script."""
    group: Literal["Results", "Inspect", "Evidence"]
    """Of tabs in the top bar; evidence is what other verbs found."""
    short: str
    """In the top bar."""
    title: str
    build: Callable[[Inputs], Iterable[DataFile]]
    """The data files of the page, built one after the other."""
    helpers: tuple[str, ...] = ("results",)
    """Further scripts under `assets/`, loaded before the page's own."""


PAGES = (
    Page("index", "Results", "Leaderboard", "Leaderboard", board_data),
    Page("compare", "Results", "Compare", "Two models", lambda _: (), ()),
    Page("cost", "Results", "Cost", "Cost and quality", cost_data),
    Page("stability", "Results", "Stability", "Stability of the ranking", stability_data),
    Page("model", "Inspect", "Models", "One model", model_data),
    Page("users", "Inspect", "Users", "Users", users_data),
    Page("pairs", "Inspect", "Pairs", "Pair explorer", pairs_data, ("texts", "explore")),
    Page("downstream", "Evidence", "Downstream", "Downstream", partial(evidence_data, "downstream")),
    Page("study", "Evidence", "Study", "Human study", partial(evidence_data, "study")),
    Page("audit", "Evidence", "Audit", "Audit", partial(evidence_data, "audit")),
    Page("other", "Evidence", "Other", "Other results", partial(evidence_data, "other")),
)
ENTRIES = {"assets", "data", "figures", "table.md", "table.csv", README, NO_JEKYLL}
ENTRIES |= {f"{page.name}.html" for page in PAGES}
"""All that a report consists of."""


def report(config: ReportConfig, *, progress: Progress = SILENT) -> Path:
    """Write a static site from finished runs and return the path of its first page."""
    if not config.runs:
        raise BadInput("name at least one run folder")
    first = config.runs[0]
    out = config.out or inside(first if first.is_dir() else first.parent, "report")
    check_target(out)
    if config.figures:
        load_matplotlib()
    inputs = gather(config.runs, texts=config.texts, progress=progress)
    return write_site(inputs, out, figures=config.figures, progress=progress)


def check_target(out: Path) -> None:
    """A site is written to a new or empty folder, or replaces a report that holds nothing else."""
    if not out.exists():
        return
    if not out.is_dir():
        raise BadInput(f"{out} is a file; choose another --out")
    names = {path.name for path in out.iterdir()}
    marker = out / MARKER
    if names and not (marker.is_file() and marker.read_bytes().startswith(b'prb.data("site",')):
        raise BadInput(f"{out} is not empty and not a report; choose another --out")
    if others := sorted(names - ENTRIES):
        shown = ", ".join(others[:3])
        raise BadInput(f"{out} also holds {shown}, which a new report would delete; choose another --out")


def write_site(inputs: Inputs, out: Path, *, figures: bool = False, progress: Progress = SILENT) -> Path:
    """The whole site or nothing: it is built beside `out` and then takes its place. Returns its `index.html`."""
    check_target(out)
    with draft(out.resolve()) as folder:
        write_pages(folder, inputs, progress)
        if figures:  # gain and control of every dataset; other verbs leave their figures in their own folders
            progress.begin("figures")
            for group in inputs.groups:
                if any(contrast.value is not None for contrast in group.summary.contrasts):
                    contrasts(group.summary, folder / "figures" / f"gain-control-{group.id}.svg")
    return out / "index.html"


def write_pages(folder: Path, inputs: Inputs, progress: Progress) -> None:
    """Scripts and style, the data of every page that has some, the pages, and the tables as files."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    (folder / "data").mkdir(parents=True)
    with as_file(SHIPPED / "assets") as assets:
        shutil.copytree(assets, folder / "assets")
    colors = [f".{c.name} {{ --c: light-dark({c.color}, {c.dark}); }}\n" for c in CONDITIONS.values()]
    style = folder / "assets" / "site.css"
    style.write_text("".join([*colors, style.read_text("utf-8")]), "utf-8")
    if any(group.dataset for group in inputs.groups):
        import sklearn.linear_model  # noqa: F401 - what is loaded later would not be limited
    shown = []
    with threadpool_limits(1):  # matrices are small: threads would only wait for each other
        for page in PAGES:
            is_evidence = page.group == "Evidence"
            if page.name != "index" and not (inputs.others if is_evidence else inputs.groups):
                continue
            if not is_evidence:
                progress.begin(f"page {page.name}")
            empty = True
            for name, value in page.build(inputs):
                if is_evidence and empty:  # of those without data there is no page
                    progress.begin(f"page {page.name}")
                _write_data(folder, name, value)
                empty = False
            if not (is_evidence and empty):
                shown.append(page)
    of_groups = [entry.run for group in inputs.groups for entry in group.entries]
    runs = {run.folder: run for run in (*of_groups, *inputs.ratings)}.values()
    names = distinct([run.folder.name for run in runs])
    summaries = {name: public(run.summary) for name, run in zip(names, runs, strict=True)}
    more = f" + {len(names) - 3} more" if len(names) > 3 else ""
    title = " + ".join(names[:3]) + more or "Personalized RewardBench"
    datasets = [describe(group) for group in inputs.groups]
    _write_data(folder, "site", {"title": title, "version": __version__, "datasets": datasets})
    loader = PackageLoader("prb.reporting", "site/templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for page in shown:
        template = environment.get_template("index.html" if page.name == "index" else "page.html")
        text = template.render(
            page=page,
            groups={group: [p for p in shown if p.group == group] for group in dict.fromkeys(p.group for p in shown)},
            title=title,
            version=__version__,
            scripts=[f"assets/{name}.js" for name in (*page.helpers, page.name)],
            notices=inputs.notices,
            appendix=inputs.appendix,
            ratings=[evaluation_table(public(run.summary)) for run in inputs.ratings],
        )
        (folder / f"{page.name}.html").write_text(text, "utf-8")
    (folder / "table.md").write_text("\n".join(markdown(evaluation_table(s)) for s in summaries.values()), "utf-8")
    (folder / "table.csv").write_text(as_csv(numbers_table(summaries)), "utf-8")
    about = {"title": orjson.dumps(title).decode(), "version": __version__}  # JSON is YAML, whatever the name
    (folder / README).write_text(README_TEXT.format(**about), "utf-8")
    (folder / NO_JEKYLL).write_bytes(b"")


def _write_data(folder: Path, name: str, value: Any) -> None:
    path = folder / "data" / f"{name}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"prb.data(" + script_json(name) + b"," + script_json(value) + b");\n")


def script_json(value: Any) -> bytes:
    """JSON that is safe inside a script: it can open or close no tag, end no line and change no prototype."""
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    for raw, safe in ((b"<", b"\\u003c"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029")):
        text = text.replace(raw, safe)
    return text.replace(b'"__proto__":', b'["__proto__"]:')  # inside a string its quotes would be escaped


def public(summary: Summary) -> Summary:
    """With the names of files instead of their places on this machine."""
    results = [replace(result, model=without_folders(result.model)) for result in summary.results]
    contrasts = [dataclasses.replace(contrast, model=without_folders(contrast.model)) for contrast in summary.contrasts]
    dataset = replace(summary.dataset, name=short_name(summary.dataset.name))
    return replace(summary, dataset=dataset, results=results, contrasts=contrasts)
