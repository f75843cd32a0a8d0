"""A published site is served as it is: metadata for the host, relative links, nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from prb.reporting.site import ReportConfig, report
from tests.reporting.sites import make_run, rows
from tests.runs import Notes, names

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import orjson

    folder = tmp_path_factory.mktemp("publishing")
    data = folder / "rows.jsonl"
    data.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows()))
    return make_run(data, folder / "run")


@pytest.mark.parametrize("host", ["pages", "space"])
def test_a_host_serves_the_folder_as_it_is(run: Path, tmp_path: Path, host: str) -> None:
    site = report(ReportConfig(runs=(run,), publish=host, out=tmp_path / "site")).parent
    assert {".nojekyll", "README.md", "index.html"} <= set(names(site))
    for page in [*site.glob("*.html"), site / "README.md"]:
        links = re.findall(r'(?:src|href)="([^"#]+)"|\]\(([^)]+)\)', page.read_text("utf-8"))
        for link in (a or b for a, b in links):
            assert (site / link).is_file(), link
    report(ReportConfig(runs=(run,), out=site))  # a published site is still a report, and may be replaced


def test_a_space_is_static_and_its_readme_says_so(run: Path, tmp_path: Path) -> None:
    report(ReportConfig(runs=(run,), publish="space", out=tmp_path / "site"))
    text = (tmp_path / "site" / "README.md").read_text("utf-8")
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert (metadata["sdk"], metadata["app_file"], metadata["title"]) == ("static", "index.html", "run")
    assert len(metadata["short_description"]) <= 60
    hub = pytest.importorskip("huggingface_hub", reason="needs the hub extra")
    assert hub.SpaceCard.load(tmp_path / "site" / "README.md").data.sdk == "static"


def test_whoever_publishes_texts_is_told(run: Path, tmp_path: Path) -> None:
    for texts in (True, False):
        notes = Notes()
        report(ReportConfig(runs=(run,), publish="pages", texts=texts, out=tmp_path / "site"), progress=notes)
        assert any("--no-texts" in note for note in notes.notes) == texts
