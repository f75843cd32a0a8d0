"""Small datasets made by hand, and the guards that no test reaches for the network or for anything of the user."""

from __future__ import annotations

import gc
import os
import pwd
import shutil
import signal
import site
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import settings

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = Path(sys.prefix) if sys.prefix != sys.base_prefix else ROOT / ".venv"
STEERING = ("PRB_", "HF_", "TRANSFORMERS_", "XDG_", "OPENAI_", "RAY_", "WANDB_", "MLFLOW_", "MPL")
"""Variables of the user's that would change what a test sees, by how they begin."""


def seal() -> Path:
    """Give this run a home and caches of its own, and have every Python process of it watched; only once, since the
    workers of pytest-xdist inherit the environment. Weights come from where `make test` puts them."""
    folder = Path(tempfile.mkdtemp(prefix="prb-test-"))
    folder.chmod(0o755)
    kept = ("PRB_EXAMPLES", "PRB_CHAOS")
    for name in [*os.environ]:
        if (name.startswith(STEERING) and name not in kept) or name.lower().endswith("_proxy"):
            del os.environ[name]
    temporary = tempfile.gettempdir()
    private = {home for home in (os.environ.get("HOME"), _registered_home()) if home and not temporary.startswith(home)}
    for name, part in {"HOME": "home", "XDG_RUNTIME_DIR": "run", "PRB_CACHE": "cache"}.items():
        (folder / part).mkdir()
        os.environ[name] = str(folder / part)
    if (ENVIRONMENT / "cache" / "weights").exists():
        (folder / "cache" / "weights").symlink_to(ENVIRONMENT / "cache" / "weights")
    ours = [folder, ROOT, ROOT.parent / "shared", ENVIRONMENT, sys.base_prefix, *sys.path[1:], *site.getsitepackages()]
    folders = (ours, sorted(private), [temporary, "/tmp", "/dev", "/proc"])
    lists = (os.pathsep.join(map(str, part)) for part in folders)
    os.environ["PRB_TEST_GUARD"] = "\n".join([str(folder / "outside.log"), *lists])
    here = str(Path(__file__).parent / "guard")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return folder


def _registered_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir.rstrip("/")
    except KeyError:  # a container may run under a number without a name
        return ""


SEALED = seal() if "PRB_TEST_GUARD" not in os.environ else None
OUTSIDE = Path(os.environ["PRB_TEST_GUARD"].partition("\n")[0])
if SEALED:  # in workers Python has done so at start-up
    import tests.guard.sitecustomize  # noqa: F401


def pytest_unconfigure() -> None:
    if SEALED:
        shutil.rmtree(SEALED, ignore_errors=True)


# before numpy and torch are imported: the workers of pytest-xdist share the cores, small matrices gain nothing from
# threads, and threads that wait for a busy core make torch tests ten times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# how long an example takes depends on what else the machine does
settings.register_profile("prb", deadline=None, max_examples=int(os.environ.get("PRB_EXAMPLES", "40")))
settings.load_profile("prb")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test-slow` runs properties again, with more examples."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)


def pytest_collection_finish() -> None:
    """What was imported stays, and looking through it again is what a garbage collection would spend its time on."""
    gc.collect()
    gc.freeze()


# a shell that starts the tests in the background has them ignore Ctrl-C, and all their children with them
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is fine, anything else is a bug in a test."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to reach {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def nothing_outside() -> Iterator[None]:
    """What the test or a process that it started did outside of the clone fails it, even if the error was caught."""
    yield
    if OUTSIDE.exists():
        attempts = OUTSIDE.read_text("utf-8")
        OUTSIDE.unlink(missing_ok=True)
        pytest.fail(attempts)


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a test's models say is remembered in the test's own folder, never in the user's."""
    monkeypatch.setattr("prb.cache.cache_path", lambda: tmp_path / ".cache.sqlite")


LIFESTYLE, ART = "Lifestyle_and_Personal_Development", "Art_and_Entertainment"


def make_row(n: int = 1, **changes: Any) -> Row:
    """A sound row; `None` as a change removes the field."""
    row: Row = {
        "id": f"r{n}",
        "user": f"u{n}",
        "question": f"How do I water plant number {n}?",
        "profile": [
            {"id": f"u{n}-1", "category": LIFESTYLE, "text": f"I love short lists about topic {n}."},
            {"id": f"u{n}-2", "category": ART, "text": f"My flat number {n} faces north and is cold."},
        ],
        "rubric_aspects": [{"aspect": "brevity", "evidence": "keep it short", "reason": "Long texts tire them."}],
        "narrative": "Please keep it short, I read on the bus.",
        "category": LIFESTYLE,
        "chosen": f"Once a week, plant {n} is happy.",
        "rejected": f"It depends on light, soil and season; plant {n} wants patience.",
    }
    row.update(changes)
    return {key: value for key, value in row.items() if value is not None}


def make_twins(n: int, **changes: Any) -> list[Row]:
    """Two mirror rows: the same question and answers under two people, labels swapped."""
    first = make_row(n, id=f"t{n}a", user=f"a{n}", mirror=f"t{n}b", **changes)
    second = {**first, "id": f"t{n}b", "user": f"b{n}", "mirror": f"t{n}a"}
    posts = enumerate(second["profile"])
    second["profile"] = [{**post, "id": f"b{n}-{k}", "text": f"{post['text']} So it is."} for k, post in posts]
    return [first, {**second, "chosen": first["rejected"], "rejected": first["chosen"]}]


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: list[Row], name: str = "set.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
        return path

    return write


@pytest.fixture(scope="module")  # not longer: its event loop would stand in the way of other tests
def browser() -> Iterator[Any]:
    """Chromium, told to ask nothing of the network on its own account."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed, so pages cannot be looked at")
    from playwright.sync_api import sync_playwright

    quiet = ("background-networking", "component-update", "gpu", "quic", "sync")
    flags = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def shared_data() -> Path:
    """Third-party data that is never part of the project; tests on it skip where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.exists():
        pytest.skip(f"needs the third-party data folder {folder.name}/ beside the checkout")
    return folder
