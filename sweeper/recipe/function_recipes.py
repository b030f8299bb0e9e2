"""Recipes that are functions. Either the function returns a config (or a chz Blueprint of one),
which a `main` takes, or the function is itself a `main` that takes a chz object or a dataclass.
This file is loaded by path in the recipe's interpreter. It uses only the standard library and
chz."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing

import chz

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


class Unusable(Exception):
    """The function cannot be a recipe. The message says why."""


class Made(typing.NamedTuple):
    """A config, and the arguments that the function was called with."""

    config: object
    given: dict[str, object]


class Function:
    """A recipe that is a function. `cls` is the class of its configs. If the function makes
    configs, it is called with `arguments` to find this class."""

    def __init__(self, function: Callable[..., object], arguments: list[str]) -> None:
        self.function = function
        self.name = str(function.__name__)
        self.taken = _taken(function)
        self.parameters: Mapping[str, inspect.Parameter] = {}
        if self.taken is None:
            self.parameters = inspect.signature(function).parameters
        if self.taken is not None:
            self.cls = self.taken if chz.is_chz(self.taken) else as_chz(self.taken)
        else:
            self.cls = _class_of(self._call(arguments)[0], self.name)
        self._held: dict[str, object] = {}

    def make(self, arguments: list[str]) -> Made:
        """Make the config from `key=value` arguments, as chz reads them. Raises the errors of chz
        and of the function."""
        if self.taken is not None:
            return Made(chz.Blueprint(self.cls).make_from_argv(list(arguments)), {})
        built, given = self._call(arguments)
        fields = chz.chz_fields(_class_of(built, self.name))
        rest = [a for a in arguments if _first(a) in fields or _first(a) not in self.parameters]
        return Made(_applied(built, rest), given)

    def read(self, made: Made, key: str) -> tuple[object, str]:
        if key.partition(".")[0] in chz.chz_fields(type(made.config)):
            return made.config, key
        return made.given, key

    def annotation(self, field: str) -> object:
        """Return the type of a field or parameter. If the function sets a field to a chz object,
        return the object's class."""
        held = self._held.get(field)
        if chz.is_chz(held):
            return held.__class__
        field_of = chz.chz_fields(self.cls).get(field)
        if field_of is not None:
            return field_of.x_type
        try:
            return typing.get_type_hints(self.function).get(field, typing.Any)
        except Exception:  # noqa: BLE001  (evaluating it runs the recipe's code)
            return typing.Any

    def defaults(self, arguments: list[str]) -> Mapping[str, object]:
        """Return the values of the config that the function makes if it gets only `arguments`.
        Return {} if the function fails, or if it takes a config instead of making one."""
        if self.taken is not None:
            return {}
        try:
            config = self.make(arguments).config
        except Exception:  # noqa: BLE001  (the error is reported when configurations are checked)
            return {}
        self._held = {name: getattr(config, name, None) for name in chz.chz_fields(type(config))}
        return self._held

    def consumer(self, module: ModuleType) -> Callable[[object], object]:
        """Return the function that takes the config. Raises `Unusable` if there is no such
        function."""
        if self.taken is None:
            return consumer(module, self.cls)
        if chz.is_chz(self.taken):
            return self.function
        return lambda config: self.function(from_chz(config, self.taken))

    def _call(self, arguments: list[str]) -> tuple[object, dict[str, object]]:
        given: dict[str, object] = {}

        @functools.wraps(self.function)
        def recording(*places: object, **values: object) -> object:
            given.update(values)
            return self.function(*places, **values)

        of_function = [argument for argument in arguments if _first(argument) in self.parameters]
        return chz.Blueprint(recording).make_from_argv(of_function), given


def _taken(function: Callable[..., object]) -> type[object] | None:
    """Return the class of the config that a function takes: a chz class or a dataclass. Return None
    if the function makes a config or has other parameters."""
    try:
        hints: dict[str, typing.Any] = typing.get_type_hints(function)
        (name,) = inspect.signature(function).parameters
    except Exception:  # noqa: BLE001  (evaluating it runs the recipe's code)
        return None
    cls, returned = hints.get(name), hints.get("return")
    if chz.is_chz(returned) or typing.get_origin(returned) is chz.Blueprint:
        return None
    usable = isinstance(cls, type) and (chz.is_chz(cls) or dataclasses.is_dataclass(cls))
    return typing.cast("type[object]", cls) if usable else None


