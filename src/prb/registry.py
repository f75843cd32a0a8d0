"""Names to things: `MODELS.make("embedding?encoder=minilm")`.

A registry knows the modules of its own package (each adds itself with one decorator) and whatever other
installed packages declare under its entry-point group. Both are looked at when a name is first asked for.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, get_type_hints
from urllib.parse import unquote

from prb.errors import BadSpec, unknown

T = TypeVar("T")
Factory = Callable[..., T]


@dataclass(frozen=True)
class Spec:
    """A parsed `name?key=value&key=value`."""

    name: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Spec:
        name, _, query = text.partition("?")
        if not name:
            raise BadSpec(f"{text!r} has no name; a spec is `name` or `name?key=value&key=value`")
        options: dict[str, str] = {}
        for part in filter(None, query.split("&")):
            key, equals, value = part.partition("=")
            if not key or not equals:
                raise BadSpec(f"{part!r} in {text!r} is not key=value")
            if key in options:
                raise BadSpec(f"{key!r} is given twice in {text!r}")
            options[key] = unquote(value)
        return cls(name, options)


class Registry(Generic[T]):
    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind = kind
        self._package = package
        self._group = group
        self._factories: dict[str, Factory[T]] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[Factory[T]], Factory[T]]:
        def add(factory: Factory[T]) -> Factory[T]:
            self._add(name, factory)
            return factory

        return add

    def make(self, text: str) -> T:
        """Build what a spec string names; the string is all there is to know."""
        return self.build(Spec.parse(text))

    def build(self, spec: Spec) -> T:
        factory = self[spec.name]
        return factory(**_arguments(factory, spec, self.kind))

    def check(self, spec: Spec) -> None:
        """Raise what `build` would raise for a wrong name or option, without building anything."""
        _arguments(self[spec.name], spec, self.kind)

    def __getitem__(self, name: str) -> Factory[T]:
        self._discover()
        if name not in self._factories:
            raise unknown(self.kind, name, self._factories)
        return self._factories[name]

    def __contains__(self, name: str) -> bool:
        self._discover()
        return name in self._factories

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._factories))

    def summary(self, name: str) -> str:
        return (inspect.getdoc(self[name]) or "").split("\n", 1)[0]

    def options(self, name: str) -> list[str]:
        """The settings a spec may carry, as `key=default`."""
        options = _options(self[name]).values()
        return [o.name if o.default is inspect.Parameter.empty else f"{o.name}={o.default}" for o in options]

    def _add(self, name: str, factory: Factory[T]) -> None:
        if self._factories.setdefault(name, factory) is not factory:
            raise BadSpec(f"two {self.kind}s are named {name!r}: {self._factories[name]} and {factory}")

    def _discover(self) -> None:
        if self._discovered:
            return
        for module in pkgutil.iter_modules(import_module(self._package).__path__):
            import_module(f"{self._package}.{module.name}")
        for point in entry_points(group=self._group):
            self._add(point.name, point.load())
        self._discovered = True


@dataclass(frozen=True)
class Option:
    """One setting of a factory: a parameter of its own, or a field of a parameter that is a dataclass of settings."""

    name: str
    hint: Any
    default: Any
    inside: str | None = None


def _options(factory: Callable[..., Any]) -> dict[str, Option]:
    hints = get_type_hints(factory)
    found: dict[str, Option] = {}
    for parameter in inspect.signature(factory).parameters.values():
        hint = hints.get(parameter.name, str)
        if is_dataclass(hint):
            own = get_type_hints(hint)
            for f in fields(hint):
                found[f.name] = Option(f.name, own[f.name], f.default, inside=parameter.name)
        else:
            found[parameter.name] = Option(parameter.name, hint, parameter.default)
    return found


def _arguments(factory: Callable[..., Any], spec: Spec, kind: str) -> dict[str, Any]:
    options = _options(factory)
    values = {key: _value(options, key, text, spec.name, kind) for key, text in spec.options.items()}
    missing = [o.name for o in options.values() if o.default is inspect.Parameter.empty and o.name not in values]
    if missing:
        raise BadSpec(f"{kind} {spec.name!r} needs {', '.join(f'{m}=…' for m in missing)}")
    arguments = {key: value for key, value in values.items() if options[key].inside is None}
    hints = get_type_hints(factory)
    for group in {o.inside for o in options.values() if o.inside}:
        arguments[group] = hints[group](**{k: v for k, v in values.items() if options[k].inside == group})
    return arguments


def _value(options: Mapping[str, Option], key: str, text: str, name: str, kind: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    if key not in options:
        takes = f"it takes: {', '.join(options)}" if options else "it takes none"
        raise unknown(f"option of {kind} {name!r}", key, options, hint=takes)
    try:
        return TypeAdapter(options[key].hint).validate_strings(text)
    except ValidationError as error:
        raise BadSpec(f"{kind} {name!r}: {key}={text!r}: {error.errors()[0]['msg']}") from None
