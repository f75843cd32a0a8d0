"""`prb report`: finished runs as a static site that opens from disk. No server, no network, nothing to install.

A page is a template, its script under `site/assets/` and its data: files `data/NAME.js`, each one call
`prb.data("NAME", …)`, because a page on disk may load scripts but not fetch. A page without data is left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from filelock import FileLock
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from prb import __version__
from prb.config import Name, OutputConfig, Place, PositionalWords, Rare, config
from prb.downstream.correlate import short_name
from prb.errors import BadInput
from prb.progress import SILENT, Progress
from prb.reporting.downstream import best_of_n, ppo_figure, scatter
from prb.reporting.evaluation_results import evaluation_table, numbers_table
from prb.reporting.figures import Draw, audit, load_matplotlib, of_summary
from prb.reporting.format import Table, as_csv, markdown, without_folders
from prb.reporting.gather import (
    DataFile,
    Inputs,
    gather,
    inside,
    is_under_way,
    read_any,
    read_partial,
    rebuild_while_growing,
    result_name,
    tables_of,
)
from prb.reporting.pages.leaderboard import board_data, cost_data, describe, stability_data
from prb.reporting.pages.models import histories_data, model_data, users_data
from prb.reporting.pages.pairs import pairs_data
from prb.reporting.pages.verbs import audit_data, downstream_data, other_data, study_data
from prb.runs import draft
from prb.summary import CONDITIONS, Summary

Host = Literal["pages", "space"]
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


POLL = 2.0
"""Seconds between looks at runs that are watched."""


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


@dataclass(frozen=True)
class Page:
    name: str
    """Of the file, the template and the script."""
    group: Literal["Results", "Inspect", "Evidence"]
    """Of tabs in the top bar."""
    short: str
    """In the top bar."""
    title: str
    build: Callable[[Inputs], Iterable[DataFile] | None]
    """The data files of the page, built one after the other; `None` if there is nothing to show."""
    helpers: tuple[str, ...] = ()
    """Further scripts under `assets/`, loaded before the page's own."""


def _with_pairs(build: Callable[[Inputs], Iterable[DataFile]]) -> Callable[[Inputs], Iterable[DataFile] | None]:
    """A page that needs an evaluation on pairs."""
    return lambda inputs: build(inputs) if inputs.groups else None


PAGES = (
    Page("index", "Results", "Leaderboard", "Leaderboard", board_data, ("results",)),
    Page("compare", "Results", "Compare", "Two models", _with_pairs(lambda _: ())),
    Page("cost", "Results", "Cost", "Cost and quality", _with_pairs(cost_data), ("results",)),
    Page("stability", "Results", "Stability", "Stability of the ranking", _with_pairs(stability_data), ("results",)),
    Page("model", "Inspect", "Models", "One model", _with_pairs(model_data), ("results",)),
    Page("users", "Inspect", "Users", "Users", _with_pairs(users_data), ("results",)),
    Page("pairs", "Inspect", "Pairs", "Pair explorer", _with_pairs(pairs_data), ("texts", "explore")),
    Page("histories", "Inspect", "Histories", "Histories", _with_pairs(histories_data), ("explore",)),
    Page("downstream", "Evidence", "Downstream", "Downstream", downstream_data, ("results",)),
    Page("study", "Evidence", "Study", "Human study", study_data, ("results",)),
    Page("audit", "Evidence", "Audit", "Audit", audit_data, ("results",)),
    Page("other", "Evidence", "Other", "Other results", other_data, ("results",)),
)
ENTRIES = {"assets", "data", "figures", "table.md", "table.csv", README, NO_JEKYLL}
ENTRIES |= {f"{page.name}.html" for page in PAGES}
"""All that a report consists of."""


def report(settings: ReportConfig, *, progress: Progress = SILENT) -> Path:
    """Write the site; the path of its `index.html`. With `watch`, when all runs are finished."""
    if not settings.runs:
        raise BadInput("name at least one run folder")
    first = settings.runs[0]
    out = settings.out or inside(first if first.is_dir() else first.parent, "report")

    def build() -> Path:
        under_way = [run for run in settings.runs if is_under_way(run)]
        parts = [read_partial(run) for run in under_way]
        for _, table in parts:
            progress.note(f"under way: {'; '.join(f'{model} {done}' for _, model, done, *_ in table.rows)} rows")
        inputs = partial(
            gather,
            [run for run in settings.runs if run not in under_way],
            runs=[run for run, _ in parts if run is not None],
            notices=[table for _, table in parts],
            texts=settings.texts,
            published=settings.published,
            models=settings.models,
        )
        return write_inputs(inputs, out, figures=settings.figures, publish=settings.publish, progress=progress)

    return rebuild_while_growing(settings.runs, build, every=POLL) if settings.watch else build()


def report_tables(settings: ReportConfig) -> str:
    """Tables in Markdown, or the numbers of evaluation runs as one CSV table."""
    results = list(zip(settings.runs, _results(settings), strict=True))
    tables: list[Table] = []
    for place, (kind, content) in results:
        if settings.format == "markdown":
            tables += tables_of(kind, content)
        elif kind != "evaluate":
            raise BadInput(f"{place} is not a run of `prb evaluate`; only those can be written as CSV")
    if settings.format == "markdown":
        return "\n".join(map(markdown, tables))
    return as_csv(numbers_table({str(place): content for place, (_, content) in results}))


