"""The table of embedded models on the embedded benchmark, written into README.md and docs/mirror.md."""

from __future__ import annotations

import shutil
from pathlib import Path

from prb.evaluate.config import DEFAULT_MODELS, EvaluateConfig
from prb.evaluate.run import evaluate
from prb.progress import watch
from prb.report.table import leaderboard, markdown, show

ROOT = Path(__file__).resolve().parents[1]
MODELS = (*DEFAULT_MODELS, "embedding?encoder=minilm", "aspect-match?encoder=minilm")
START, END = "<!-- baselines -->", "<!-- /baselines -->"


def main() -> None:
    out = ROOT / "runs" / "baselines"
    shutil.rmtree(out, ignore_errors=True)
    config = EvaluateConfig(model=MODELS, condition=("none", "profile", "shuffled", "oracle"), out=out)
    with watch() as progress:
        table = leaderboard(evaluate(config, progress=progress).summary)
    for page in (ROOT / "README.md", ROOT / "docs" / "mirror.md"):
        text = page.read_text("utf-8")
        before, after = text.split(START)[0], text.split(END)[1]
        page.write_text(f"{before}{START}\n{markdown(table)}{END}{after}", "utf-8")
    show(table)


if __name__ == "__main__":
    main()
