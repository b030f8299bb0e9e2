"""A grid made from a file of another program, with remarks about parts that have no counterpart."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sweeper.common.json_values import is_list, is_table, list_of, table_of
from sweeper.common.redaction import is_secret_name
from sweeper.common.sanitize import sanitize
from sweeper.fields.nodes import Node, scalar
from sweeper.grid.dotted_keys import is_key
from sweeper.grid.overrides import flow
from sweeper.sweep.names import is_sweep_name

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:-]*(?<!:)\Z")
_SAMPLES = 20
_SECTIONS = ("base", "grid", "zip", "when", "exclude", "metric", "wandb", "secrets", "launch")


class Remark(NamedTuple):
    """A remark about a part of the file that could not be translated, or that means something else
    in the grid. Line 0 stands for the whole file."""

    line: int
    text: str


class Untranslatable(Exception):
    """The error for a file that cannot be translated at all. Its text says why."""


class Draft:
    """A grid that a translation builds step by step. Methods take keys as the translated file
    spells them; `key` returns the grid's spelling."""

    def __init__(self, source: str, kind: str) -> None:
        self.source, self.kind = source, kind
        self.name = ""
        self.command: list[str] = []
        self.sections: dict[str, dict[str, object] | list[object]] = {}
        self.draws: dict[str, object] = {}
        self.samples: int | None = None
        self.drawing_seed = 0
        self.seeds: object = None
        self.remarks: list[Remark] = []
        self._keys: dict[str, str] = {}

    def note(self, line: int, text: str) -> None:
        """Add a remark."""
        remark = Remark(line, text)
        if remark not in self.remarks:
            self.remarks.append(remark)

    def key(self, name: str) -> str:
        """Return the key of the grid for a name: `model/size` becomes `model_size`."""
        if name not in self._keys:
            key = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._-") or "value"
            key = key if is_key(key) else f"v_{key.replace('.', '_')}"
            while key in self._keys.values() or key in ("log_path", "run", "attempt"):
                key += "_"
            self._keys[name] = key
        return self._keys[name]

    def mapping(self, section: str) -> dict[str, object]:
        """Return a section that is a mapping, which the caller may add to."""
        mapping = self.sections.setdefault(section, {})
        assert isinstance(mapping, dict)  # noqa: S101 - each section has one type
        return mapping

    def items(self, section: str) -> list[object]:
        """Return a section that is a list, which the caller may add to."""
        items = self.sections.setdefault(section, [])
        assert isinstance(items, list)  # noqa: S101
        return items

    def fix(self, name: str, value: object) -> None:
        """Give a key the same value in all runs."""
        self.mapping("base")[self.key(name)] = value

    def axis(self, name: str, values: object) -> None:
        """Add an axis: a list of values, or a range. A single value becomes a fixed value, and an
        axis `seed` of integers becomes the seeds."""
        items = list_of(values)
        unique = _unique(items)
        if name == "seed" and items and all(type(item) is int for item in items):
            self.seeds = unique
        elif len(unique) == 1:
            self.fix(name, unique[0])
        else:
            self.mapping("grid")[self.key(name)] = unique or values

    def draw(self, name: str, how: Mapping[str, object]) -> None:
        """Add an axis with randomly drawn values."""
        self.draws[self.key(name)] = dict(how)

    def fix_variable(self, line: int, name: str) -> None:
        """Set the key `name` to the value of this process's variable `name`. If the variable is
        secret, the value is "", and the name goes into `secrets`."""
        if is_secret_name(name):
            self._keep_secret(line, name)
            self.fix(name, "")
            return
        self.fix(name, os.environ.get(name, ""))
        self.note(line, f"${name} is not set in the file; base has this machine's value")

    def set_variable(self, line: int, name: str, value: str) -> None:
        """Set an environment variable of the runs. If it is secret, only its name is written."""
        if is_secret_name(name):
            self._keep_secret(line, name)
            return
        variables = self.mapping("launch").setdefault("env", {})
        assert isinstance(variables, dict)  # noqa: S101 - made here
        variables[name] = value

    def _keep_secret(self, line: int, name: str) -> None:
        if name not in self.items("secrets"):
            self.items("secrets").append(name)
        text = (
            f"{name} is a secret: only its name is written, and runs get it from the "
            "environment of the launch"
        )
        self.note(line, text)

    def hole(self, name: str) -> str:
        """Return the placeholder of a key in the command."""
        return "{seed}" if name == "seed" and self.seeds is not None else f"{{{self.key(name)}}}"

    def yaml(self) -> str:
        """Return the text of the grid."""
        lines = [f"# Translated from {self.source} ({self.kind}) by `sweeper init --from`."]
        if self.remarks:
            lines += ["#", "# Not translated, or different here:"]
            lines += [f"#   {self.place(remark)}" for remark in self.remarks]
        lines += ["", f"name: {_yaml(self.name)}", "command:"]
        lines += [f"  - {_yaml(word)}" for word in self.command]
        lines += ["service: none", ""]
        for section in _SECTIONS:
            if section == "metric":
                lines += self._drawn_and_seeds()
            value = self.sections.get(section)
            if value:
                lines += [*_written(section, _escaped(value)), ""]
        return "\n".join(lines)

    def place(self, remark: Remark) -> str:
        """Return a remark after its file and line (`sweep.yaml:3: ...`), on one line."""
        text = sanitize(" ".join(remark.text.split()))
        return f"{self.source}:{remark.line}: {text}" if remark.line else f"{self.source}: {text}"

    def _drawn_and_seeds(self) -> Iterator[str]:
        if self.draws:
            yield "random:"
            yield f"  samples: {self.samples or _SAMPLES}"
            yield from (f"  seed: {seed}" for seed in [self.drawing_seed] if seed)
            yield "  axes:"
            axes = table_of(_escaped(self.draws))
            yield from (f"    {key}: {_yaml(how)}" for key, how in axes.items())
            yield ""
        if self.seeds is not None:
            yield f"seeds: {_yaml(self.seeds)}"
            yield ""


