"""Makes a grid from a list of config objects and a function that takes such an object, for
`launch([...], main=train)`."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from sweeper.common.json_values import is_table
from sweeper.errors import UsageError
from sweeper.grid.naming import canonical
from sweeper.grid.translation.draft import sweep_name

_OURS = ("log_path", "behavior_if_log_dir_exists")
_PLAIN = (str, int, float, bool, type(None))


def grid_of(source: object, main: Callable[..., object], name: str | None) -> dict[str, object]:
    """Return a grid with a run for each config. A key that has its default value in all configs is
    left out. Raises `UsageError`."""
    if isinstance(source, str) or not isinstance(source, Sequence) or not source:
        raise UsageError("launch: with main, the first argument must be a list of configs")
    items = enumerate(cast("Sequence[object]", source))
    configs = _values_of_all([_as_chz(config, f"configs[{n}]") for n, config in items])
    seen: dict[str, int] = {}
    for index, config in enumerate(configs):
        first = seen.setdefault(canonical(config), index)
        if first != index:
            raise UsageError(f"configs[{index}] equals configs[{first}]: change its seed")
    grid: dict[str, object] = {
        "name": name or sweep_name("", main.__module__.rpartition(".")[2]),
        "recipe": _reference(main),
    }
    seeds = _seeds(configs)
    if seeds is not None:
        grid["seeds"] = seeds
        configs = [config for config in configs if config.pop("seed") == seeds[0]]
    shared = {
        key: value
        for key, value in configs[0].items()
        if all(key in c and canonical(c[key]) == canonical(value) for c in configs)
    }
    grid["base"] = shared
    if len(configs) > 1:
        grid["include"] = [
            {key: value for key, value in config.items() if key not in shared} for config in configs
        ]
        if {} in grid["include"]:
            raise UsageError(
                "launch: one config has only the keys that all configs have in common: also set "
                "one of the other keys in it"
            )
    return grid


def _reference(main: Callable[..., object]) -> str:
    """Return the function in the form of a grid's `recipe`. Raises `UsageError`."""
    if not inspect.isfunction(main) or "." in main.__qualname__:
        raise UsageError("launch: main must be a function at the top level of a module")
    if main.__module__ == "__main__":
        raise UsageError(
            f"launch: {main.__name__} is defined in the program that launches: move it "
            "and its config to a module that each run can import"
        )
    return f"{main.__module__}:{main.__name__}"


def _seeds(configs: list[dict[str, object]]) -> list[int] | None:
    """Return the seeds if every config has a seed, and all cells have the same seeds; else None."""
    groups: dict[str, list[int]] = {}
    for config in configs:
        seed = config.get("seed")
        if type(seed) is not int:
            return None
        rest = {key: value for key, value in config.items() if key != "seed"}
        groups.setdefault(canonical(rest), []).append(seed)
    lists = list(groups.values())
    return lists[0] if all(seeds == lists[0] for seeds in lists) else None


def _as_chz(config: object, where: str) -> object:
    """Return a config as a chz object. Raises `UsageError`."""
    import chz

    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        from sweeper.recipe.function_recipes import to_chz

        config = to_chz(config)
    if isinstance(config, type) or not chz.is_chz(config):
        raise UsageError(
            f"{where} is of type {type(config).__name__}, not a chz object or a dataclass"
        )
    return config


def _values_of_all(configs: list[object]) -> list[dict[str, object]]:
    """Return a dict from dotted keys to values for each config. A key that has its default value in
    all configs is left out. Raises `UsageError`."""
    keys = dict.fromkeys(key for config in configs for key in _given(config, changed=True))
    all_values: list[dict[str, object]] = []
    for number, config in enumerate(configs):
        values = _given(config, changed=False)
        taken = [key for key in keys if key in values and key not in _OURS]
        all_values.append({key: _plain(values[key], f"configs[{number}].{key}") for key in taken})
    return all_values


def _given(config: object, *, changed: bool) -> dict[str, object]:
    """Return a dict from dotted keys of a chz object to values. For an inner object of another
    class than declared, the value is that class. With `changed`, values equal to their defaults are
    left out."""
    import chz

    blueprint = cast(Any, chz).beta_to_blueprint_values(config, skip_defaults=changed)
    return {
        key: value
        for key, value in cast("dict[str, object]", blueprint).items()
        if not (isinstance(value, type) and _declared(config, key) == value)
    }


def _declared(config: object, key: str) -> object:
    """Return the declared type of a field by its dotted key; None if there is no such field."""
    import chz

    *above, last = key.split(".")
    for part in above:
        config = getattr(config, part, None)
    field = chz.chz_fields(config).get(last) if chz.is_chz(config) else None
    return None if field is None else field.x_type


def _plain(value: object, where: str) -> object:
    """Return a value as plain data. Raises `UsageError`."""
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item, where) for item in cast("Sequence[object]", value)]
    if is_table(value):
        return {str(key): _plain(item, where) for key, item in value.items()}
    raise UsageError(
        f"{where} is of type {type(value).__name__}, which a grid cannot contain: use numbers, "
        "strings, booleans, lists and mappings"
    )
