from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.load import load
from prb.data.source import open_source
from prb.errors import BadInput, MissingExtra, UnknownName
from tests.conftest import Row
from tests.data.broken import line, sound

OLD, NEW = "a" * 40, "b" * 40
SUBSETS = {"Art_and_Entertainment": 10, "Lifestyle_and_Personal_Development": 20, "Society_and_Culture": 30}
README = """---
license: apache-2.0
configs:
{configs}
---
# A small copy of the public set
"""
CONFIG = """- config_name: {name}
  data_files:
  - split: train
    path: {name}/train.{ending}
  - split: test
    path: {name}/test.{ending}"""

Publish = Callable[..., None]
logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no way out of it."""
    pytest.importorskip("datasets", reason="needs the hub extra")
    import datasets.config
    from huggingface_hub import constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return folder


@pytest.fixture
def publish(cache: Path) -> Publish:
    """Put files into the cache as `huggingface_hub` would have left them."""

    def write(files: dict[str, bytes], repo: str = "owner/name", revision: str = NEW, main: bool = True) -> None:
        home = cache / f"datasets--{repo.replace('/', '--')}"
        for name, raw in files.items():
            path = home / "snapshots" / revision / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        if main:
            (home / "refs").mkdir(exist_ok=True)
            (home / "refs" / "main").write_text(revision)

    return write


def pack(rows: list[Row], ending: str, folder: Path) -> bytes:
    if ending == "jsonl":
        return b"".join(map(line, rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "packed.parquet")
    return (folder / "packed.parquet").read_bytes()


def three_subsets(folder: Path, ending: str = "jsonl") -> dict[str, bytes]:
    configs = "\n".join(CONFIG.format(name=name, ending=ending) for name in SUBSETS)
    files = {"README.md": README.format(configs=configs).encode()}
    for name, n in SUBSETS.items():
        files[f"{name}/test.{ending}"] = pack([sound(n + k, category=name, mood=[k]) for k in (1, 2)], ending, folder)
        files[f"{name}/train.{ending}"] = pack([sound(n, category=name, mood=[0])], ending, folder)
    return files


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_all_subsets_of_a_cached_repository_load_offline(ending, publish, tmp_path) -> None:
    publish(three_subsets(tmp_path, ending))
    dataset = load("hub:owner/name")
    assert dataset.split == "test"
    assert dataset.index.ids == ["r11", "r12", "r21", "r22", "r31", "r32"]
    assert dataset.index.categories == [name for name in SUBSETS for _ in range(2)]
    assert load("hub:owner/name", split="train").index.ids == ["r10", "r20", "r30"]


def test_one_subset_can_be_asked_for_and_its_rows_come_back_as_published(publish, tmp_path) -> None:
    publish(three_subsets(tmp_path))
    dataset = load("hub:owner/name?subset=Society_and_Culture")
    assert dataset.index.ids == ["r31", "r32"]
    assert dataset.name == f"hub:owner/name?revision={NEW}&subset=Society_and_Culture"
    row = next(row for row in open_source(dataset.name).rows() if row.data["id"] == "r32")
    assert (row.place, row.line) == ("Society_and_Culture/test", 2)
    assert row.data == {**sound(32, category="Society_and_Culture", mood=[2]), "split": "test"}
    says = r"no subset of owner/name named 'Society'; did you mean 'Society_and_Culture'"
    with pytest.raises(UnknownName, match=says):
        load("hub:owner/name?subset=Society")


def test_a_row_knows_its_subset_and_its_place_in_it_with_a_limit_as_without(publish, tmp_path) -> None:
    publish(three_subsets(tmp_path))
    dataset, sample = load("hub:owner/name"), load("hub:owner/name", limit=3)
    places = dict(zip(dataset.index.ids, dataset.subsets(), strict=True))
    assert list(places.values()) == [(name, n) for name in SUBSETS for n in (0, 1)]
    assert list(sample.subsets()) == [places[row_id] for row_id in sample.index.ids]


def test_the_name_pins_the_revision_that_was_read(publish, tmp_path) -> None:
    publish(three_subsets(tmp_path), revision=OLD)
    name = load("hub:owner/name").name
    assert name == f"hub:owner/name?revision={OLD}"
    publish({"test.jsonl": line(sound(1))}, revision=NEW)
    assert load("hub:owner/name").index.ids == ["r1"]
    assert len(load(name)) == 6


@pytest.mark.parametrize("spec", ["hub:owner/other", f"hub:owner/name?revision={OLD}"])
def test_what_is_not_in_the_cache_is_refused_with_the_reason(spec, publish) -> None:
    publish({"test.jsonl": line(sound(1))})
    repo = spec.partition("?")[0]
    with pytest.raises(BadInput, match=f"^{repo} is not in the local cache and the hub cannot be reached"):
        load(spec)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"README.md": b"---\nlicense: mit\n---\n"}, "doesn't contain any data files"),
        ({"test.jsonl": line(sound(1)) + b"{broken\n"}, "JSON parse error"),
        ({"train.jsonl": line(sound(1)), "test.jsonl": line(sound(2, mood=1))}, "column names don't match"),
    ],
    ids=["empty", "broken", "mixed columns"],
)
def test_what_the_hub_library_cannot_read_is_one_clear_line(files, why, publish) -> None:
    publish(files)
    with pytest.raises(BadInput) as caught:
        load("hub:owner/name")
    assert str(caught.value).startswith(f"hub:owner/name?revision={NEW} cannot be read: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_message_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"reading from the hub needs the 'hub' extra: pip install .*\[hub\]"):
        open_source("hub:owner/name")
