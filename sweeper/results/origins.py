"""The provenance of runs (code, packages, service, variables, data), as recorded at their launches.
`sentences(differences(runs))` describes how the provenance of runs differs."""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from sweeper.common.json_values import table_of
from sweeper.errors import NotFound, StoreError
from sweeper.store.documents import read_json
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.labels import first_of, plural
from sweeper.sweep.plan import Plan, launch_id

_NAMED = 3
"""The maximum number of files, packages or runs that a sentence names."""


class Origin:
    """The provenance of one attempt. `facts` is what `sweep.json` records about the attempt's
    launch; launches by older versions recorded less. `program` is the digest of the attempt's code
    if the launch did not copy the code."""

    def __init__(
        self, folder: SweepFolder, facts: Mapping[str, object], program: str | None = None
    ) -> None:
        self._store = folder.store
        self._folder = folder
        self._facts = facts
        self.live = program

    @functools.cached_property
    def record(self) -> dict[str, object]:
        """The recorded provenance of the launch. If the launch did not copy the code, `program` is
        the digest of this attempt's code."""
        launch = launch_id(self._facts)
        path = None if launch is None else self._folder.launch(os.path.basename(launch))
        record = {**self._facts, **self._read(path)}
        return record if self.live is None else record | {"program": self.live}

    def get(self, key: str) -> object:
        """Return an entry of the provenance; None if unknown."""
        return self._facts[key] if key in self._facts else self.record.get(key)

    @property
    def commit(self) -> str | None:
        """The commit at the launch."""
        return _text(self.get("commit"))

    @property
    def launched(self) -> str | None:
        """The time of the launch."""
        return _text(self.get("time"))

    @property
    def program(self) -> str | None:
        """The digest of the program's files; None if unknown."""
        return self.live or _text(self.get("program"))

    @property
    def code(self) -> str | None:
        """A short name of the code: the commit, followed by the program's digest if there are
        uncommitted changes. The name is only the digest if there is no commit or the launch did not
        copy the code. None if there is neither a commit nor a digest."""
        program = (self.program or _text(self.get("code")) or "")[:8]
        if self.live is not None or self.commit is None:
            return program or None
        return self.commit[:8] if self.get("dirty") is False else f"{self.commit[:8]}+{program}"

    def files(self) -> dict[str, object]:
        """Return the digest of each file of the copied code, by path; empty if not recorded."""
        return {} if self.live is not None else self._read(_text(self.get("files")))

    def packages(self) -> dict[str, object]:
        """Return the version of each installed package. If the launch did not record all packages,
        return only the important ones."""
        versions = table_of(self.get("packages"))
        path = self._moved(_text(self.get("all_packages")))
        with suppress(StoreError, NotFound):
            lines = self._store.read(path).decode("utf-8", "replace").split() if path else []
            versions |= {name: version for name, _, version in (x.partition("==") for x in lines)}
        return versions

    def _read(self, path: str | None) -> dict[str, object]:
        path = self._moved(path)
        with suppress(StoreError, NotFound):
            return {} if path is None else read_json(self._store, path)
        return {}

    def _moved(self, path: str | None) -> str | None:
        return None if path is None else self._folder.code(os.path.basename(path))


class HasOrigin(Protocol):
    """A run or a launch that `differences` can compare."""

    @property
    def name(self) -> str:
        """The name of the run; empty for a launch."""
        ...

    @property
    def origin(self) -> Origin | None:
        """The provenance of the run or launch; None if unknown."""
        ...


class Executed:
    """A launch that `differences` can compare with runs."""

    def __init__(self, name: str, origin: Origin | None) -> None:
        self.name, self.origin = name, origin


class Difference:
    """A way in which runs differ. `kind` is code, python, SDK, packages, service, variables or
    data. `what` names the differing files, packages or variables, if known. `groups` has (label,
    runs) for each group of runs that are equal in this respect."""

    def __init__(
        self,
        kind: str,
        what: tuple[str, ...],
        groups: tuple[tuple[str, tuple[HasOrigin, ...]], ...],
    ) -> None:
        self.kind, self.what, self.groups = kind, what, groups

    @property
    def title(self) -> str:
        """The kind and the differing names, such as `code (train.py)`."""
        named = first_of(self.what, _NAMED)
        return f"{self.kind} ({named})" if named else self.kind

    def label(self, run: HasOrigin) -> str | None:
        """Return the label of a run's group; None if unknown."""
        return self._labels.get(id(run))

    @functools.cached_property
    def _labels(self) -> dict[int, str]:
        return {id(run): label for label, runs in self.groups for run in runs}


