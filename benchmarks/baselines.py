"""The table of embedded models on the embedded benchmark, written into docs/tables/mirror.md."""

from __future__ import annotations

import shutil

from record import ROOT, write_between

from prb.evaluation.config import DEFAULT_MODELS, EvaluateConfig
from prb.evaluation.run import evaluate
from prb.progress import watch
from prb.reporting.evaluation_results import evaluation_table
from prb.reporting.format import markdown, show
from prb.summary import Summary

MODELS = (*DEFAULT_MODELS, "embedding?encoder=minilm", "aspect-match?encoder=minilm")


def main() -> None:
    out = ROOT / "runs" / "baselines"
    shutil.rmtree(out, ignore_errors=True)
    config = EvaluateConfig(model=MODELS, condition=("none", "profile", "shuffled", "oracle"), out=out)
    with watch() as progress:
        table = evaluation_table(Summary.read(evaluate(config, progress=progress).summary))
    write_between("baselines", markdown(table), ROOT / "docs" / "tables" / "mirror.md")
    show(table)


if __name__ == "__main__":
    main()
