"""What the verbs print whose results are no runs. Commands with a second word are in `data.py`, but for those of
`prb study`."""

# ruff: noqa: T201

from __future__ import annotations

import sys
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import prb
from prb.cli import finished, listed, print_run
from prb.cli.parse import answer, print_json
from prb.types import visible

if TYPE_CHECKING:
    from prb.downstream.ppo import PpoConfig
    from prb.reporting.formats import ExportConfig
    from prb.reporting.site import ReportConfig
    from prb.reporting.submissions import LeaderboardConfig
    from prb.serving.server import Ready, ServeConfig
    from prb.study.app import DemoReady
    from prb.study.app import Ready as StudyReady
    from prb.study.config import AgreeConfig, DemoConfig, NewConfig
    from prb.study.config import ExportConfig as StudyExportConfig
    from prb.study.config import ServeConfig as StudyServeConfig


def ppo(config: PpoConfig) -> None:
    result, _ = finished(lambda: prb.ppo(config))
    print_run(result, json=config.json and not result.message)


def train_usage(method: str = "") -> str:
    """All methods, or what one of them is and the settings that may follow its name."""
    from prb.models.personal.methods import METHODS

    name = method.partition("?")[0]
    if name in METHODS:
        about = METHODS.about(name)
        settings = f"settings, as they follow its name: {name}?{'&'.join(about.options)}" if about.options else ""
        return f"{about.what}\n{settings}\n"
    if method:
        return ""
    rows = {name: METHODS.about(name).what for name in METHODS}
    rows |= {
        "reward-model": "Fine-tune a whole model with a reward head, through trl (extra `train`).",
        "dpo": "Fine-tune a whole model by DPO, an implicit reward, through trl (extra `train`).",
    }
    return (
        "usage: prb train METHOD [options]      then: prb evaluate --model 'personal?path=DIR'\n\n"
        f"methods:\n{listed(rows)}\n\n"
        "Settings of a method follow its name: 'bilinear?rank=16'. `prb train METHOD --help` shows the options."
    )


def report(config: ReportConfig) -> None:
    from prb.reporting.format import markdown
    from prb.reporting.gather import read_any

    if config.format == "site" and not config.json:
        print(f"report: {prb.report(config)}")
        return
    runs = [read_any(place) for place in config.runs]
    if config.json:
        print_json([run.summary for run in runs])
    else:
        print("\n".join(markdown(table) for run in runs for table in run.numbers()), end="")


def leaderboard(config: LeaderboardConfig) -> None:
    result, failed = finished(lambda: prb.leaderboard(config))
    if config.json:
        site = str(result.index) if result.index else None
        print_json({"site": site, "accepted": list(result.accepted), "refused": dict(result.refused)})
    else:
        for name in result.accepted:
            print(visible(f"accepted: {name}"))
        for name, reason in result.refused.items():
            print(visible(f"refused:  {name}: {reason}"))
        if result.index:
            print(f"report: {result.index}")
    if failed:
        raise failed


def export(config: ExportConfig) -> None:
    paths = [str(path) for path in prb.export(config)]
    answer(config, paths, "\n".join(paths))


def serve(config: ServeConfig) -> None:
    import orjson

    from prb.serving.server import serve as run

    def ready(server: Ready) -> None:
        if config.json:
            print(orjson.dumps(server).decode(), flush=True)
        if not config.quiet:
            what = f"{server.model} at {server.url}; Ctrl-C answers accepted requests and stops"
            print(what, file=sys.stderr, flush=True)

    run(config, ready=ready)
    if not config.quiet:
        print("stopped", file=sys.stderr, flush=True)


# --- study ---
def study_new(config: NewConfig) -> None:
    from prb.study.config import DEFAULT_PORT
    from prb.study.design import new_study

    study = new_study(config)
    if config.json:
        print_json(study._asdict())
        return
    what = f"{study.judgements} judgments by {len(study.links)} annotators" if study.judgements else "to choose from"
    print(f"{study.where}: {study.items} items, {what}\n\ninvitations (shown once, only hashes are stored):")
    for name, link in study.links.items():
        print(f"  {name:<14} {link}")
    public, options = urlsplit(config.url), f" --url {config.url}"  # with which these links work
    if public.scheme == "http" and public.hostname in ("127.0.0.1", "localhost", "::1"):
        port = public.port or 80
        options = "" if port == DEFAULT_PORT else f" --port {port}"
    print(f"\nadmin password: {study.password}\nnext: prb study serve {quote(study.where)}{options}")


def study_serve(config: StudyServeConfig) -> None:
    from prb.study.app import serve as run

    def ready(server: StudyReady) -> None:
        if not config.quiet:
            admin = f"{server.url.rstrip('/')}/admin"
            print(f"study: {server.url}   administration: {admin}   Ctrl-C stops it", flush=True)
        if server.password:
            print(f"admin password: {server.password}", flush=True)

    run(config, ready)
    if not config.quiet:
        print("stopped; everything that was saved is kept")


def study_export(config: StudyExportConfig) -> None:
    from prb.study.judgments import export as write

    counts = write(config)
    answer(config, counts, f"{config.out}: {', '.join(f'{n} rows in {name}' for name, n in counts.items())}")


def study_agree(config: AgreeConfig) -> None:
    from msgspec import to_builtins

    from prb.study.agreement import agree, verdict

    summary, failed = finished(lambda: agree(config))
    answer(config, to_builtins(summary), "\n".join(verdict(summary)))
    if failed:
        raise failed


def study_demo(config: DemoConfig) -> None:
    from prb.study.app import run_demo

    def ready(server: DemoReady) -> None:
        print(f"take part        {server.link}", flush=True)
        print(f"administration   {server.admin}   password: {server.password}", flush=True)
        print("Ctrl-C stops it", flush=True)

    run_demo(config, ready)