def _unique(values: Iterable[object]) -> list[object]:
    seen: dict[str, object] = {}
    for value in values:
        seen.setdefault(repr(value), value)
    return list(seen.values())


def _escaped(value: object) -> object:
    """Escape each `${` in a value, so that it is no reference. A `Reference` is left unchanged."""
    if isinstance(value, Reference):
        return str(value)
    if isinstance(value, str):
        return value.replace("${", "$${")
    if is_table(value):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if is_list(value) else value


class Reference(str):
    """A text in which `${key}` refers to a key of the grid. `_escaped` leaves it unchanged."""

    __slots__ = ()


def _written(section: str, value: object) -> Iterator[str]:
    """Write a section, one entry per line."""
    yield f"{section}:"
    if is_list(value):
        for item in value:
            yield f"  - {_yaml(item)}"
        return
    for key, item in table_of(value).items():
        yield f"  {key}: {_yaml(item)}"


def _yaml(value: object) -> str:
    """Write a value on one line, with quotes only where they are needed."""
    if isinstance(value, str):
        plain = _PLAIN.match(value) and scalar(value) == value
        return value if plain else flow(value)
    if is_list(value):
        return f"[{', '.join(map(_yaml, value))}]"
    if is_table(value):
        return f"{{{', '.join(f'{_yaml(key)}: {_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, float) and 0 < abs(value) < 1e-2:
        mantissa, _, exponent = f"{value:e}".partition("e")
        short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        return short if float(short) == value else flow(value)
    return flow(value)


def entries_of(node: Node | None) -> dict[str, tuple[int, Node]]:
    """Return the entries of a mapping, each with the line of its key; {} for anything else. Merge
    keys (`<<`) are applied."""
    entries = {} if node is None else node.entries or {}
    merged: dict[str, tuple[int, Node]] = {}
    for key, (place, item) in entries.items():
        if key == "<<":
            for above in item.items or [item]:
                merged = {**entries_of(above), **merged}
        else:
            merged[key] = (place.line, item)
    return merged


def sweep_name(text: str, otherwise: str) -> str:
    """Return a sweep's name made from `text`, or else from the file name `otherwise`. If neither
    gives a valid name, return `sweep`."""
    for candidate in (text, os.path.splitext(os.path.basename(otherwise))[0]):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", candidate).strip("-._")[:80]
        if is_sweep_name(name):
            return name
    return "sweep"


def interpreter() -> str:
    """Return the name of Python's command on this machine."""
    return next(filter(shutil.which, ("python", "python3")), "python3")


def braced(word: str) -> str:
    """Double the braces in a word, so that commands of a grid read them as literal braces."""
    return word.replace("{", "{{").replace("}", "}}")


def number_or_text(text: str) -> object:
    """Return the number in a text. Return the text itself if it is no number, or if it is an
    integer in another form (`007`)."""
    try:
        value = scalar(text)
    except ValueError:
        return text
    whole = isinstance(value, int) and not isinstance(value, bool) and str(value) == text
    return value if whole or isinstance(value, float) else text
