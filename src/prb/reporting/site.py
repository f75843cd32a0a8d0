"""`prb report`: finished runs as a static site that opens from disk. No server, no network, nothing to install.

A page is its script under `site/assets/` and its data: files `data/NAME.js`, each one call `prb.data("NAME", …)`,
because a page on disk may load scripts but not fetch. A page without data is left out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import orjson
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from prb import __version__
from prb.config import Name, OutputConfig, Place, PositionalWords, Rare, config
from prb.errors import BadInput
from prb.progress import SILENT, Progress
from prb.reporting.evaluation_results import Evaluation, evaluation_table, numbers_table
from prb.reporting.figures import FIGURES, Draw, load_matplotlib, of_summary
from prb.reporting.format import as_csv, markdown, without_folders
from prb.reporting.gather import DataFile, Inputs, gather, inside, is_under_way, read_any, read_partial
from prb.reporting.leaderboard import board_data, cost_data, describe, stability_data
from prb.reporting.pages import (
    audit_data,
    downstream_data,
    histories_data,
    model_data,
    other_data,
    pairs_data,
    study_data,
    users_data,
)
from prb.reporting.results import Run
from prb.runs import CONFIG, OUTCOMES, SUMMARY, draft
from prb.summary import CONDITIONS, Summary, short_name

Host = Literal["pages", "space"]
POLL = 2.0
"""Polling interval of `--watch`, in seconds."""
SHIPPED = files("prb.reporting") / "site"
MARKER = Path("data", "site.js")
"""Every report holds this file, and it begins with `prb.data("site",`: so a report is recognized."""
README, NO_JEKYLL = "README.md", ".nojekyll"
README_TEXT = """\
# {title}

A report of [Personalized RewardBench](index.html): does a reward model know whose preference it judges?
The numbers are also in [table.md](table.md) and [table.csv](table.csv).

