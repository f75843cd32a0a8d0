"""`prb train METHOD …`, `prb train curve DIR …`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse
from prb.cli.verbs import print_json

FULL = ("reward-model", "dpo")


def command(args: Sequence[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(usage())  # noqa: T201
    elif args[0] == "curve":
        _curve(args[1:])
    elif args[0].partition("?")[0] in FULL:
        _full(args)
    else:
        _head(args)


def usage() -> str:
    from prb.models.personal.method import METHODS

    rows = {name: METHODS.summary(name) for name in METHODS}
    rows |= {
        "reward-model": "Fine-tune a whole model with a reward head, through trl (extra `train`).",
        "dpo": "Fine-tune a whole model by DPO, an implicit reward, through trl (extra `train`).",
    }
    width = max(map(len, rows))
    listed = "\n".join(f"  {name:<{width}}  {what}" for name, what in rows.items())
    return (
        "usage: prb train METHOD --out DIR [options]     train; then: prb evaluate --model 'personal?path=DIR'\n"
        "       prb train curve DIR [options]            how much a few labelled pairs of a person help\n\n"
        f"methods:\n{listed}\n\n"
        "Settings of a method go behind its name: 'bilinear?rank=16'. `prb train METHOD --help` shows the options."
    )


def _head(args: Sequence[str]) -> None:
    from prb.training.config import TrainConfig

    config = parse(TrainConfig, args, "train")
    from prb.progress import watch
    from prb.reporting.tables import train_lines
    from prb.training.run import train

    with watch(config.quiet) as progress:
        card = train(config, progress=progress)
    if config.json:
        print_json(card)
        return
    print("\n".join(train_lines(card)))  # noqa: T201
    print(f"evaluate: prb evaluate --model random --model 'personal?path={config.out}'")  # noqa: T201


def _full(args: Sequence[str]) -> None:
    from prb.training.full import FullConfig

    config = parse(FullConfig, args, "train")
    from prb.progress import watch
    from prb.runs import read_json
    from prb.training.full import finetune

    with watch(config.quiet) as progress:
        made = finetune(config, progress=progress)
    card = read_json(made / "card.json")
    if config.json:
        print_json(card)
    else:
        print(f"evaluate: prb evaluate --model '{card['model']}'")  # noqa: T201


def _curve(args: Sequence[str]) -> None:
    from prb.training.protocols import CurveConfig

    config = parse(CurveConfig, args, "train curve")
    from prb.progress import watch
    from prb.reporting.figures import write_curve
    from prb.reporting.format import show
    from prb.reporting.tables import curve_table
    from prb.training.protocols import learning_curve

    with watch(config.quiet) as progress:
        result = learning_curve(config, progress=progress)
        write_curve(result, config.path, progress)
    if config.json:
        print_json(result)
    else:
        show(curve_table(result))
