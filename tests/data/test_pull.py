"""The download of a public dataset: every file checked by its hash, from a server."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from prb.cli.data import PullConfig, data_pull
from prb.data.pull import polis_hashes, pull_polis
from prb.data.source import open_source
from prb.errors import BadInput, PrbError
from tests.data.named.test_polls import conversation, two_camps


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversation that stands for the published ones, and an empty cache."""
    folder = tmp_path / "published"
    conversation(folder / "tea", two_camps(12))
    hashes = {f"tea/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in (folder / "tea").iterdir()}
    monkeypatch.setattr("prb.data.pull.polis_hashes", lambda: hashes)
    monkeypatch.setenv("PRB_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def address(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(published))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("prb.data.pull.ADDRESS", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()


def test_files_come_from_a_server_once_and_the_dataset_needs_no_path_then(
    address, published, capsys, monkeypatch
) -> None:
    with pytest.raises(BadInput, match="`prb data pull polis` first"):
        open_source("polis")
    data_pull(PullConfig(name="polis"))
    printed = capsys.readouterr().out
    assert "CC BY 4.0" in printed
    assert "Attribution to The Computational Democracy Project" in printed
    assert [row.data for row in open_source("polis").rows()] == [
        row.data for row in open_source(f"polis?path={published}").rows()
    ]
    monkeypatch.setattr("prb.data.pull.ADDRESS", "http://127.0.0.1:9")
    assert pull_polis() == Path(printed.split()[-1])  # nothing is left to ask for


def test_a_file_with_another_hash_is_not_kept_and_the_rest_is_not_lost(address, published) -> None:
    comments = published / "tea" / "comments.csv"
    content = comments.read_bytes()
    comments.write_bytes(content + b"\n")
    with pytest.raises(PrbError, match=r"comments.csv has SHA-256 .* it is not kept"):
        pull_polis()
    comments.write_bytes(content)
    folder = pull_polis()
    assert sorted(path.name for path in (folder / "tea").iterdir()) == sorted(
        path.name for path in (published / "tea").iterdir()
    )


def test_what_cannot_be_read_is_one_line(address, published) -> None:
    (published / "tea" / "summary.csv").unlink()
    with pytest.raises(PrbError, match=r"summary.csv cannot be read \(HTTP Error 404"):
        pull_polis()


def test_the_list_names_conversations_with_all_that_they_need() -> None:
    hashes = polis_hashes()
    assert all(len(sha256) == 64 for sha256 in hashes.values())
    folders = {path.partition("/")[0] for path in hashes}
    assert len(folders) == 12
    assert {
        f"{folder}/{name}.csv" for folder in folders for name in ("summary", "comments", "participants-votes")
    } <= set(hashes)


def test_the_published_files_have_these_hashes(shared_data) -> None:
    here = {path: shared_data / "polis" / path for path in polis_hashes()}
    found = {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in here.items()}
    assert found.items() <= polis_hashes().items()
