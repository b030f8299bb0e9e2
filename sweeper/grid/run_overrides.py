"""`overrides` in a backend's section of `launch`: options for the jobs of runs that have certain
values. These options override the section's other options."""

from collections.abc import Callable, Mapping, Sequence

from sweeper.common.json_values import list_of, table_of
from sweeper.fields.kinds import Shape, unread, wrong
from sweeper.fields.nodes import Node, Problems
from sweeper.fields.sections import Field, Section
from sweeper.grid.blocks import read_settings
from sweeper.grid.naming import canonical

OVERRIDES = "overrides"
_CONDITION = {"type": "object", "minProperties": 1}


class _Overrides:
    """The type of the field `overrides`, a list of mappings. Each mapping has some of the section's
    own fields, and `if`, the condition that selects the runs to which the mapping applies."""

    def __init__(self, section: Section) -> None:
        condition = Field("if", Shape(_CONDITION, unread), "The keys and values of the runs.")
        self._section = section.extended(condition)

    def read(self, node: Node, where: str, problems: Problems) -> list[dict[str, object]] | None:
        """Return the mappings in the form of plans; None if the node is no list. `if` maps each key
        to the list of values with which a run matches."""
        if node.items is None:
            wrong(node, where, "a list of mappings, each with the key `if`", problems)
            return None
        overrides: list[dict[str, object]] = []
        for item in node.items:
            reading = self._section.read(item, where, problems)
            condition = reading.values.pop("if", None)
            if condition is None or condition.entries == {}:
                if item.entries is not None:
                    message = f"{where} needs `if: {{KEY: VALUE}}`, which selects runs"
                    problems.add(item.place, message)
                continue
            wanted: dict[str, object] = {}
            for key, setting in read_settings(condition, "if", problems).items():
                value = setting.value
                wanted[key] = value if isinstance(value, list) else [value]
            if len(item.entries or {}) == 1:
                problems.add(item.place, f"{where} has only `if`: add the options to change")
            overrides.append({"if": wanted, **reading.values})
        return overrides

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of the list."""
        item = self._section.schema()
        condition = table_of(table_of(item["properties"])["if"])
        condition.update(_CONDITION)  # The value cannot be null.
        return {"type": "array", "items": {**item, "required": ["if"], "minProperties": 2}}


def overrides_of(section: Section) -> Field:
    """Return the field `overrides` of a section."""
    doc = (
        "Options for jobs of runs that have the values under `if`. They override the options "
        "outside of `overrides`."
    )
    examples = ([{"if": {"lora_rank": 64}}],)
    return Field(OVERRIDES, _Overrides(section), doc, examples=examples)


def asked_by(
    options: Mapping[str, object],
    config: Mapping[str, object],
    merge: Callable[[Mapping[str, object], Mapping[str, object]], dict[str, object]],
) -> dict[str, object]:
    """Return a backend's options for the job of a run with this configuration. Overrides that match
    the run are merged, in order, into the other options with the backend's function `merge`."""
    options_of_run = {key: value for key, value in options.items() if key != OVERRIDES}
    for entry in _overrides(options):
        if _meant(entry, config):
            options_of_run = merge(
                options_of_run, {key: value for key, value in entry.items() if key != "if"}
            )
    return options_of_run


def conditions(options: Mapping[str, object]) -> list[str]:
    """Return the keys in the conditions (`if`) of all overrides in a backend's section."""
    return [key for entry in _overrides(options) for key in table_of(entry["if"])]


def unmatched(options: Mapping[str, object], configs: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a sentence for each override that matches none of the runs' `configs`. Such an
    override is probably a mistake."""
    return [
        f"{OVERRIDES}: no run has {', '.join(table_of(entry['if']))}"
        for entry in _overrides(options)
        if not any(_meant(entry, config) for config in configs)
    ]


def _overrides(options: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the overrides in a backend's section, as plain mappings."""
    return [table_of(entry) for entry in list_of(options.get(OVERRIDES))]


def _meant(entry: Mapping[str, object], config: Mapping[str, object]) -> bool:
    return all(
        key in config and canonical(config[key]) in map(canonical, list_of(values))
        for key, values in table_of(entry["if"]).items()
    )
