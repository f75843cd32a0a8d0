from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb import registry as registry_module
from prb.errors import BadInput, BadSpec, UnknownName
from prb.registry import Declared, Registry, Spec
from prb.summary import Condition


@dataclass
class Tool:
    settings: dict[str, Any]


def tools() -> Registry[Tool]:
    """A registry of its own, over a package without modules."""
    made: Registry[Tool] = Registry("tool", package="prb.prompts", group="prb.tests.nothing")

    @made.register("hammer")
    def hammer(
        size: int,
        weight: float = 1.5,
        steel: bool = False,
        path: Path | None = None,
        grip: Literal["wood", "rubber"] = "wood",
        label: str = "",
    ) -> Tool:
        """Drives nails.

        And more.
        """
        return Tool({"size": size, "weight": weight, "steel": steel, "path": path, "grip": grip, "label": label})

    @made.register("rope")
    def rope() -> Tool:
        """Ties things."""
        return Tool({})

    return made


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("rope", "rope", {}),
        ("rope?", "rope", {}),
        ("a?x=1&y=2", "a", {"x": "1", "y": "2"}),
        ("a?x=", "a", {"x": ""}),
        ("a?x=b=c", "a", {"x": "b=c"}),
        ("judge?llm=openai/gpt-5&style=pairwise", "judge", {"llm": "openai/gpt-5", "style": "pairwise"}),
        ("a?x=(one two&three)", "a", {"x": "one two&three"}),
        ("a?x=(b?y=(c?z=1&w=2))&v=(my) (file)", "a", {"x": "b?y=(c?z=1&w=2)", "v": "(my) (file)"}),
        ("a?x=what?", "a", {"x": "what?"}),
        ("a?&x=1&", "a", {"x": "1"}),
    ],
)
def test_a_spec_is_a_name_with_options(text, name, options):
    assert Spec.parse(text) == Spec(name, options)


KEYS = st.text(min_size=1).filter(lambda key: not set(key) & set("=&()"))


VALUES = st.recursive(
    st.text().map(lambda text: text.replace("(", "").replace(")", "")),
    lambda inner: st.tuples(inner, inner, inner).map(lambda parts: f"{parts[0]}({parts[1]}){parts[2]}"),
    max_leaves=6,
)


@given(st.text(min_size=1).filter(lambda name: "?" not in name), st.dictionaries(KEYS, VALUES))
def test_a_spec_survives_the_way_through_text(name, options):
    assert Spec.parse(str(Spec(name, options))) == Spec(name, options)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "'' has no name; a spec is `name` or `name?key=value&key=value`"),
        ("?x=1", "'?x=1' has no name"),
        ("a?x", "'x' in 'a?x' is not key=value"),
        ("a?=1", "'=1' in 'a?=1' is not key=value"),
        ("a?x=1&x=2", "'x' is given twice in 'a?x=1&x=2'"),
        ("a?x=(b?y=1", "'x=(b?y=1' has a parenthesis without its other half"),
        ("a?x=b)", "'x=b)' has a parenthesis without its other half"),
    ],
)
def test_a_spec_that_cannot_be_read_says_why(text, what):
    with pytest.raises(BadSpec) as caught:
        Spec.parse(text)
    assert str(caught.value).startswith(what)


def test_options_take_the_types_of_the_factory():
    made = tools().make("hammer?size=3&weight=2&steel=true&path=a/b&grip=rubber&label=7")
    assert made.settings == {
        "size": 3,
        "weight": 2.0,
        "steel": True,
        "path": Path("a/b"),
        "grip": "rubber",
        "label": "7",
    }
    assert isinstance(made.settings["weight"], float)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hammer?size=big", "tool 'hammer': size='big': Input should be a valid integer"),
        ("hammer?size=1.5", "tool 'hammer': size='1.5': Input should be a valid integer"),
        ("hammer?size=1&weight=x", "tool 'hammer': weight='x': Input should be a valid number"),
        ("hammer?size=1&steel=maybe", "tool 'hammer': steel='maybe': Input should be a valid boolean"),
        ("hammer?size=1&grip=glass", "tool 'hammer': grip='glass': Input should be 'wood' or 'rubber'"),
        ("hammer?grip=wood", "tool 'hammer' needs size=…"),
        ("hamer?size=1", "no tool named 'hamer'; did you mean 'hammer'?"),
        ("zzzz", "no tool named 'zzzz'; there are: hammer, rope"),
        ("hammer?siz=1", "no option of tool 'hammer' named 'siz'; did you mean 'size'?"),
        ("hammer?zzz=1", "no option of tool 'hammer' named 'zzz'; it takes: size, weight, steel, path, grip, label"),
        ("rope?x=1", "no option of tool 'rope' named 'x'; it takes none"),
    ],
)
def test_a_wrong_name_or_option_is_named_with_the_nearest_or_all_before_anything_is_built(text, what):
    for use in (tools().make, lambda text: tools().check(Spec.parse(text))):
        with pytest.raises(BadInput) as caught:
            use(text)
        assert str(caught.value).startswith(what)


