"""`prb study new | serve | export | agree | demo`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse
from prb.cli.verbs import choose, print_json
from prb.study.config import AgreeConfig, DemoConfig, ExportConfig, NewConfig, ServeConfig


def command(args: Sequence[str]) -> None:
    from prb.errors import MissingExtra

    try:
        choose("study", args, {"new": new, "serve": serve, "export": export, "agree": agree, "demo": demo})
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("sqlalchemy", "alembic", "fastapi", "uvicorn", "argon2"):
            raise
        raise MissingExtra("prb study", "study") from None


def new(args: Sequence[str]) -> None:
    config = parse(NewConfig, args, "study new")
    from prb.study.new import PASSWORD, new_study

    made = new_study(config)
    if config.json:
        print_json(made._asdict())
        return
    work = f"{made.judgements} judgements by {len(made.links)} annotators" if made.judgements else "questions to pick"
    print(f"{made.where}: {made.items} items, {work}\n\ninvitations (shown once, only hashes are kept):")  # noqa: T201
    for name, link in made.links.items():
        print(f"  {name:<14} {link}")  # noqa: T201
    print(f"\nadmin password: {made.password or f'as in {PASSWORD}'}\nnext: prb study serve {config.out}")  # noqa: T201


def serve(args: Sequence[str]) -> None:
    config = parse(ServeConfig, args, "study serve")
    from prb.study.app import serve as run

    if config.new_password:
        from prb.study.new import new_password

        print(f"admin password: {new_password(config.study)}", flush=True)  # noqa: T201

    def say(url: str) -> None:
        if not config.quiet:
            print(f"study: {url}   administration: {url.rstrip('/')}/admin   Ctrl-C ends it", flush=True)  # noqa: T201

    run(config, say)
    if not config.quiet:
        print("stopped; everything that was acknowledged is kept")  # noqa: T201


def export(args: Sequence[str]) -> None:
    config = parse(ExportConfig, args, "study export")
    from prb.study.export import export as write

    counts = write(config)
    if config.json:
        print_json(counts)
    else:
        print(f"{config.out}: " + ", ".join(f"{n} rows in {name}" for name, n in counts.items()))  # noqa: T201


def agree(args: Sequence[str]) -> None:
    config = parse(AgreeConfig, args, "study agree")
    from prb.runs import write_json
    from prb.study.agree import agree as judge
    from prb.study.agree import check_names, require
    from prb.study.sentences import verdict

    check_names(config.require)
    result = judge(config)
    if config.out:
        write_json(config.out, result)
    if config.json:
        print_json(result)
    else:
        print("\n".join(verdict(result)))  # noqa: T201
    require(config.require, result)


def demo(args: Sequence[str]) -> None:
    config = parse(DemoConfig, args, "study demo")
    from prb.study.demo import run_demo

    run_demo(config)
