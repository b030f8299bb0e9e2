"""`launch.slurm`: what its jobs ask a Slurm cluster for, and the same as defaults in the user's
configuration file.

Values are data. None becomes an option of its own, and what `extra` may not say is what sweeper
itself says of a job (its name, its comment, its script). `setup` is the one exception: lines of the
user's own shell.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sweeper.grid.configuration import read_table
from sweeper.grid.naming import canonical
from sweeper.grid.nodes import Node, Problems, kind
from sweeper.grid.options import Section

__all__ = ["KEYS", "asked_by", "read_defaults", "read_slurm", "unmatched"]

_TEXTS = ("partition", "account", "qos", "mem", "gres", "constraint")
_ONE = (*_TEXTS, "time", "cpus", "extra", "setup", "requeue", "signal", "throttle", "array")
KEYS = (*_ONE, "overrides")

_TEXT = re.compile(r"[^\x00-\x20\x7f]{1,200}\Z")
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)(=[^\x00-\x1f\x7f]*)?\Z")
_OURS = (
    *("array", "batch", "chdir", "clusters", "comment", "error", "export", "export-file", "gid"),
    *("help", "ignore-pbs", "input", "job-name", "no-requeue", "open-mode", "output", "parsable"),
    *("quiet", "requeue", "signal", "test-only", "uid", "usage", "version", "wait", "wrap"),
)
_KEYED = {name: name for name in (*_TEXTS, "time")} | {"cpus-per-task": "cpus"}
_LEAST_SIGNAL = 10.0
_LEAST_TIME = 60.0
_MOST_LINES = 100


def read_slurm(node: Node | None, problems: Problems, name: str = "launch.slurm") -> dict[str, Any]:
    """The section: what was given, durations as seconds under `time_s` and `signal_s`, and
    `overrides` as a list of what replaces it where runs have the values under `if`."""
    if node is None:
        return {}
    section = Section(node, name, KEYS, problems)
    found = _read_one(section)
    entries = section.node("overrides")
    if entries is not None:
        found["overrides"] = _read_overrides(entries, f"{name}.overrides", problems)
    return found


def read_defaults(problems: Problems) -> dict[str, Any]:
    """The same of the configuration file's table, which knows no runs."""
    table = read_table("slurm", problems)
    return {} if table is None else _read_one(Section(table, "slurm", _ONE, problems))


def asked_by(options: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What the job of a run with this configuration asks for: the section, and over it every
    override whose values the run has, in their order."""
    asked = {key: value for key, value in options.items() if key != "overrides"}
    for entry in options.get("overrides", ()):
        if _meant(entry, config):
            asked |= {key: value for key, value in entry.items() if key != "if"}
    return asked


def unmatched(options: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each override that is for none of these runs: a slip of the pen."""
    return [
        f"launch.slurm.overrides: no run has {', '.join(entry['if'])} as asked for"
        for entry in options.get("overrides", ())
        if not any(_meant(entry, config) for config in configs)
    ]


def _meant(entry: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    wanted = cast("dict[str, list[Any]]", entry["if"])
    return all(
        key in config and canonical(config[key]) in map(canonical, values)
        for key, values in wanted.items()
    )


def _read_one(section: Section) -> dict[str, Any]:
    found: dict[str, Any] = {key: _text(section, key) for key in _TEXTS}
    found |= {
        "time_s": _limit(section),
        "signal_s": section.duration("signal", _LEAST_SIGNAL),
        "cpus": section.integer("cpus", 1),
        "throttle": section.integer("throttle", 1),
        "array": section.integer("array", 1),
        "requeue": _flag(section, "requeue"),
        "extra": _extra(section),
        "setup": _lines(section, "setup"),
    }
    limit, before = found["time_s"], found["signal_s"]
    if limit is not None and before is not None and before > limit / 2:
        place = section.entries["signal"][1].place
        section.problems.add(place, f"{section.name}.signal is at most half of time")
    return {key: value for key, value in found.items() if value is not None}


def _limit(section: Section) -> float | None:
    """The time limit in seconds. sbatch takes a number for minutes, and a grid for seconds."""
    node = section.node("time")
    if node is not None and type(node.value) in (int, float):
        section.wrong(node, "time", f"a duration with its unit: {node.value}m or {node.value}s")
        return None
    return section.duration("time", _LEAST_TIME)


def _text(section: Section, key: str) -> str | None:
    node = section.node(key)
    if node is None:
        return None
    value = node.value
    if type(value) is int:  # `mem: 4000`, `account: 1234`
        value = str(value)
    if not isinstance(value, str):
        section.wrong(node, key, "a string")
        return None
    if not _TEXT.match(value):
        message = f"{section.name}.{key} has a blank or a control character in it, or no character"
        section.problems.add(node.place, message)
        return None
    return value


def _flag(section: Section, key: str) -> bool | None:
    node = section.node(key)
    if node is None or isinstance(node.value, bool):
        return None if node is None else node.value
    section.wrong(node, key, "true or false")
    return None


def _lines(section: Section, key: str) -> list[str] | None:
    """A list of strings, none with a control character other than a tab."""
    node = section.node(key)
    if node is None:
        return None
    if node.items is None or len(node.items) > _MOST_LINES:
        section.wrong(node, key, f"a list of strings, at most {_MOST_LINES}")
        return None
    lines: list[str] = []
    for item in node.items:
        if not isinstance(item.value, str):
            section.problems.add(item.place, f"{section.name}.{key}: {kind(item)} is no string")
        elif re.search(r"[\x00-\x08\x0a-\x1f\x7f]", item.value):
            section.problems.add(
                item.place, f"{section.name}.{key}: a newline or a control character: one line each"
            )
        else:
            lines.append(item.value)
    return lines


def _extra(section: Section) -> list[str] | None:
    flags = _lines(section, "extra")
    if flags is None:
        return None
    node = section.node("extra")
    items = (node.items or []) if node is not None else []
    for item in items:
        text = item.value
        match = _FLAG.match(text) if isinstance(text, str) else None
        if isinstance(text, str) and match is None:
            section.problems.add(
                item.place,
                f"{section.name}.extra: {text[:60]!r} is no option of sbatch's in one piece: "
                "--name or --name=value",
            )
        # sbatch takes the beginning of an option's name for the whole of it.
        elif match and any(name.startswith(match[1]) for name in _OURS):
            section.problems.add(
                item.place, f"{section.name}.extra: --{match[1]} is sweeper's to say"
            )
        elif match and (key := _KEYED.get(match[1])):
            section.problems.add(
                item.place, f"{section.name}.extra: for --{match[1]} there is {section.name}.{key}"
            )
    return flags


def _read_overrides(node: Node, name: str, problems: Problems) -> list[dict[str, Any]]:
    from sweeper.grid.blocks import read_settings

    if node.items is None:
        problems.add(node.place, f"{name} is {kind(node)}; it takes a list of mappings with an if")
        return []
    found: list[dict[str, Any]] = []
    for item in node.items:
        section = Section(item, name, ("if", *_ONE), problems)
        condition = section.node("if")
        if condition is None or condition.entries == {}:
            problems.add(item.place, f"{name} needs an if: the keys and values that it asks for")
            continue
        wanted: dict[str, Any] = {}
        for key, setting in read_settings(condition, "if", problems).items():
            value = setting.value
            wanted[key] = value if isinstance(value, list) else [value]
        given = _read_one(section)
        if not given and len(section.entries) == len(item.entries or {}) == 1:
            problems.add(item.place, f"{name} gives nothing: add mem, time, ...")
        found.append({"if": wanted, **given})
    return found