@dataclass(frozen=True)
class Finish:
    coats: int = 1
    colour: str = "oak"


def test_settings_that_come_as_a_dataclass_are_options_like_any_other():
    made = tools()

    @made.register("chair")
    def chair(legs: int, finish: Finish) -> Tool:
        return Tool({"legs": legs, "finish": finish})

    assert made.make("chair?legs=4&coats=2").settings == {"legs": 4, "finish": Finish(coats=2)}
    assert made.make("chair?legs=4").settings["finish"] == Finish()
    assert made.about("chair").options == ["legs", "coats=1", "colour=oak"]
    with pytest.raises(BadSpec, match=r"tool 'chair': coats='many': Input should be a valid integer"):
        made.make("chair?legs=4&coats=many")
    with pytest.raises(UnknownName, match=r"no option of tool 'chair' named 'color'; did you mean 'colour'"):
        made.make("chair?legs=4&color=red")


def test_a_summary_is_the_first_line_and_options_show_their_defaults():
    made = tools()
    assert made.about("hammer").what == "Drives nails."
    assert made.about("hammer").options[:3] == ["size", "weight=1.5", "steel=False"]
    assert made.about("rope").options == []


def test_two_things_cannot_share_a_name():
    made = tools()
    with pytest.raises(BadSpec, match=r"two tools are named 'rope'"):
        made.register("rope")(lambda: Tool({}))


class Point:
    """An entry point of another package."""

    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.name, self.load, self.value, self.dist = name, load, "other.module:factory", None


def broken_load() -> Any:
    raise ImportError("No module named 'gone'")


def exits() -> Any:
    raise SystemExit(3)


def unannotated(x: "Nowhere") -> Tool:  # noqa: F821, UP037
    return Tool({})


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (broken_load, "ImportError: No module named 'gone'"),
        (exits, "SystemExit: 3"),
        (lambda: unannotated, "NameError"),
        (lambda: 5, "TypeError"),
    ],
)
def test_a_broken_package_harms_no_other_name(load, why, monkeypatch):
    points = [Point("saw", load), Point("drill", lambda: lambda: Tool({"drill": 1}))]
    monkeypatch.setattr(registry_module, "entry_points", lambda group: points)
    made = tools()
    assert made.make("hammer?size=1").settings["size"] == 1
    assert made.make("drill") == Tool({"drill": 1})
    assert list(made) == ["drill", "hammer", "rope", "saw"]
    assert why in made.about("saw").what
    assert made.about("saw").options == []
    with pytest.raises(BadSpec, match=f"tool 'saw' of other.module:factory cannot be used: {why}"):
        made.make("saw")


def test_what_is_declared_has_the_name_of_its_entry_point(monkeypatch):
    """Tables look for the name in the object, the command line for that of the entry point."""

    def condition(name: str) -> Condition:
        return Condition(name=name, shows="", build=lambda *_: None)

    points = [Point("newest", lambda: condition("newest")), Point("oldest", lambda: condition("first"))]
    monkeypatch.setattr(registry_module, "entry_points", lambda group: points)
    made = Declared("condition", Condition, "name", "prb.prompts", "prb.conditions")
    assert list(made) == ["newest"]
    assert made.problems == [
        "condition 'oldest' of other.module:factory cannot be used: ValueError: its name is 'first'"
    ]
    with pytest.raises(BadSpec, match="its name is 'first'"):
        made["oldest"]


MINE = """
class Shortest:
    fingerprint = "shortest-1"

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def score(self, asks):
        return [-self.weight * len(ask.answer) for ask in asks]

READY = Shortest(3.0)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE, "utf-8")
    return tmp_path / "mine.py"


def test_a_name_may_be_a_class_in_a_file(mine):
    made: Any = tools().make(f"{mine}:Shortest?weight=2")
    assert made.weight == 2.0
    mine.write_text(MINE.replace("weight: float = 1.0", "weight=1.0"), "utf-8")
    made = tools().make(f"{mine}:Shortest?weight=2")
    assert made.weight == 2.0  # of the type of its default
    ready: Any = tools().make(f"{mine}:READY")
    assert ready.weight == 3.0


def test_the_fingerprint_of_a_model_from_a_file_follows_the_file(mine):
    first: Any = tools().make(f"{mine}:Shortest")
    assert first.fingerprint.startswith("shortest-1-")
    mine.write_text(MINE + "# another line", "utf-8")
    second: Any = tools().make(f"{mine}:Shortest")
    assert second.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("FOLDER/gone.py:Shortest", "gone.py does not exist"),
        ("FOLDER/mine.py", "mine.py' is a file; "),
        ("FOLDER/mine.py:Shortst", "named 'Shortst'; did you mean 'Shortest'?"),
        ("FOLDER/mine.py:Shortest?weight=x", "weight='x'"),
        ("FOLDER/broken.py:Shortest", "broken.py cannot be used: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(spec, says, mine):
    (mine.parent / "broken.py").write_text("1 / 0", "utf-8")
    with pytest.raises(BadInput, match=re.escape(says)):
        tools().make(spec.replace("FOLDER", str(mine.parent)))
