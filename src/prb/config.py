"""Settings: one class per verb is its Python API, its flags, its `config.json` and its digest.

    @config
    class EvaluateConfig(OutputConfig, UserConfig, DataConfig):
        batch: Count = 64
        '''Rows per batch; a crash loses at most the batches under way.'''

`@config` makes a frozen pydantic dataclass, so a value is checked in the same way whether it comes from a keyword, a
flag or a file. A wrong one raises `BadInput` before anything is read, written or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, dataclass_transform, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import ArgsKwargs, PydanticCustomError

from prb.errors import BadInput, unknown
from prb.hashing import short_digest
from prb.registry import Spec, typed_options
from prb.runs import CONFIG, read_json
from prb.summary import CONDITIONS
from prb.types import is_remote, writable

T = TypeVar("T")

LARGEST = 2**63 - 1
"""The largest integer that JSON readers, NumPy and SQLite can all hold."""


def _not_boolean(value: Any) -> Any:
    if isinstance(value, bool):  # Python would read it as 0 or 1
        raise PydanticCustomError("int_type", "should be a whole number")
    return value


def _not_empty(value: Any) -> Any:
    if value == "":  # `Path` would read it as the working folder
        raise PydanticCustomError("too_short", "should not be empty")
    return value


def _as_tuple(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        raise PydanticCustomError("tuple_type", "should have an order, such as a tuple")
    if callable(value) or hasattr(value, "fingerprint"):
        raise PydanticCustomError("object_given", "is an object")
    return (value,) if isinstance(value, (str, Path, int)) else value


_Whole = BeforeValidator(_not_boolean)
Count = Annotated[int, _Whole, Field(ge=1, le=LARGEST)]
Size = Annotated[int, _Whole, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, _Whole, Field(ge=0, le=2**32 - 1)]
"""The range of NumPy's generators."""
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, Path) else v), StringConstraints(min_length=1)]
"""A dataset or a spec: never empty; a `Path` is accepted too."""
Place = Annotated[Path, BeforeValidator(_not_empty)]
"""A file or a folder."""
_AsTuple = BeforeValidator(_as_tuple)


@dataclass(frozen=True)
class Flag:
    """How a field is written on the command line, if not as `--name VALUE`."""

    positional: bool = False
    either: bool = False
    """Positional, and `--name VALUE` means the same, as in verbs that take it as a flag."""
    repeated: bool = False
    words: bool = False
    """One flag takes several words, as the shell makes of `runs/*`."""
    once: bool = False
    """Refused if given twice, because other verbs allow repeating it."""
    rare: bool = False
    """Listed by `--help-all` only."""


Positional = Annotated[T, Flag(positional=True)]
PositionalOrFlag = Annotated[T, Flag(positional=True, either=True)]
"""The first positional argument; verbs have at most one of these."""
Single = Annotated[T, Flag(once=True)]
Rare = Annotated[T, Flag(rare=True)]
"""A setting that few people turn: `--help` leaves it out, `--help-all` lists it."""
Repeated = Annotated[tuple[T, ...], _AsTuple, Flag(repeated=True)]
"""`Repeated[str]`: a flag that may be given several times; in Python one value or a sequence of them."""
Words = Annotated[tuple[T, ...], _AsTuple, Flag(repeated=True, words=True)]
"""As `Repeated`, and one flag takes several words: `--bench runs/a runs/b`."""
PositionalWords = Annotated[tuple[T, ...], _AsTuple, Flag(repeated=True, positional=True)]


@dataclass(frozen=True)
class OneOf:
    """The names that a field may hold, for help texts; they are known only when first asked for."""

    names: Collection[str]


def _known_condition(name: str) -> str:
    if name not in CONDITIONS:
        *others, last = map(repr, CONDITIONS)
        raise PydanticCustomError("literal_error", "unknown", {"expected": f"{', '.join(others)} or {last}"})
    return name


ConditionName = Annotated[str, AfterValidator(_known_condition), OneOf(CONDITIONS)]
"""The name of a registered condition."""
Donors = Literal["matched", "any"]
HistoryKind = Literal["posts", "choices", "both"]
Masking = Literal["auto", "on", "off"]
RankerName = Literal["embedding", "bm25", "recency"]


