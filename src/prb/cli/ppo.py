"""`prb ppo`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse_or_repeat
from prb.cli.verbs import print_json
from prb.downstream.ppo_config import PpoConfig
from prb.errors import MissingExtra


def command(args: Sequence[str]) -> None:
    config = parse_or_repeat(PpoConfig, args, "ppo")
    from prb.progress import watch
    from prb.reporting.downstream_tables import ppo_lines, ppo_tables
    from prb.reporting.figures import write_ppo
    from prb.reporting.format import show

    with watch(config.quiet) as progress:
        if config.engine == "verl":
            from prb.downstream.verl import verl

            print(verl(config, progress=progress))  # noqa: T201
            return
        try:
            from prb.downstream.ppo_run import ppo
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            raise MissingExtra("PPO", "torch") from None
        done = ppo(config, progress=progress)
        write_ppo(done.summary, done.folder, progress)
    if config.json:
        print_json(done.summary)
        return
    show(*ppo_tables(done.summary))
    for line in ppo_lines(done.summary):
        print(line)  # noqa: T201
    paths = f"curves: {done.folder / 'curves.csv'}   policy: transformers/{done.folder / 'policy'}"
    print(f"run: {done.folder}   {paths}")  # noqa: T201
