"""A site as a host takes it: what GitHub Pages or a static Hugging Face Space needs beside the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from prb import __version__

Host = Literal["pages", "space"]
README, NO_JEKYLL = "README.md", ".nojekyll"
TEXT = """\
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


def write_host_files(folder: Path, host: Host, title: str) -> None:
    import yaml

    text = TEXT.format(title=title, how=HOW[host], host=host, version=__version__)
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
