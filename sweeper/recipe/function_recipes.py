"""A recipe that is a function: it returns a chz Blueprint or a config, and a `main` takes what
comes of that. Loaded by path in the recipe's interpreter, to check configurations and to run one:
standard library and the recipe's chz only.

Of a configuration the function gets the values that are called as its parameters are, the config
those that are called as its fields are; what both have, both get. So tinker-cookbook's
`build_config_blueprint(model_name)` is called as its own command line calls it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing

import chz

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


class Unusable(Exception):
    """The function cannot be a recipe; says why."""


class Made(typing.NamedTuple):
    """A config, and what the function was called with."""

    config: object
    given: dict[str, object]


class Function:
    """What configurations are made by. `cls` is the class of config that the function makes when it
    is called with `arguments`; `takes` are its fields and the function's own parameters."""

    def __init__(self, function: Callable[..., object], arguments: list[str]) -> None:
        self.function = function
        self.name = str(function.__name__)
        self.parameters = inspect.signature(function).parameters
        self.cls = _class_of(self._call(arguments)[0], self.name)
        self._held: dict[str, object] = {}

    def make(self, arguments: list[str]) -> Made:
        """The config that `key=value`s make, as chz reads them. Raises what chz and the function
        raise."""
        built, given = self._call(arguments)
        cls = _class_of(built, self.name)
        fields = chz.chz_fields(cls)
        rest = [a for a in arguments if _first(a) in fields or _first(a) not in self.parameters]
        return Made(_applied(built, rest), given)

    def read(self, made: Made, key: str) -> tuple[object, str]:
        """The object in which a key is to be looked up, and the key there."""
        if key.partition(".")[0] in chz.chz_fields(type(made.config)):
            return made.config, key
        return made.given, key

    def annotation(self, field: str) -> object:
        """The type of a field, or of a parameter; for an object that the function sets, that of the
        object, whose fields are what may be given."""
        held = self._held.get(field)
        if chz.is_chz(held):
            return held.__class__
        found = chz.chz_fields(self.cls).get(field)
        if found is not None:
            return found.x_type
        try:
            return typing.get_type_hints(self.function).get(field, typing.Any)
        except Exception:  # noqa: BLE001  (evaluating it runs the recipe's code)
            return typing.Any

    def defaults(self, arguments: list[str]) -> Mapping[str, object]:
        """What the config holds when nothing else is given; nothing where it needs more."""
        try:
            config = self.make(arguments).config
        except Exception:  # noqa: BLE001  (it is told when configurations are checked)
            return {}
        self._held = {name: getattr(config, name, None) for name in chz.chz_fields(type(config))}
        return self._held

    def _call(self, arguments: list[str]) -> tuple[object, dict[str, object]]:
        given: dict[str, object] = {}

        @functools.wraps(self.function)
        def recording(*places: object, **values: object) -> object:
            given.update(values)
            return self.function(*places, **values)

        own = [argument for argument in arguments if _first(argument) in self.parameters]
        return chz.Blueprint(recording).make_from_argv(own), given


def _first(argument: str) -> str:
    """The field that a `key=value` is for."""
    return argument.partition("=")[0].partition(".")[0]


def _class_of(built: object, name: str) -> type[object]:
    """The class of config that it is, or makes."""
    if isinstance(built, chz.Blueprint):
        cls = typing.cast("chz.Blueprint[object]", built).target
        what = f"a Blueprint of {cls!r}"
    else:
        cls, what = built.__class__, built.__class__.__name__
    if not (isinstance(cls, type) and chz.is_chz(cls)):
        raise Unusable(f"{name}() returns {what}, not a chz config or a Blueprint of one")
    return cls


def _applied(built: object, arguments: list[str]) -> object:
    """The config with the arguments over what the function has set. chz takes no argument for a
    field of an object that a Blueprint holds whole: that one is then taken apart."""
    if not isinstance(built, chz.Blueprint):
        return _over(built, arguments)
    blueprint = typing.cast("chz.Blueprint[object]", built)
    deep = [argument for argument in arguments if "." in argument.partition("=")[0]]
    if not deep:
        return blueprint.clone().make_from_argv(list(arguments))
    try:
        return blueprint.clone().make_from_argv(list(arguments))
    except chz.blueprint.InvalidBlueprintArg as error:
        flat = [argument for argument in arguments if argument not in deep]
        try:
            whole = blueprint.clone().make_from_argv(flat)
        except chz.blueprint.MissingBlueprintArg:
            raise error from None
        return _over(whole, deep)


def _over(config: object, arguments: list[str]) -> object:
    if not arguments:
        return config
    values = chz.beta_to_blueprint_values(config)  # pyright: ignore[reportUnknownMemberType]
    return chz.Blueprint(type(config)).apply(values).make_from_argv(list(arguments))


def consumer(module: ModuleType, cls: type[object]) -> Callable[[object], object]:
    """The function that takes the config: the recipe's own `main`, else that of the module which
    defines the config's class."""
    places = [module, sys.modules.get(cls.__module__)]
    for place in places:
        found = getattr(place, "main", None)
        if callable(found) and not isinstance(found, type) and _takes_one(found):
            return found
    names = dict.fromkeys(place.__name__ for place in places if place is not None)
    raise Unusable(f"no main(config) in {' or '.join(names)} to run what it returns")


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(object())
    except (TypeError, ValueError):
        return False
    return True


def run(module: ModuleType, name: str, arguments: list[str]) -> None:
    """Make the config, and have its `main` run it to the end."""
    config = Function(getattr(module, name), arguments).make(arguments).config
    ended = consumer(module, type(config))(config)
    if inspect.isawaitable(ended):
        import asyncio

        async def awaited() -> None:
            await ended

        asyncio.run(awaited())
