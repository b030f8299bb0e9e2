"""Finds the configuration keys that differ between cells. These are more than the declared axes,
because included cells and axes of mappings may set other keys. Pure."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.reading.run_keys import is_label, is_place
from sweeper.metrics.rows import as_float
from sweeper.store.documents import dotted


def settings(
    configs: Mapping[str, Mapping[str, Any]],
    axes: Sequence[str],
    seed_field: str,
    derived: Collection[str] = (),
) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
    """Return the keys that differ between cells, declared `axes` first, and a dict from cell to the
    values of these keys. `configs` maps cells to configurations. The seed is left out. If a cell
    does not set a key, its dict lacks this key. If there is only one cell, the keys are the
    declared axes that it sets. Three kinds of undeclared keys are left out if the other keys
    distinguish all cells: names and paths of runs, strings copied from another key, and `derived`
    keys, which the grid computes from other keys."""
    flats = {cell: dict(dotted(config)) for cell, config in configs.items()}
    keys = dict.fromkeys(key for config in flats.values() for key in config if key != seed_field)
    places = {key: _place(key, axes) for key in keys}
    if len(flats) > 1:
        chosen = [key for key in keys if _differs(key, list(flats.values()))]
    else:
        chosen = [key for key in keys if places[key] < len(axes)]
    chosen.sort(key=places.__getitem__)
    chosen = _without_names(chosen, [k for k in chosen if places[k] == len(axes)], flats, derived)
    return tuple(chosen), {
        cell: {key: config[key] for key in chosen if key in config}
        for cell, config in flats.items()
    }


def _without_names(
    chosen: Sequence[str],
    undeclared: Sequence[str],
    flats: Mapping[str, Mapping[str, Any]],
    derived: Collection[str],
) -> list[str]:
    configs = list(flats.values())
    columns = {key: tuple(_same(config.get(key)) for config in configs) for key in chosen}
    first = {columns[key]: key for key in reversed(chosen)}
    out = {
        key
        for key in undeclared
        if is_label(key)
        or is_place(key)
        or key in derived
        # An equal number may have another meaning; an equal text is a copy.
        or (first[columns[key]] != key and all(isinstance(c.get(key), str) for c in configs))
    }
    remaining = [key for key in chosen if key not in out]
    return remaining if _count(remaining, configs) == _count(chosen, configs) else list(chosen)


def _count(keys: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> int:
    return len(
        {str([(key in config, _same(config.get(key))) for key in keys]) for config in configs}
    )


def keys_of(by: str) -> list[str]:
    """Return the settings in the grid's `metric.by`, such as `model_name, lora_rank`."""
    return [key.strip() for key in by.split(",")]


def level(config: Mapping[str, Any], by: str) -> str:
    """Return the value of a dotted key, or the values of several keys, as a string. `by` separates
    keys by commas. Values that a grid treats as equal have equal strings. The string for a missing
    key is "not set"."""
    return ", ".join(_level(config, key) for key in ([by] if by in config else keys_of(by)))


def _level(config: Mapping[str, Any], key: str) -> str:
    if key in config and not isinstance(config[key], Mapping):
        return labels.setting(_plain(config[key]))
    values = dict(dotted(config))
    return labels.setting(_plain(values[key])) if key in values else labels.NOT_SET


def ordered(axis: str, cells: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the distinct values of a setting in ascending order. The list is empty if one of the
    values is not a finite number."""
    values = [cell[axis] for cell in cells if axis in cell]
    numbers = [as_float(value) for value in values]
    if any(number is None or not math.isfinite(number) for number in numbers):
        return []
    return sorted(set(values))


def _place(key: str, axes: Sequence[str]) -> int:
    places = (i for i, axis in enumerate(axes) if key == axis or key.startswith(f"{axis}."))
    return next(places, len(axes))


def _differs(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    first = configs[0]
    return any(
        (key in config) != (key in first) or _same(config.get(key)) != _same(first.get(key))
        for config in configs
    )


def _same(value: Any) -> str:
    """Return a string that is equal for values that a grid treats as equal: 1 and 1.0, but not 1
    and true."""
    return json.dumps(_plain(value), sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
