"""`prb train METHOD …`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from prb.cli.parse import finished, parse, print_json


def command(args: Sequence[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(usage())
    else:
        train_model(args)


def usage() -> str:
    from prb.models.personal.methods import METHODS

    rows = {name: METHODS.summary(name) for name in METHODS}
    rows |= {
        "reward-model": "Fine-tune a whole model with a reward head, through trl (extra `train`).",
        "dpo": "Fine-tune a whole model by DPO, an implicit reward, through trl (extra `train`).",
    }
    width = max(map(len, rows))
    listed = "\n".join(f"  {name:<{width}}  {what}" for name, what in rows.items())
    return (
        "usage: prb train METHOD [options]      then: prb evaluate --model 'personal?path=DIR'\n\n"
        f"methods:\n{listed}\n\n"
        "Settings of a method follow its name: 'bilinear?rank=16'. `prb train METHOD --help` shows the options."
    )


def train_model(args: Sequence[str]) -> None:
    from prb.training.config import FullConfig, config_of

    config = parse(config_of(args[0]), args, "train")
    from prb.api import train
    from prb.reporting.format import say
    from prb.reporting.results import train_lines

    result, _ = finished(lambda: train(config))
    if config.json:
        print_json(result.summary)
        return
    if not isinstance(config, FullConfig):
        say(*train_lines(result.summary))
    print(f"evaluate: prb evaluate --dataset {quote(config.dataset)} --model random --model {quote(result.spec)}")
