"""`prb data pull polis`: a public dataset that may be downloaded, file by file, each pinned by its SHA-256.

Nothing is kept that has another hash. Files that are there already are not downloaded again.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from prb.cache import cache_folder
from prb.errors import BadInput, PrbError
from prb.progress import SILENT, Progress
from prb.runs import content_digest, draft

FOLDER = "data/polis"
"""In the cache."""
ADDRESS = "https://raw.githubusercontent.com/compdemocracy/openData/0bc2ce0f32c673f68da20b57bce15c457aa787b5"
LICENSE = "CC BY 4.0, https://creativecommons.org/licenses/by/4.0/"
ATTRIBUTION = """Data was gathered using the Polis software (compdemocracy.org/polis) and is sub-licensed under
CC BY 4.0 with Attribution to The Computational Democracy Project. The data and more information about how the data was
collected can be found at https://compdemocracy.org/case-studies and https://github.com/compdemocracy/openData"""


def polis_hashes() -> dict[str, str]:
    """Path to SHA-256 of every file; the list is as `sha256sum` writes it."""
    lines = (files("prb.data.named") / "polis.sha256").read_text("utf-8").splitlines()
    return {path: sha256 for sha256, path in (line.split("  ", 1) for line in lines)}


def pulled_polis() -> Path:
    """The folder with the conversations of Polis, if all of them are there."""
    folder = cache_folder() / FOLDER
    if not all((folder / path).is_file() for path in polis_hashes()):
        raise BadInput("dataset 'polis': give path=FOLDER, or `prb data pull polis` first")
    return folder


def pull_polis(progress: Progress = SILENT) -> Path:
    """The folder with the conversations of Polis; what is missing is downloaded."""
    hashes, folder = polis_hashes(), cache_folder() / FOLDER
    progress.begin("pulling polis", len(hashes))
    for path, sha256 in hashes.items():
        address, target = f"{ADDRESS}/{path}", folder / path
        if not (target.is_file() and content_digest(target) == sha256):
            try:
                with urlopen(address, timeout=60) as response:  # noqa: S310 - our own address
                    content: bytes = response.read(256 << 20)
            except (URLError, OSError) as error:
                raise PrbError(f"{address} cannot be read ({error}); run the same command again to resume") from None
            if (found := hashlib.sha256(content).hexdigest()) != sha256:
                raise PrbError(f"{address} has SHA-256 {found}, expected {sha256}; it is not kept")
            target.parent.mkdir(parents=True, exist_ok=True)
            with draft(target) as part:
                part.write_bytes(content)
        progress.advance()
    return folder