def report_summaries(settings: ReportConfig) -> list[dict[str, Any]]:
    return [content for _, content in _results(settings)]


def _results(settings: ReportConfig) -> list[tuple[str, dict[str, Any]]]:
    """Kind and content of every result."""
    if not settings.runs:
        raise BadInput("name at least one run folder")
    for name in ("published", "models", "publish", "watch"):
        if getattr(settings, name):
            raise BadInput(f"--{name} is for the site; tables and summaries hold results of runs only")
    results = []
    for place in settings.runs:
        results.append(read_any(place))
    return results


def write_inputs(
    read: Callable[..., Inputs],
    out: Path,
    *,
    figures: bool = False,
    publish: Host | None = None,
    name: str | None = None,
    progress: Progress = SILENT,
) -> Path:
    """The whole site or nothing: it is built beside `out` and then takes its place. Returns its `index.html`.

    `read` is called with `progress` once it is known that `out` can be written.
    """
    check_target(out)
    if figures:
        load_matplotlib()
    inputs = read(progress=progress)
    target = out.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # reports into one folder are written one after the other; the lock is beside it, since the folder is replaced
        lock = FileLock(target.with_name(f".{target.name}.lock"))
        with lock:
            try:
                check_target(out)
                with draft(target) as folder:
                    _fill(folder, inputs, progress)
                    if figures:
                        progress.begin("figures")
                        write_figures(inputs, folder / "figures")
                    if publish:
                        _write_host_files(folder, publish, name or title(inputs))
            finally:
                Path(lock.lock_file).unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror or error}") from None
    if publish and any(group.dataset for group in inputs.groups) and inputs.texts:
        progress.note("the site contains the texts of the dataset; --no-texts leaves them out")
    return out / "index.html"


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
        raise BadInput(
            f"{out} also holds {', '.join(others[:3])}, which a new report would delete; choose another --out"
        )


def _fill(folder: Path, inputs: Inputs, progress: Progress) -> None:
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
            data_files = page.build(inputs)
            if data_files is not None:
                progress.begin(f"page {page.name}")
                shown.append(page)
                for name, value in data_files:
                    _write_data(folder, name, value)
    datasets = [describe(group) for group in inputs.groups]
    _write_data(folder, "site", {"title": title(inputs), "version": __version__, "datasets": datasets})
    for page in shown:
        (folder / f"{page.name}.html").write_text(render(page, shown, inputs), "utf-8")
    summaries = {run.folder.name: public(run.summary) for run in inputs.evaluations}
    (folder / "table.md").write_text("\n".join(markdown(evaluation_table(s)) for s in summaries.values()), "utf-8")
    numbers = numbers_table(summaries)
    (folder / "table.csv").write_text(as_csv(numbers), "utf-8")


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


def render(page: Page, pages: Sequence[Page], inputs: Inputs) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("prb.reporting", "site/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{page.name}.html").render(
        page=page,
        groups={
            name: [other for other in pages if other.group == name] for name in dict.fromkeys(p.group for p in pages)
        },
        title=title(inputs),
        version=__version__,
        scripts=[f"assets/{name}.js" for name in (*page.helpers, page.name)],
        notices=inputs.notices,
        appendix=inputs.appendix,
        ratings=[evaluation_table(public(run.summary)) for run in inputs.ratings],
    )


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


def _write_host_files(folder: Path, host: Host, title: str) -> None:
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


# --- figures for papers ---
def write_figures(inputs: Inputs, folder: Path) -> list[Path]:
    """All figures of the inputs as .svg and .pdf; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    figures: list[tuple[str, str, Draw]] = []  # kind, of what, how to draw it
    for group in inputs.groups:
        source = Path(group.about.name).stem
        figures += [(kind, source, draw) for kind, draw in of_summary(group.summary)]
    kinds = {"bon": ("best-of-n", best_of_n), "ppo": ("ppo", ppo_figure), "correlation": ("correlation", scatter)}
    for kind, (name, draw) in {**kinds, "audit": ("audit", audit)}.items():
        for place in inputs.others.get(kind, ()):
            figures.append((name, result_name(place), partial(draw, read_any(place)[1])))
    written = []
    for name, draw in _file_names(figures):
        paths = [folder / f"{name}{suffix}" for suffix in (".svg", ".pdf")]
        draw(*paths)
        written += paths
    return written


def _file_names(figures: Sequence[tuple[str, str, Draw]]) -> Iterator[tuple[str, Draw]]:
    """`ppo`; with several of a kind `ppo-brevity`, and a number where that is not enough."""
    kinds = [kind for kind, *_ in figures]
    taken: set[str] = set()
    for kind, source, draw in figures:
        plain = "".join(c if c.isalnum() else "-" for c in source)
        name = kind if kinds.count(kind) == 1 else plain if plain.startswith(kind) else f"{kind}-{plain}"
        numbered, n = name, 1
        while numbered in taken:
            n += 1
            numbered = f"{name}-{n}"
        taken.add(numbered)
        yield numbered, draw
