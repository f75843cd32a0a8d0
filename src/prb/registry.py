"""Spec strings ↔ objects: `MODELS.make("embedding?encoder=minilm")`.

A registry finds what its own module or package registers with one decorator, and whatever other installed packages
declare under its entry-point group. A broken entry point is reported when its name is used, and affects no other name.
`mine.py:Shortest` names what that file defines.
"""

from __future__ import annotations

import hashlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from prb.errors import BadInput, BadSpec, PrbError, explain_import, unknown

T = TypeVar("T")
R = TypeVar("R")
Factory = Callable[..., T]
FROM_FILE = "prb_file_"
"""How the names of modules begin that a spec `x.py:Name` imported."""
_FILE = re.compile(r"(.+\.py):(\w+)")
_CODE = re.compile(r"\.py:\w|trust_remote_code=(?!false\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Spec:
    """A parsed `name?key=value&key=value`; `str(spec)` is the text again.

    A value that has options of its own stands in parentheses: `noisy?model=(embedding?encoder=minilm)&sd=0.3`.
    """

    name: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Spec:
        name, _, query = text.partition("?")
        if not name:
            raise BadSpec(f"{text!r} has no name; a spec is `name` or `name?key=value&key=value`")
        options: dict[str, str] = {}
        for part in filter(None, split_outside(query, "&")):
            key, equals, value = part.partition("=")
            if not key or not equals:
                raise BadSpec(f"{part!r} in {text!r} is not key=value")
            if key in options:
                raise BadSpec(f"{key!r} is given twice in {text!r}")
            options[key] = without_parentheses(value)
        return cls(name, options)

    def __str__(self) -> str:
        parts = []
        for key, value in self.options.items():
            plain = "?" not in value and len(split_outside(value, "&")) == 1 and without_parentheses(value) == value
            parts.append(f"{key}={value}" if plain else f"{key}=({value})")
        return f"{self.name}?{'&'.join(parts)}" if parts else self.name


def split_outside(text: str, mark: str) -> list[str]:
    """The parts between marks that are not inside parentheses."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == mark and not depth:
            parts.append(text[start:position])
            start = position + 1
    if depth:
        raise BadSpec(f"{text!r} has a parenthesis without its other half")
    return [*parts, text[start:]]


def without_parentheses(text: str) -> str:
    """What is inside, if one pair of parentheses holds all of it."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[1:-1] if position and position == len(text) - 1 else text
    return text


def names_code(text: str) -> bool:
    """Whether a spec, or one inside it, runs the code of a file or of a checkpoint. What others hand over (heads,
    shards, configs) must not; on the command line and in Python one may."""
    return bool(_CODE.search(text))


def split_alias(text: str) -> tuple[str, str]:
    """`short:=judge?llm=…` gives a model a short name in tables; a spec alone is its own name."""
    alias, mark, spec = text.partition(":=")
    return (alias, spec) if mark and alias and "?" not in alias else (text, text)


class Discovered(Generic[T]):
    """Objects by name: ours, which `package` adds, and those that other installed packages declare under an entry-point
    group. Both are imported when a name is first looked up."""

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind, self._package, self._group = kind, package, group
        self._known: dict[str, T] = {}
        self._broken: dict[str, str] = {}
        """Names that other packages declare and that cannot be used, and why."""
        self._discovered = False

    def add(self, name: str, found: T) -> T:
        if self._known.setdefault(name, found) is not found:
            raise BadSpec(f"two {self.kind}s are named {name!r}: {self._known[name]} and {found}")
        return found

    def look_up(self, name: str) -> T:
        """An unknown name is an error that says the nearest one."""
        self._discover()
        if name in self._broken:
            raise BadSpec(f"{self.kind} {name!r} {self._broken[name]}")
        if name not in self._known:
            raise unknown(self.kind, name, self._known)
        return self._known[name]

    @property
    def problems(self) -> list[str]:
        """What other packages declare and cannot be used, one sentence each."""
        self._discover()
        return [f"{self.kind} {name!r} {why}" for name, why in self._broken.items()]

    def _check(self, name: str, found: T) -> None:
        """Raise if what another package declares under a name cannot be used."""

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True  # while modules are imported they may ask for what is known so far
        try:
            home = import_module(self._package)
            for module in pkgutil.iter_modules(getattr(home, "__path__", ())):
                import_module(f"{self._package}.{module.name}")
        except BaseException:
            self._discovered = False
            raise
        for point in entry_points(group=self._group):
            try:
                found = point.load()
                self._check(point.name, found)
                self.add(point.name, found)
            except (Exception, SystemExit) as error:  # third-party code: anything can be wrong with it
                package = point.dist.name if point.dist else point.value
                self._broken[point.name] = f"of {package} cannot be used: {type(error).__name__}: {error}"


class About(NamedTuple):
    """A registered name in lists."""

    name: str
    what: str
    """In one line; of a name that cannot be used, why."""
    options: list[str]
    """As `key=default`, or `key` alone."""
    about: str
    """At length."""


class Registry(Discovered[Callable[..., T]]):
    """Factories by the name that specs give them."""

    def register(self, name: str) -> Callable[[Factory[T]], Factory[T]]:
        return partial(self.add, name)

    def make(self, text: str) -> T:
        return self.build(Spec.parse(text))

    def build(self, spec: Spec) -> T:
        factory = self[spec.name]
        arguments = typed_options(factory, spec, self.kind)
        try:
            with redirect_stdout(sys.stderr):  # stdout is for results
                made = factory(**arguments)
        except ImportError as error:
            raise explain_import(f"{self.kind} {spec.name!r}", error) from None
        if file := _FILE.fullmatch(spec.name):
            with suppress(AttributeError):  # a read-only fingerprint is its author's business
                made.fingerprint = f"{getattr(made, 'fingerprint', spec)}-{_file_hash(file[1])}"  # type: ignore[attr-defined]
        return made

    def check(self, spec: Spec) -> dict[str, Any]:
        """The arguments of the factory. Raises what `build` would for a wrong name or option, and builds nothing."""
        return typed_options(self[spec.name], spec, self.kind)

    def __getitem__(self, name: str) -> Factory[T]:
        if file := _FILE.fullmatch(name):
            return _from_file(file[1], file[2])
        if name.endswith(".py"):
            raise BadSpec(f"{name!r} is a file; {name}:NAME says which class or function of it is meant")
        return self.look_up(name)

    def __contains__(self, name: str) -> bool:
        self._discover()
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted({*self._known, *self._broken}))

    def about(self, name: str) -> About:
        if name in self._broken:
            return About(name, self._broken[name], [], "")
        text, settings = inspect.getdoc(self[name]) or "", _settings(self[name]).values()
        options = [s.name if s.default is inspect.Parameter.empty else f"{s.name}={s.default}" for s in settings]
        return About(name, text.split("\n", 1)[0], options, " ".join(text.split()))

    def _check(self, name: str, found: Factory[T]) -> None:  # noqa: ARG002
        _settings(found)


