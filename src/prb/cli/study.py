"""`prb study new | serve | export | agree | demo`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from prb.cli.parse import print_json
from prb.errors import MissingExtra
from prb.study.config import DEFAULT_PORT, AgreeConfig, DemoConfig, ExportConfig, NewConfig, ServeConfig

if TYPE_CHECKING:
    from prb.study.app import DemoReady, Ready

NEEDED = ("sqlalchemy", "fastapi", "uvicorn", "argon2", "itsdangerous")
"""What the extra `study` installs."""
C = TypeVar("C")


def needs_extra(command: Callable[[C], None]) -> Callable[[C], None]:
    @wraps(command)
    def run(config: C) -> None:
        try:
            command(config)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in NEEDED:
                raise
            raise MissingExtra("prb study", "study") from None

    return run


@needs_extra
def study_new(config: NewConfig) -> None:
    from prb.study.design import PASSWORD_VARIABLE, new_study

    study = new_study(config)
    if config.json:
        print_json(study._asdict())
        return
    what = f"{study.judgements} judgments by {len(study.links)} annotators" if study.judgements else "to choose from"
    print(f"{study.where}: {study.items} items, {what}\n\ninvitations (shown once, only hashes are stored):")
    for name, link in study.links.items():
        print(f"  {name:<14} {link}")
    password = study.password or f"as in {PASSWORD_VARIABLE}"
    print(f"\nadmin password: {password}\nnext: prb study serve {quote(study.where)}{serve_options(config.url)}")


def serve_options(url: str) -> str:
    """What `prb study serve` needs so that links that begin with this address work."""
    public = urlsplit(url)
    if public.scheme == "http" and public.hostname in ("127.0.0.1", "localhost", "::1"):
        port = public.port or 80
        return "" if port == DEFAULT_PORT else f" --port {port}"
    return f" --url {url}"


@needs_extra
def study_serve(config: ServeConfig) -> None:
    from prb.study.app import serve as run

    def ready(server: Ready) -> None:
        if not config.quiet:
            admin = f"{server.url.rstrip('/')}/admin"
            print(f"study: {server.url}   administration: {admin}   Ctrl-C stops it", flush=True)
        if server.password:
            print(f"admin password: {server.password}", flush=True)

    run(config, ready)
    if not config.quiet:
        print("stopped; everything that was saved is kept")


@needs_extra
def study_export(config: ExportConfig) -> None:
    from prb.study.judgments import export as write

    counts = write(config)
    if config.json:
        print_json(counts)
    else:
        print(f"{config.out}: " + ", ".join(f"{n} rows in {name}" for name, n in counts.items()))


@needs_extra
def study_agree(config: AgreeConfig) -> None:
    from prb.study.agreement import agree as run
    from prb.study.agreement import verdict

    def show(summary: dict[str, Any]) -> None:
        if config.json:
            print_json(summary)
        else:
            print("\n".join(verdict(summary)))

    run(config, show=show)


@needs_extra
def study_demo(config: DemoConfig) -> None:
    from prb.study.app import run_demo

    def ready(server: DemoReady) -> None:
        print(f"take part        {server.link}", flush=True)
        print(f"administration   {server.admin}   password: {server.password or 'yours'}", flush=True)
        print("Ctrl-C stops it", flush=True)

    run_demo(config, ready)