@dataclass(frozen=True)
class ShownHistory:
    """`posts?ranker=bm25&budget=2000`: which part of a user's history is shown, and how it is picked."""

    kind: HistoryKind = "both"
    choices: Size = 8
    """How many past choices are shown."""
    budget: Size | None = None
    """At most this many tokens of posts, and the same again for choices, estimated as characters / 4."""
    ranker: RankerName = "embedding"
    """How to pick the posts and choices to show."""
    donors: Donors = "matched"
    """Whose history condition `shuffled` shows: that of a user with the same topic, else category; or of any user."""

    @classmethod
    def parse(cls, text: str) -> Self:
        spec = Spec.parse(text)
        if spec.name not in (kinds := get_args(HistoryKind)):
            raise unknown("history", spec.name, kinds)
        return cls(**typed_options(cls, replace(spec, options={"kind": spec.name, **spec.options}), "history"))

    def __str__(self) -> str:
        changed = {f.name: str(getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default}
        return str(Spec(self.kind, {name: value for name, value in changed.items() if name != "kind"}))


HistorySpec = Annotated[str, AfterValidator(lambda text: str(ShownHistory.parse(text)))]
"""A `ShownHistory` as text, without options that have their default value."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a class of settings; see the docstring of this module."""
    options = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    return pydantic_dataclass(frozen=True, kw_only=True, config=options)(cls)  # type: ignore[return-value]


ONLY_GIVEN = frozenset({"out", "hook", "engine"})
"""Settings that write, call or run something: only the command line and Python set them, never a file."""


@config
class Settings:
    """What all classes of settings share."""

    verb: ClassVar[str] = ""
    """The name of these settings in `config.json`, if `--config FILE_OR_RUN` repeats those of an earlier run."""
    presentation: ClassVar[frozenset[str]] = frozenset({"json", "quiet"})
    """Fields that cannot change a result, so a resumed run may differ in them; a class names its own."""

    json: bool = False
    """Print the result as JSON to stdout."""
    quiet: bool = False
    """Show no progress."""

    def __init_subclass__(cls) -> None:
        cls.presentation = frozenset().union(*(getattr(base, "presentation", ()) for base in cls.__mro__))

    @model_validator(mode="wrap")
    @classmethod
    def explain_errors(cls, values: Any, validate: Any) -> Self:
        try:
            settings: Self = validate(values)
        except ValidationError as error:
            lines = []
            for one in error.errors():
                name, given = str(one["loc"][0]) if one["loc"] else "", one["input"]
                plain = given is None or isinstance(given, str | int | float)
                shown = repr(given) if plain else f"a {type(given).__name__}"  # perhaps a table of somebody's data
                if plain and one["type"].startswith(("greater", "less")):  # a number, perhaps given as text
                    shown = str(given)
                if message := MESSAGES.get(one["type"]):
                    lines.append(message.format(name=name, given=shown, **one.get("ctx", {})).removeprefix(": "))
                else:
                    lines.append(f"{name}: {one['msg'].removeprefix('Input ')}, not {shown}")
            raise BadInput("\n  ".join(lines)) from None
        for field in fields(settings):
            value = getattr(settings, field.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and writable(text) != text:
                    raise BadInput(f"{field.name} must be valid UTF-8, not {text!r}")
        return settings

    @classmethod
    def of(cls, settings: object, changes: Mapping[str, Any]) -> Self:
        """A config, or its fields as keywords, or both: `evaluate(config, k=5)`."""
        if isinstance(settings, cls):
            return cls(**{**{f.name: getattr(settings, f.name) for f in fields(settings)}, **changes})
        return cls(**changes)

    @classmethod
    def restore(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """The settings in the content of a `config.json`, which may come from somebody else: it does not say where to
        write, what to call or which machines to use."""
        if given := sorted(ONLY_GIVEN & cls.presentation & content[cls.verb].keys()):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise BadInput(f"{', '.join(given)} cannot come from a file; on the command line it is {flags}")
        return dict(content[cls.verb])

    def saved(self) -> dict[str, Any]:
        """The fields that can change a result, as JSON holds them."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.presentation}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


@config
class DataConfig(Settings):
    """Which rows."""

    dataset: Name = "mirror"
    """A name, a file, a folder, or hub:owner/name."""
    split: str | None = None
    """Which split; `all` for all of them. Default: `test` where rows have splits, else all rows."""
    limit: Count | None = None
    """At most N rows of the split, spread over clusters; twins stay together. Independent of --seed."""
    skip_bad: Rare[bool] = False
    """Use the good rows of a file with errors, and report how many were left out."""


@config
class MaskingConfig(Settings):
    """What leaves the machine."""

    mask_pii: Rare[Masking] = "auto"
    """Mask e-mail addresses, phone numbers, IBANs and handles; auto: only for models on other machines."""

    def masks(self, reader: object) -> bool:
        """Whether texts are masked before `reader` gets them."""
        return self.mask_pii == "on" or (self.mask_pii == "auto" and is_remote(reader))


@config
class UserConfig(MaskingConfig):
    """What is shown of the user."""

    history: HistorySpec = "both"
    """What is shown of the user's history: `posts`, `choices` or `both`, with options such as
    `posts?ranker=bm25&budget=2000`: ranker (embedding, bm25, recency), budget (tokens), choices (how many, 8), donors
    (whose history is shown under `shuffled`: matched by topic, or any)."""
    k: Size = 10
    """How many posts of the history are shown."""
    planner: Rare[Name] = "extractive"
    """How condition `plan` infers what the user wants."""

    @property
    def shown(self) -> ShownHistory:
        return ShownHistory.parse(self.history)


rehearsed_in: ContextVar[Callable[[Path], Path]] = ContextVar("rehearsed_in", default=lambda folder: folder)
"""Where a run writes, given its folder: a dry run does in a copy that is thrown away."""


@config
class OutputConfig(Settings):
    """Where results go."""

    presentation: ClassVar[frozenset[str]] = frozenset({"out"})

    out: Place | None = None
    """Folder of the run; the same command resumes it. Default: a folder in runs/ named after these settings."""

    def folder(self, name: str, *data: str) -> Path:
        """`out`, or a folder named after the job and a digest of all that can change its result: the settings, and the
        fingerprints of the data, so that the same command on edited data is another run."""
        readable = "".join(c if c.isalnum() else "-" for c in name)[:60].strip("-")  # file systems allow 255 bytes
        return rehearsed_in.get()(self.out or Path("runs") / f"{readable}-{short_digest([self.saved(), *data])}")


@config
class EngineConfig(Settings):
    """Where it is computed."""

    presentation: ClassVar[frozenset[str]] = frozenset({"engine"})

    engine: Rare[Name] = "local"
    """`local`, or `ray?address=…&actors=8&gpus=1`: replicas of the model on a Ray cluster, with the same results."""


@config
class PresetConfig(Settings):
    """Published settings."""

    paper: ClassVar[Mapping[str, Any]] = {}
    """What the paper's scripts fix; any other value contradicts the preset."""
    paper_choices: ClassVar[Mapping[str, Any]] = {}
    """What the paper uses where its scripts leave a choice; filled in unless given."""

    preset: Literal["none", "paper"] = "none"
    """paper: the settings of the paper's released scripts where you give none; docs/downstream.md lists them."""

    @property
    def policy_prompt(self) -> Literal["prb", "paper"]:
        """What the policy reads: the query as reward models read it, or the paper's instructions with the query."""
        return "paper" if self.preset == "paper" else "prb"

    @model_validator(mode="before")
    @classmethod
    def fill_in(cls, values: Any) -> Any:
        if not isinstance(values, ArgsKwargs) or (values.kwargs or {}).get("preset") != "paper":
            return values
        return ArgsKwargs(values.args, {**cls.paper, **cls.paper_choices, **(values.kwargs or {})})

    @model_validator(mode="after")
    def check_preset(self) -> Self:
        for name, value in self.paper.items() if self.preset == "paper" else ():
            if getattr(self, name) != value:
                raise BadInput(f"preset paper has {name} {value}, not {getattr(self, name)}; leave out one of the two")
        return self


def read_config(path: Path, settings: type[Settings]) -> dict[str, Any]:
    """The settings of a verb from a `config.json`, or from a run folder that holds one."""
    path = path / CONFIG if path.is_dir() else path
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get(settings.verb), dict):
        raise BadInput(f"{path} holds no settings of `prb {settings.verb}`")
    return settings.restore(content)


MESSAGES = {
    "unexpected_keyword_argument": "there is no setting {name!r}",
    "missing": "{name} is required",
    "int_parsing": "{name} must be a whole number, not {given}",
    "int_type": "{name} must be a whole number, not {given}",
    "float_parsing": "{name} must be a number, not {given}",
    "greater_than_equal": "{name} must be at least {ge}, not {given}",
    "greater_than": "{name} must be greater than {gt}, not {given}",
    "less_than_equal": "{name} must be at most {le}, not {given}",
    "less_than": "{name} must be less than {lt}, not {given}",
    "literal_error": "{name} must be {expected}, not {given}",
    "too_short": "{name} must not be empty",
    "value_error": "{name}: {error}",
    "object_given": "{name} must be a spec, such as 'embedding'; objects and functions are given as {name}s=[…]",
}
"""By pydantic's kind of error, in the words of this project."""
