"""Names to things: `MODELS.make("embedding?encoder=minilm")`.

A registry knows the modules of its own package (each adds itself with one decorator) and whatever other
installed packages declare under its entry-point group. Both are looked at when a name is first asked for.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
        parameters = inspect.signature(self[name]).parameters.values()
        return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]

    def _add(self, name: str, factory: Factory[T]) -> None:
        if self._factories.setdefault(name, factory) is not factory:
            raise BadSpec(f"two {self.kind}s are named {name!r}: {self._factories[name]} and {factory}")

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        for module in pkgutil.iter_modules(import_module(self._package).__path__):
            import_module(f"{self._package}.{module.name}")
        for point in entry_points(group=self._group):
            self._add(point.name, point.load())


def _arguments(factory: Callable[..., Any], spec: Spec, kind: str) -> dict[str, Any]:
    from pydantic import TypeAdapter, ValidationError

    parameters = inspect.signature(factory).parameters
    hints = get_type_hints(factory)
    values: dict[str, Any] = {}
    for key, text in spec.options.items():
        if key not in parameters:
            raise unknown(f"option of {kind} {spec.name!r}", key, parameters, hint=_takes(parameters))
        try:
            values[key] = TypeAdapter(hints.get(key, str)).validate_strings(text)
        except ValidationError as error:
            raise BadSpec(f"{kind} {spec.name!r}: {key}={text!r}: {error.errors()[0]['msg']}") from None
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in values]
    if missing:
        raise BadSpec(f"{kind} {spec.name!r} needs {', '.join(f'{m}=…' for m in missing)}")
    return values


def _takes(parameters: Mapping[str, inspect.Parameter]) -> str:
    return f"it takes: {', '.join(parameters)}" if parameters else "it takes none"
