"""Finds runs outside sweeps: folders at any depth with a metrics file, or with other files of
tinker-cookbook's log directories."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from sweeper.common.json_values import decode, is_table
from sweeper.errors import NotFound, StoreError
from sweeper.metrics.cache_folder import Folder, Index
from sweeper.metrics.evaluation import Facts, facts_of, step_of_name
from sweeper.metrics.files import EVALUATION, PLACES
from sweeper.metrics.rows import ends_final
from sweeper.metrics.sources import Files, Stamp
from sweeper.results.runs import OnError, RecordedRun
from sweeper.results.scores import read_document
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import NoState, State

T = TypeVar("T")

_MARKS = PLACES | {"checkpoints.jsonl"}
_ITERATION = "iteration_"
_PLAN = "sweep.json"
_EVAL_INDEX = "runs.jsonl"
_EVAL_RUNS = "runs"
"""The files of tinker-cookbook's EvalStore: an index, and for each evaluation a folder, in which
the file `EVALUATION` describes the evaluation. An EvalStore in a run's folder belongs to that
run."""
_OF_THE_DISK = "lost+found"


def find_folders(store: Store, on_error: OnError | None = None) -> list[str]:
    """Return the run folders below the store's root that belong to no sweep, sorted. Folders whose
    names begin with a dot are skipped. Links to folders outside the root are followed, but each
    folder is visited only once. `on_error` gets an error for each unreadable folder."""
    top = store.local_path("")
    return sorted(_of_names(store.names("")) if top is None else _walk(top, on_error))


def _walk(top: str, on_error: OnError | None) -> Iterator[str]:
    within: set[str] = set()
    for folder, names, inner in _folders_below(top, on_error):
        if names & _MARKS or any(name.startswith(_ITERATION) for name in inner):
            yield folder
            within.add(folder)
        elif folder and folder.rpartition("/")[0] in within:
            within.add(folder)
        elif _EVAL_INDEX in names:
            yield from _evaluations(top, f"{folder}/{_EVAL_RUNS}".lstrip("/"))


def _folders_below(top: str, on_error: OnError | None) -> Iterator[tuple[str, set[str], list[str]]]:
    """Yield each folder outside sweeps as (path, names in the folder, names of the folders in it).
    A folder comes before the folders inside it. Linked folders come last, sorted by path. Hidden
    folders, and folders with rollouts or parts of files, are left out."""
    root = os.path.realpath(top)
    pending: list[tuple[str, str | None]] = [("", None)]
    links: list[tuple[str, str | None]] = []
    seen: set[str] = set()
    while pending or links:
        if not pending:
            links.sort(key=lambda link: link[0], reverse=True)
            pending.append(links.pop())
        folder, real = pending.pop()
        if real is not None and (real in seen or seen.add(real)):
            continue  # two links lead to this folder
        try:
            with os.scandir(os.path.join(top, folder)) as entries:
                items = {item.name: _target(item, root) for item in entries}
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed in the meantime
        except OSError as error:
            if on_error is not None and folder != _OF_THE_DISK:
                on_error(StoreError(f"{os.path.join(top, folder)}: {error.strerror}"))
            continue
        if _PLAN in items:
            continue
        inner = {name: target for name, target in items.items() if target is not None}
        yield folder, set(items), list(inner)
        for name, target in inner.items():
            if name.startswith((".", _ITERATION)) or name.endswith(".parts"):
                continue
            below = f"{folder}/{name}" if folder else name
            if target:
                links.append((below, target))
            else:
                pending.append((below, real and f"{real}/{name}"))


def _evaluations(top: str, folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(os.path.join(top, folder)) as entries:
        for item in entries:
            if os.path.isfile(os.path.join(item.path, EVALUATION)):
                yield f"{folder}/{item.name}"


def _target(item: "os.DirEntry[str]", root: str) -> str | None:
    """Return the path of a linked folder outside the root, "" for a folder that is not a link, and
    None for anything else. Links to folders inside the root are ignored, because these folders are
    found anyway. Links to folders above the root are ignored, because they would form a loop."""
    if not item.is_symlink():
        return "" if item.is_dir(follow_symlinks=False) else None
    target = os.path.realpath(item.path)
    if not os.path.isdir(target) or f"{target}/".startswith(f"{root}/"):
        return None
    return None if f"{root}/".startswith(f"{target.rstrip('/')}/") else target


def _of_names(paths: Iterable[str]) -> set[str]:
    """Return the run folders outside sweeps, from the paths of all files in a store."""
    folders: set[str] = set()
    sweeps: set[str] = set()
    indexes: set[str] = set()
    facts: set[str] = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        above, _, last = folder.rpartition("/")
        if any(part.startswith(".") for part in folder.split("/")):
            continue
        if name == _PLAN:
            sweeps.add(folder)
        elif name in _MARKS:
            folders.add(folder)
        elif name == _EVAL_INDEX:
            indexes.add(f"{folder}/{_EVAL_RUNS}".lstrip("/"))
        elif name == EVALUATION:
            facts.add(folder)
        elif last.startswith(_ITERATION) or last in _MARKS:
            folders.add(above)
    runs = sorted(folders)
    folders |= {
        folder
        for folder in facts
        if folder.rpartition("/")[0] in indexes
        and not any(not run or folder.startswith(f"{run}/") for run in runs)
    }
    return {
        folder
        for folder in folders
        if not any(folder == sweep or folder.startswith(f"{sweep}/") for sweep in sweeps)
    }


class FolderRun(RecordedRun):
    """A run outside sweeps, found as a folder. `sweep` is the folder above ("." at the root), and
    `id` is a hash of the path. The run has succeeded if its last checkpoint is final, or if it is a
    complete evaluation. Otherwise the state is unknown."""

    def __init__(
        self, store: Store, folder: str, files: Files, index: Index, on_error: OnError | None = None
    ) -> None:
        above, _, name = folder.rpartition("/")
        import hashlib

        super().__init__(SweepFolder(store, above or "."), files, index, on_error)
        self._folder = folder
        self.id = hashlib.sha256(folder.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        self.name = self.cell = name or os.path.basename(store.root.rstrip("/")) or "."
        self._facts: Facts | None = None
        ended = self.readable(self._recall_finished, False)
        self.state = State.SUCCEEDED if ended else NoState.UNKNOWN

    @functools.cached_property
    def config(self) -> dict[str, object]:
        """The contents of `config.json`; for an evaluation, the settings in its `metadata.json`."""
        return self.readable(self._recall_config, {}) or {}

    def folders(self) -> list[str]:
        return [self._folder]

    @property
    def evaluation(self) -> Facts | None:
        """The facts about the evaluation; None if the folder is no evaluation in an EvalStore."""
        if self._facts is None and self.files.source(self._below(EVALUATION)) is not None:
            path = self._below(EVALUATION)
            facts = self._recall("evaluation", EVALUATION, lambda: read_document(self, path))
            self._facts = None if facts is None else facts_of(facts)
        return self._facts

    def checkpoint_records(self) -> list[dict[str, object]]:
        """Return the records in `checkpoints.jsonl`; for an evaluation, a record of the evaluated
        checkpoint."""
        records = super().checkpoint_records()
        if records or (facts := self.evaluation) is None or facts.path is None:
            return records
        record: dict[str, object] = {"name": facts.checkpoint, "sampler_path": facts.path}
        step = step_of_name(facts.checkpoint)
        return [record | {"attempt": 1} | ({} if step is None else {"batch": step})]

    def _metrics_files(self) -> list[tuple[str, Stamp | None]]:
        files = super()._metrics_files()
        if files[0][1] is None and self.evaluation is not None:
            path = self._below(EVALUATION)
            return [(path, self.files.stamp(path))]
        return files

    def _recall_finished(self) -> bool:
        if self._recall("finished", "checkpoints.jsonl", self._is_finished):
            return True
        facts = self.evaluation
        return facts is not None and facts.scores.keys() >= {*facts.benchmarks}

    def _recall_config(self) -> dict[str, object]:
        config = self._recall("config", "config.json", lambda: self._read_object("config.json"))
        facts = self.evaluation if config is None else None
        return config or ({} if facts is None else dict(facts.config))

    def _read_object(self, name: str) -> dict[str, object] | None:
        path = self._below(name)
        try:
            document: object = decode(self.store.read(path))
        except NotFound:
            return None
        except ValueError as error:
            raise StoreError(f"{self.root}/{path}: damaged ({error})") from error
        if not is_table(document):
            raise StoreError(f"{self.root}/{path}: should be a JSON object of settings")
        return document

    def _is_finished(self) -> bool:
        return ends_final(self.checkpoint_records())

    def _recall(self, what: str, name: str, find: Callable[[], T]) -> T | None:
        """Return the result of `find`; None if there is no file `name`. The result is cached until
        the file changes."""
        source = self.files.source(self._below(name))
        if source is None:
            return None
        return self.index.recall(self.id, what, [(name, source.stamp)], find)

    def _below(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name


def folder_runs(
    store: Store, memory: Folder | None, on_error: OnError | None = None
) -> list[FolderRun]:
    """Return the runs in a store that belong to no sweep. `memory` is the folder of the cache."""
    index, files = Index(memory, "folders"), Files(store, "")
    return [
        FolderRun(store, folder, files, index, on_error) for folder in find_folders(store, on_error)
    ]
