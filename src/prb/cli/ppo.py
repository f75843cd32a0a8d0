"""`prb ppo`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse_or_repeat, refuse_repeated
from prb.cli.verbs import print_json
from prb.downstream.ppo import PpoConfig, ppo


def command(args: Sequence[str]) -> None:
    refuse_repeated(args, "--condition")
    config = parse_or_repeat(PpoConfig, args, "ppo")
    from prb.progress import watch
    from prb.reporting.downstream_figures import write_ppo
    from prb.reporting.downstream_tables import ppo_lines, ppo_tables
    from prb.reporting.format import show

    with watch(config.quiet) as progress:
        done = ppo(config, progress=progress)
        if not done.main_process:  # of several, started by accelerate
            return
        if config.engine == "local":
            write_ppo(done.summary, done.folder, progress)
    if config.engine == "verl":
        print(done.message)  # noqa: T201
        return
    if config.json:
        print_json(done.summary)
        return
    show(*ppo_tables(done.summary))
    for line in ppo_lines(done.summary):
        print(line)  # noqa: T201
    paths = f"curves: {done.folder / 'curves.csv'}   policy: transformers/{done.folder / 'policy'}"
    print(f"run: {done.folder}   {paths}")  # noqa: T201