@functools.lru_cache
def as_chz(cls: type[object]) -> type[object]:
    """Return a chz class with the fields of a dataclass. Dataclasses in these fields are converted
    too."""
    hints = typing.get_type_hints(cls)
    space: dict[str, object] = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    types: dict[str, object] = {}
    for field in dataclasses.fields(typing.cast("typing.Any", cls)):
        if not field.init:
            continue
        hint = hints[field.name]
        types[field.name] = as_chz(hint) if dataclasses.is_dataclass(hint) else hint
        if field.default is not dataclasses.MISSING:
            space[field.name] = chz.field(default_factory=functools.partial(to_chz, field.default))
            if not dataclasses.is_dataclass(hint) and field.default.__class__.__hash__:
                space[field.name] = chz.field(default=field.default)
        elif field.default_factory is not dataclasses.MISSING:
            make = field.default_factory
            space[field.name] = chz.field(default_factory=lambda make=make: to_chz(make()))
        else:
            space[field.name] = chz.field()
    return chz.chz(type(cls.__name__, (), {**space, "__annotations__": types}))


def to_chz(value: object) -> object:
    """Convert a dataclass instance to an instance of the class that `as_chz` makes. Return other
    values unchanged."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    names = [field.name for field in dataclasses.fields(value) if field.init]
    made: typing.Any = as_chz(type(value))
    return made(**{name: to_chz(getattr(value, name)) for name in names})


def from_chz(config: object, cls: type[object] | None) -> object:
    """Convert an instance of `as_chz(cls)` to an instance of the dataclass `cls`."""
    made: typing.Any = cls
    hints: dict[str, typing.Any] = typing.get_type_hints(cls)
    values: dict[str, object] = {}
    for name in chz.chz_fields(config):
        value = getattr(config, name)
        nested = isinstance(hints[name], type) and dataclasses.is_dataclass(hints[name])
        values[name] = (
            from_chz(value, typing.cast("type[object]", hints[name])) if nested else value
        )
    return made(**values)


def _first(argument: str) -> str:
    """Return the top-level field that an argument sets: `a` for `a.b=1`."""
    return argument.partition("=")[0].partition(".")[0]


def _class_of(built: object, name: str) -> type[object]:
    """Return the class of a config, or of the config that a Blueprint makes. Raises `Unusable`."""
    if isinstance(built, chz.Blueprint):
        cls = typing.cast("chz.Blueprint[object]", built).target
        returned = f"a Blueprint of {cls!r}"
    else:
        cls, returned = built.__class__, built.__class__.__name__
    if not (isinstance(cls, type) and chz.is_chz(cls)):
        raise Unusable(f"{name}() returns {returned}, not a chz config or a Blueprint of one")
    return cls


def _applied(built: object, arguments: list[str]) -> object:
    """Return the config that the function made, changed by `arguments`. If a Blueprint refuses an
    argument for a nested field, the config is made first and changed afterwards."""
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
    # If an optional config is None but fields below it are given, drop the None, so that chz makes
    # a new config from these fields.
    keys = [argument.partition("=")[0] for argument in arguments]
    for name in [name for name, value in values.items() if value is None]:
        if any(key.startswith(f"{name}.") for key in keys):
            del values[name]
    return chz.Blueprint(type(config)).apply(values).make_from_argv(list(arguments))


def consumer(module: ModuleType, cls: type[object]) -> Callable[[object], object]:
    """Return the function that takes the config: `main` of the recipe's module, else `main` of the
    module that defines the config's class. Raises `Unusable`."""
    places = [module, sys.modules.get(cls.__module__)]
    for place in places:
        main = getattr(place, "main", None)
        if callable(main) and not isinstance(main, type) and _takes_one(main):
            return main
    names = dict.fromkeys(place.__name__ for place in places if place is not None)
    modules = " or ".join(names)
    raise Unusable(f"no function main(config) in {modules} to run the returned config")


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(object())
    except (TypeError, ValueError):
        return False
    return True


def run(module: ModuleType, name: str, arguments: list[str]) -> None:
    """Make the config, and call the function that takes it (`consumer`). If the result is
    awaitable, wait for it."""
    function = Function(getattr(module, name), arguments)
    ended = function.consumer(module)(function.make(arguments).config)
    if inspect.isawaitable(ended):
        import asyncio

        async def awaited() -> None:
            await ended

        asyncio.run(awaited())