class Declared(Discovered[T], Mapping[str, T]):
    """Objects of a type by the name that they have in their field `named_by`, in the order of their declaration."""

    def __init__(self, kind: str, of: type[T], named_by: str, package: str, group: str) -> None:
        super().__init__(kind, package, group)
        self._type, self._named_by = of, named_by

    __eq__, __hash__ = object.__eq__, object.__hash__  # one object, whatever it holds so far

    def __getitem__(self, key: str) -> T:
        self._discover()
        if key not in self._known and key not in self._broken:
            raise KeyError(key)
        return self.look_up(key)

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(self._known)

    def __len__(self) -> int:
        self._discover()
        return len(self._known)

    def call(self, name: str, function: Callable[..., R], *arguments: Any) -> R:
        """What a declared function returns; what goes wrong in somebody else's is one line that names it."""
        try:
            return function(*arguments)
        except Exception as error:
            if isinstance(error, PrbError) or function.__module__.startswith("prb."):
                raise
            raise BadInput(f"{self.kind} {name!r} failed: {type(error).__name__}: {error}") from error

    def _check(self, name: str, found: T) -> None:
        if not isinstance(found, self._type):
            raise TypeError(f"not a {self._type.__name__}")
        if (own := getattr(found, self._named_by)) != name:
            raise ValueError(f"its {self._named_by} is {own!r}")


def _from_file(path: str, name: str) -> Factory[Any]:
    """What a Python file calls `name`: a class, a function that returns the object, or the object."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise BadSpec(f"{path} does not exist")
    module_name = f"{FROM_FILE}{_file_hash(path)}"
    if module_name not in sys.modules:
        loader = spec_from_file_location(module_name, file)
        assert loader is not None
        assert loader.loader is not None
        module = module_from_spec(loader)
        sys.modules[module_name] = module
        sys.path.append(str(file.resolve().parent))  # as for a script: it may import its neighbors
        try:
            with redirect_stdout(sys.stderr):
                loader.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # third-party code: anything can be wrong with it
            del sys.modules[module_name]
            raise BadSpec(f"{path} cannot be used: {type(error).__name__}: {error}") from None
    content = vars(sys.modules[module_name])
    if name not in content:
        raise unknown(f"name in {path}", name, [key for key in content if not key.startswith("_")])
    found = content[name]
    return found if callable(found) else lambda: found


def _file_hash(path: str) -> str:
    return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Setting:
    """One option a spec may carry: a parameter of the factory, or a field of a parameter that is a dataclass."""

    name: str
    hint: Any
    default: Any
    parameter: str | None = None
    """The dataclass parameter this is a field of."""


def _settings(factory: Callable[..., Any]) -> dict[str, Setting]:
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    settings: dict[str, Setting] = {}
    for parameter in inspect.signature(factory).parameters.values():
        plain = type(parameter.default) if isinstance(parameter.default, int | float) else str
        hint = hints.get(parameter.name, plain)
        if is_dataclass(hint):
            field_hints = get_type_hints(hint, include_extras=True)
            for f in fields(hint):
                settings[f.name] = Setting(f.name, field_hints[f.name], f.default, parameter.name)
        else:
            settings[parameter.name] = Setting(parameter.name, hint, parameter.default)
    return settings


def typed_options(factory: Callable[..., Any], spec: Spec, kind: str) -> dict[str, Any]:
    """The options of a spec with their types, as the factory, a function or a class, takes them."""
    from pydantic import TypeAdapter, ValidationError

    settings = _settings(factory)
    arguments: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {s.parameter: {} for s in settings.values() if s.parameter}
    for key, text in spec.options.items():
        if key not in settings:
            hint = f"it takes: {', '.join(settings)}" if settings else "it takes none"
            raise unknown(f"option of {kind} {spec.name!r}", key, settings, hint=hint)
        try:
            value = TypeAdapter(settings[key].hint).validate_strings(text)
        except ValidationError as error:
            raise BadSpec(f"{kind} {spec.name!r}: {key}={text!r}: {error.errors()[0]['msg']}") from None
        groups.get(settings[key].parameter or "", arguments)[key] = value
    missing = [s.name for s in settings.values() if s.default is inspect.Parameter.empty and s.name not in spec.options]
    if missing:
        raise BadSpec(f"{kind} {spec.name!r} needs {', '.join(f'{m}=…' for m in missing)}")
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    return arguments | {parameter: hints[parameter](**values) for parameter, values in groups.items()}
