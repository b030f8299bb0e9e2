"""Records each launch in `<sweep>/code/<id>.launch.json`: its provenance, service, variables, and
digests of its data and its program. Runs of different launches are compared by these records."""

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from sweeper.errors import AlreadyExists
from sweeper.recipe import live_code, snapshot
from sweeper.recipe.snapshot import CodeCopy
from sweeper.store.base import Store
from sweeper.store.documents import encode
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import Plan

_DOCUMENTS = (".md", ".rst", ".gitignore")
_GRID = re.compile(rb"^(recipe|command|stages|extends)\s*:", re.MULTILINE)
_ALSO_GRID = re.compile(
    rb"^(grid|zip|random|seeds|metric|launch|base|from|stages)\s*:", re.MULTILINE
)
_GRID_BYTES = 100_000
_DATA_FILES = 200
_WHOLE_BYTES = 50_000_000
"""Maximum size of a data file that is hashed as a whole. Of a larger file, the size and the
`_END_BYTES` at both ends are hashed."""
_END_BYTES = 1_000_000


def keep(
    folder: SweepFolder, plan: Plan, origin: Mapping[str, object], code: CodeCopy
) -> dict[str, object]:
    """Store the record of a launch. Return the provenance `origin`, with two more entries: the
    record's id as `launch`, and the digest of the program as `program`. Raises `StoreError`."""
    files = program_files(folder, plan, code)
    listed = encode(files)
    path = folder.code(f"{hashlib.sha256(listed).hexdigest()[:16]}.files.json")
    _create(folder.store, path, listed)
    provenance = {**origin, "program": live_code.digest(files)}
    record: dict[str, object] = {
        **provenance,
        "files": path if files else None,
        "service": plan.service,
        "address": os.environ.get("TINKER_BASE_URL") if plan.service == "tinker" else None,
        "env": dict(plan.launch.env),
        "data": _data(plan),
    }
    data = encode(record)
    identity = hashlib.sha256(data).hexdigest()[:16]
    _create(folder.store, folder.launch(identity), data)
    return {**provenance, "launch": identity}


def has_changed(folder: SweepFolder, plan: Plan, secrets: Collection[str]) -> bool:
    """Return whether the program in the checkout differs from the copy that was made for the
    launch of `plan`. Return True if this cannot be determined."""
    now = (
        None
        if plan.snapshot is None
        else snapshot.preview(folder.store, plan.snapshot, secrets=secrets)
    )
    if now is None or now.snapshot == plan.snapshot:
        return now is None
    recorded = (plan.provenance or {}).get("program")
    return recorded is None or recorded != live_code.digest(program_files(folder, plan, now))


def _create(store: Store, path: str, data: bytes) -> None:
    if not store.exists(path):
        with suppress(AlreadyExists):
            store.create(path, data)


def program_files(folder: SweepFolder, plan: Plan, code: CodeCopy) -> dict[str, str]:
    """Return the digests of the program's files, by path. The files are those in the copy of the
    code, or, without a copy, the source files that runs execute."""
    if code.snapshot is None:
        return live_code.files((part.recipe for part in plan.parts), folder.store.local_path(""))
    root = code.snapshot.root
    grids = {os.path.realpath(path) for path in (plan.grid_path, *(p for p, _ in plan.extends))}
    return {
        os.fsencode(name).decode("utf-8", "replace"): digest
        for name, digest in code.files.items()
        if not (name.endswith(_DOCUMENTS) or _is_grid(os.path.join(root, name), grids))
    }


def _is_grid(path: str, grids: Iterable[str]) -> bool:
    if path in grids:
        return True
    if not path.endswith((".yaml", ".yml")):
        return False
    try:
        with open(path, "rb") as file:
            text = file.read(_GRID_BYTES)
    except OSError:
        return False
    return bool(_GRID.search(text) and _ALSO_GRID.search(text))


def _data(plan: Plan) -> dict[str, str]:
    """Return the digests of at most `_DATA_FILES` data files whose paths are in configurations or
    commands. The keys are the paths as written in the grid."""
    hashes: dict[str, str] = {}
    for cwd, word in _words(plan):
        path = os.path.join(cwd, os.path.expanduser(word))
        if word in hashes or len(hashes) >= _DATA_FILES:
            continue
        with suppress(OSError, ValueError):
            if os.path.isfile(path):
                hashes[word] = _digest(path)
    return hashes


def _words(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (folder, path) for each text in configurations and commands that may be a path. A
    relative path starts at the folder."""
    for part in plan.parts:
        cwd = part.recipe.cwd
        seen: set[str] = set()
        for run in part.runs:
            seen.update(v for v in run.config.values() if isinstance(v, str) and _may_be_path(v))
        words = part.recipe.command or []
        seen.update(w for w in words[1:] if _may_be_path(w) and not w.endswith(live_code.SOURCES))
        yield from ((cwd, word) for word in sorted(seen))


def _may_be_path(text: str) -> bool:
    return len(text) < 1_000 and "://" not in text and ("/" in text or "." in text)


def _digest(path: str) -> str:
    size = os.stat(path).st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        if size <= _WHOLE_BYTES:
            while block := file.read(_END_BYTES):
                digest.update(block)
        else:
            digest.update(file.read(_END_BYTES))
            file.seek(-_END_BYTES, os.SEEK_END)
            digest.update(file.read(_END_BYTES))
    return digest.hexdigest()[:16]
