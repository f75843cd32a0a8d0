"""`prb data pull`: public datasets that may be downloaded, file by file, each pinned by its SHA-256.

Nothing is kept that has another hash. Files that are there already are not downloaded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from prb.cache import cache_folder
from prb.errors import BadInput, PrbError, unknown
from prb.progress import SILENT, Progress
from prb.runs import content_digest, draft

TIMEOUT = 60.0
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Download:
    address: str
    """Of the folder that holds the files."""
    list: str
    """File in `prb.data.named` with hash and path per line, as `sha256sum` writes it."""
    license: str
    attribution: str

    @property
    def hashes(self) -> Mapping[str, str]:
        """Path to SHA-256."""
        lines = (files("prb.data.named") / self.list).read_text("utf-8").splitlines()
        return {path: sha256 for sha256, path in (line.split("  ", 1) for line in lines)}


DOWNLOADS = {
    "polis": Download(
        address="https://raw.githubusercontent.com/compdemocracy/openData/0bc2ce0f32c673f68da20b57bce15c457aa787b5",
        list="polis.sha256",
        license="CC BY 4.0, https://creativecommons.org/licenses/by/4.0/",
        attribution="""Data was gathered using the Polis software (compdemocracy.org/polis) and is sub-licensed under
CC BY 4.0 with Attribution to The Computational Democracy Project. The data and more information about how the data was
collected can be found at https://compdemocracy.org/case-studies and https://github.com/compdemocracy/openData""",
    )
}


def pulled(name: str) -> Path:
    """The folder of a dataset that was pulled whole."""
    folder = cache_folder() / "data" / name
    if not all((folder / path).is_file() for path in DOWNLOADS[name].hashes):
        raise BadInput(f"dataset {name!r}: give path=FOLDER, or `prb data pull {name}` first")
    return folder


def pull(name: str, source: str | None = None, progress: Progress = SILENT) -> Path:
    """The folder with the files of a dataset; what is missing comes from its address, or from another one."""
    if name not in DOWNLOADS:
        raise unknown("dataset to pull", name, list(DOWNLOADS))
    hashes, folder = DOWNLOADS[name].hashes, cache_folder() / "data" / name
    source = (source or DOWNLOADS[name].address).rstrip("/")
    if not source.startswith(("https://", "http://")):
        raise BadInput(f"--source must be an address, not {source!r}; for a folder, use {name}?path=FOLDER")
    progress.begin(f"pulling {name}", len(hashes))
    for path, sha256 in hashes.items():
        target = folder / path
        if not (target.is_file() and content_digest(target) == sha256):
            try:
                with urlopen(f"{source}/{path}", timeout=TIMEOUT) as response:  # noqa: S310 - checked above
                    content: bytes = response.read(MOST_BYTES)
            except (URLError, OSError) as error:
                again = "run the same command again to resume"
                raise PrbError(f"{source}/{path} cannot be read ({error}); {again}") from None
            if (found := hashlib.sha256(content).hexdigest()) != sha256:
                raise PrbError(f"{source}/{path} has SHA-256 {found}, expected {sha256}; it is not kept")
            target.parent.mkdir(parents=True, exist_ok=True)
            with draft(target) as part:
                part.write_bytes(content)
        progress.advance()
    return folder