{how}
Made by `prb report --publish {host}`, prb {version}.
"""
HOW: dict[Host, str] = {
    "pages": "GitHub Pages serves this folder as it is; there is nothing to build (`.nojekyll` says so).\n",
    "space": "A static Space serves this folder as it is: there is nothing to build and no server to run.\n",
}


@config
class ReportConfig(OutputConfig):
    """A static site from finished runs: leaderboard, models, pairs, comparison, downstream results; or a table."""

    verb: ClassVar[str] = "report"
    from_file: ClassVar[bool] = False

    runs: PositionalWords[Place]
    """Run folders of any verb; correlation.json, audit.json and agreement JSON, or their folders. Of an evaluation
    under way, what it has done so far."""
    out: Place | None = None
    """Folder of the site. Default: RUN/report. Only an earlier report is overwritten."""
    texts: bool = True
    """Include questions, answers, posts and replies of judges; without them the site holds ids and numbers only."""
    figures: Rare[bool] = False
    """Also write figures for papers, as SVG and PDF in figures/."""
    published: Rare[Name | None] = None
    """Also show published results about the dataset, marked as such: a YAML file, or `default` for those we ship."""
    models: Rare[Place | None] = None
    """YAML file with size, license, date, kind and link of models. Default: models.yaml beside the runs, if any."""
    publish: Host | None = None
    """Also write what a host needs: `pages` for GitHub Pages, `space` for a static Hugging Face Space."""
    watch: bool = False
    """Write the site again as lines arrive, until all runs are finished."""
    format: Literal["site", "markdown", "csv"] = "site"
    """`site` writes files; the others print to stdout: the tables of the commands, or (only evaluate runs) numbers."""


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
    Page("histories", "Inspect", "Histories", "Histories", histories_data, ("explore",)),
    Page("downstream", "Evidence", "Downstream", "Downstream", downstream_data),
    Page("study", "Evidence", "Study", "Human study", study_data),
    Page("audit", "Evidence", "Audit", "Audit", audit_data),
    Page("other", "Evidence", "Other", "Other results", other_data),
)
ENTRIES = {"assets", "data", "figures", "table.md", "table.csv", README, NO_JEKYLL}
ENTRIES |= {f"{page.name}.html" for page in PAGES}
"""All that a report consists of."""


def report(settings: ReportConfig, *, progress: Progress = SILENT) -> Path:
    """Write the site; the path of its `index.html`. With `watch`, again and again until all runs are finished."""
    if not settings.runs:
        raise BadInput("name at least one run folder")
    first = settings.runs[0]
    out = settings.out or inside(first if first.is_dir() else first.parent, "report")
    while True:
        sizes = _sizes(settings.runs)
        under_way = [run for run in settings.runs if is_under_way(run)]
        check_target(out)
        if settings.figures:
            load_matplotlib()
        parts = [read_partial(run) for run in under_way]
        for _, table in parts:
            progress.note(f"under way: {'; '.join(f'{model} {done}' for _, model, done, *_ in table.rows)} rows")
        inputs = gather(
            [run for run in settings.runs if run not in under_way],
            runs=[run for run, _ in parts if run is not None],
            notices=[table for _, table in parts],
            texts=settings.texts,
            published=settings.published,
            models=settings.models,
            progress=progress,
        )
        index = write_site(inputs, out, figures=settings.figures, publish=settings.publish, progress=progress)
        if not settings.watch or not under_way:
            return index
        while _sizes(settings.runs) == sizes:
            time.sleep(POLL)


def _sizes(runs: Sequence[Path]) -> list[tuple[int, int] | None]:
    files = [run / name for run in runs for name in (CONFIG, OUTCOMES, SUMMARY)]
    stats = [file.stat() if file.exists() else None for file in files]
    return [(stat.st_size, stat.st_mtime_ns) if stat else None for stat in stats]


def report_tables(settings: ReportConfig) -> str:
    """Tables in Markdown, or the numbers of evaluation runs as one CSV table."""
    runs = read_runs(settings)
    if settings.format == "markdown":
        return "\n".join(markdown(table) for run in runs for table in run.numbers())
    summaries = {}
    for place, run in zip(settings.runs, runs, strict=True):
        if not isinstance(run, Evaluation):
            raise BadInput(f"{place} is not a run of `prb evaluate`; only those can be written as CSV")
        summaries[str(place)] = run.typed
    return as_csv(numbers_table(summaries))


def read_runs(settings: ReportConfig) -> list[Run]:
    """The runs, for what is printed of them instead of a site."""
    if not settings.runs:
        raise BadInput("name at least one run folder")
    for name in ("published", "models", "publish", "watch"):
        if getattr(settings, name):
            raise BadInput(f"--{name} is for the site; tables and summaries hold results of runs only")
    return [read_any(place) for place in settings.runs]


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


def write_site(
    inputs: Inputs,
    out: Path,
    *,
    figures: bool = False,
    publish: Host | None = None,
    name: str | None = None,
    progress: Progress = SILENT,
) -> Path:
    """The whole site or nothing: it is built beside `out` and then takes its place. Returns its `index.html`."""
    target = out.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        check_target(out)
        with draft(target) as folder:
            write_pages(folder, inputs, progress)
            if figures:
                progress.begin("figures")
                write_figures(inputs, folder / "figures")
            if publish:
                write_host_files(folder, publish, name or title(inputs))
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror or error}") from None
    if publish and any(group.dataset for group in inputs.groups) and inputs.texts:
        progress.note("the site contains the texts of the dataset; --no-texts leaves them out")
    return out / "index.html"


def write_pages(folder: Path, inputs: Inputs, progress: Progress) -> None:
    """Scripts and style, the data of every page that has some, the pages, and the tables as files."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    (folder / "data").mkdir(parents=True)
    with as_file(SHIPPED / "assets") as assets:
        shutil.copytree(assets, folder / "assets")
    shipped = (folder / "assets" / "site.css").read_text("utf-8")
    added = [f".{c.name} {{ --c: light-dark({c.color}, {c.dark}); }}" for c in CONDITIONS.values()]
    style = "\n".join([shipped, *(rule for rule in added if f"{rule.split()[0]} {{" not in shipped)])
    (folder / "assets" / "site.css").write_text(style, "utf-8")
    if any(group.dataset for group in inputs.groups):
        import sklearn.linear_model  # noqa: F401 - what is loaded later would not be limited
    shown = []
    with threadpool_limits(1):  # matrices are small: threads would only wait for each other
        for page in PAGES:
            is_evidence = page.group == "Evidence"
            if page.name != "index" and not (inputs.others if is_evidence else inputs.groups):
                continue
            progress.begin(f"page {page.name}")
            empty = True
            for name, value in page.build(inputs):
                _write_data(folder, name, value)
                empty = False
            if not (is_evidence and empty):
                shown.append(page)
    datasets = [describe(group) for group in inputs.groups]
    _write_data(folder, "site", {"title": title(inputs), "version": __version__, "datasets": datasets})
    loader = PackageLoader("prb.reporting", "site/templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for page in shown:
        template = environment.get_template("index.html" if page.name == "index" else "page.html")
        text = template.render(
            page=page,
            groups={group: [p for p in shown if p.group == group] for group in dict.fromkeys(p.group for p in shown)},
            title=title(inputs),
            version=__version__,
            scripts=[f"assets/{name}.js" for name in (*page.helpers, page.name)],
            notices=inputs.notices,
            appendix=inputs.appendix,
            ratings=[evaluation_table(public(run.summary)) for run in inputs.ratings],
        )
        (folder / f"{page.name}.html").write_text(text, "utf-8")
    summaries = {run.folder.name: public(run.summary) for run in inputs.evaluations}
    (folder / "table.md").write_text("\n".join(markdown(evaluation_table(s)) for s in summaries.values()), "utf-8")
    (folder / "table.csv").write_text(as_csv(numbers_table(summaries)), "utf-8")


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
    contrasts = [replace(contrast, model=without_folders(contrast.model)) for contrast in summary.contrasts]
    dataset = replace(summary.dataset, name=short_name(summary.dataset.name))
    return replace(summary, dataset=dataset, results=results, contrasts=contrasts)


def title(inputs: Inputs) -> str:
    names = [run.folder.name for run in inputs.evaluations]
    more = f" + {len(names) - 3} more" if len(names) > 3 else ""
    return " + ".join(names[:3]) + more or "Personalized RewardBench"


def write_host_files(folder: Path, host: Host, title: str) -> None:
    """What GitHub Pages or a static Hugging Face Space needs beside the pages."""
    import yaml

    text = README_TEXT.format(title=title, how=HOW[host], host=host, version=__version__)
    if host == "space":
        metadata = {
            "title": title,
            "emoji": "⚖️",
            "colorFrom": "indigo",
            "colorTo": "purple",
            "sdk": "static",
            "app_file": "index.html",
            "pinned": False,
            "short_description": "Does a reward model know whose preference it judges?",
            "tags": ["leaderboard", "reward-model", "personalization"],
        }
        text = f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n\n{text}"
    (folder / README).write_text(text, "utf-8")
    (folder / NO_JEKYLL).write_bytes(b"")


def write_figures(inputs: Inputs, folder: Path) -> list[Path]:
    """All figures of the inputs as .svg and .pdf, named `ppo`, with several of a kind `ppo-brevity`, and with a number
    where that is not enough; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    figures: list[tuple[str, str, Draw]] = []  # kind, of what, how to draw it
    for group in inputs.groups:
        source = Path(group.about.name).stem
        figures += [(kind, source, draw) for kind, draw in of_summary(group.summary)]
    for kind, (_, name, draw) in FIGURES.items():
        figures += [(name, run.folder.name, partial(draw, run)) for run in inputs.others.get(kind, ())]
    kinds = [kind for kind, *_ in figures]
    written: list[Path] = []
    for kind, source, draw in figures:
        plain = "".join(c if c.isalnum() else "-" for c in source)
        name = kind if kinds.count(kind) == 1 else plain if plain.startswith(kind) else f"{kind}-{plain}"
        numbered, n = name, 1
        while folder / f"{numbered}.svg" in written:
            n += 1
            numbered = f"{name}-{n}"
        paths = [folder / f"{numbered}{suffix}" for suffix in (".svg", ".pdf")]
        draw(*paths)
        written += paths
    return written
