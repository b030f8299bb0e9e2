"""Applies the section `exclude`."""

from collections.abc import Mapping, Sequence

from sweeper.grid.blocks import Setting
from sweeper.grid.naming import canonical


class Exclusion:
    """The `exclude` rules, indexed by the values of their keys, so that thousands of rules are
    fast."""

    def __init__(self, rules: Sequence[dict[str, Setting]]) -> None:
        self._by_keys: dict[tuple[str, ...], dict[tuple[str, ...], int]] = {}
        for number, rule in enumerate(rules):
            keys = tuple(sorted(rule))
            values = tuple(canonical(rule[key].value) for key in keys)
            self._by_keys.setdefault(keys, {})[values] = number
        self.used: set[int] = set()

    def takes(self, config: Mapping[str, object]) -> bool:
        """Return whether a rule excludes the point. Records the rule as used."""
        for keys, rules in self._by_keys.items():
            if all(key in config for key in keys):
                number = rules.get(tuple(canonical(config[key]) for key in keys))
                if number is not None:
                    self.used.add(number)
                    return True
        return False