class Launches:
    """The launches of a sweep. `of` returns the same object for the same launch and program."""

    def __init__(self, folder: SweepFolder, plan: Plan) -> None:
        self._folder = folder
        latest = plan.provenance or {}
        self._launches = [*([latest] if latest else []), *plan.launches]  # latest first
        self._origins: dict[tuple[object, str | None], Origin] = {}

    @property
    def latest(self) -> Executed:
        """The newest launch. Attempts that start from now on execute its code."""
        newest = next(iter(self._launches), None)
        origin = None if newest is None else Origin(self._folder, newest)
        return Executed("", origin)

    @property
    def is_certain(self) -> bool:
        """Whether all attempts must have executed the same code, because there was only one launch
        and it copied the code."""
        return len(self._launches) < 2 and all(launch.get("code") for launch in self._launches)

    def of(self, launch: str | None, program: str | None, opened: str | None) -> Origin | None:
        """Return the provenance of an attempt. `launch` is the id of the launch in the attempt's
        events. If no launch has this id, the provenance has only the id. If `launch` is None
        (events of older versions), use the only launch, or the last launch before the time
        `opened`; return None if there is no such launch."""
        if launch is not None:
            same = (facts for facts in self._launches if facts.get("launch") == launch)
            newest = next(same, {"launch": launch})
        elif len(self._launches) > 1:
            before = (k for k in self._launches if (_text(k.get("time")) or "~") <= (opened or ""))
            newest = next(before, None)
        else:
            newest = next(iter(self._launches), None)
        if newest is None:
            return None
        key = launch_id(newest) or newest.get("time"), program
        if key not in self._origins:
            self._origins[key] = Origin(self._folder, newest, program)
        return self._origins[key]


def differences(runs: Iterable[HasOrigin]) -> list[Difference]:
    """Return the differences between runs in code, Python, packages, service, variables or data.
    Entries that a run did not record are ignored."""
    pairs = [(run, run.origin) for run in runs]
    origins = [(run, origin) for run, origin in pairs if origin is not None]
    if len({id(origin) for _, origin in origins}) < 2:
        return []
    return [each for kind in _KINDS for each in _difference(kind, origins)]


_KINDS = ("code", "python", "SDK", "packages", "service", "variables", "data")
_SDK = ("tinker", "tinker-cookbook")


def _difference(kind: str, runs: Sequence[tuple[HasOrigin, Origin]]) -> Iterator[Difference]:
    variants: dict[str, tuple[Origin, list[HasOrigin]]] = {}
    whole = all(origin.program is not None for _, origin in runs)
    for run, origin in runs:
        key = _variant(kind, origin, whole=whole)
        if key is not None:
            variants.setdefault(key, (origin, []))[1].append(run)
    if len(variants) < 2:
        return
    origins = [origin for origin, _ in variants.values()]
    keys = _what(kind, origins)
    if kind == "packages" and keys and set(keys) <= set(_SDK):
        return
    labels = [_label(kind, origin, keys) for origin in origins]
    groups = ((label, tuple(n)) for label, (_, n) in zip(labels, variants.values(), strict=True))
    yield Difference(kind, tuple(keys), tuple(groups))


def _variant(kind: str, origin: Origin, *, whole: bool) -> str | None:
    """Return a value to compare: runs with different values differ in this `kind`. Return None if
    the value is unknown. `whole` means that the programs of all runs are known."""
    if kind == "code":
        return (origin.program if whole else None) or _text(origin.get("code")) or origin.commit
    if kind == "packages":
        path = _text(origin.get("all_packages"))
        return path and os.path.basename(path)
    if kind == "SDK":
        packages = table_of(origin.get("packages"))
        return None if "packages" not in origin.record else str([packages.get(p) for p in _SDK])
    entries = {"service": ("service", "address"), "variables": ("env",)}.get(kind, (kind,))
    if entries[0] not in origin.record or origin.get(entries[0]) is None:
        return None
    return str([_sorted(origin.get(entry)) for entry in entries])


def _sorted(value: object) -> object:
    return sorted(value.items()) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType, reportUnknownMemberType]


def _what(kind: str, origins: Sequence[Origin]) -> list[str]:
    """Return the names of the files, packages or variables that differ between `origins`."""
    tables: list[Mapping[str, object]]
    if kind == "code":
        tables = [origin.files() for origin in origins]
    elif kind in ("packages", "SDK"):
        tables = [origin.packages() for origin in origins]
    else:
        entry = "env" if kind == "variables" else kind
        tables = [table_of(origin.get(entry)) for origin in origins]
    if not all(tables) and kind != "variables":
        return []
    names = sorted({name for table in tables for name in table})
    changed = [name for name in names if len({str(table.get(name)) for table in tables}) > 1]
    return [name for name in changed if name in _SDK] if kind == "SDK" else changed


def _label(kind: str, origin: Origin, keys: Sequence[str]) -> str:
    if kind == "code":
        return origin.code or "unknown"
    if kind in ("packages", "SDK"):
        data = origin.packages()
        shown = [f"{name} {data.get(name) or 'none'}" for name in keys[:_NAMED]]
        return ", ".join(shown) or "other packages"
    if kind == "variables":
        data = table_of(origin.get("env"))
        return ", ".join(f"{name}={data.get(name, '')}" for name in keys[:_NAMED])
    if kind == "data":
        data = table_of(origin.get("data"))
        return ", ".join(str(data.get(name, "none"))[:8] for name in keys[:_NAMED])
    entries = ("service", "address") if kind == "service" else (kind,)
    return " ".join(str(origin.get(entry)) for entry in entries if origin.get(entry))


def sentences(differences: Sequence[Difference]) -> list[str]:
    """Return one sentence for each difference: `different code (train.py): 6 runs with 1f2e3d4c, 2
    runs with ...`"""
    return [_sentence(difference) for difference in differences]


def _sentence(difference: Difference) -> str:
    groups = ", ".join(
        f"{plural(len(runs), 'run')} with {label}" for label, runs in difference.groups
    )
    return f"different {difference.title}: {groups}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
