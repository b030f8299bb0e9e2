"""Asks users before they execute a sweep of another user, or lose finished runs. A plan written
from this home folder contains a seal: a keyed hash of the document."""

import hashlib
import hmac
import json
import os
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from sweeper.common.atomic import atomic_create
from sweeper.common.json_values import list_of, table_of
from sweeper.common.redaction import is_secret_name
from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.paths import home
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.states import State

Agree = Callable[[Sequence[str]], bool]
"""A function that shows lines to the user, such as what would be executed, and returns whether the
user agrees."""

_SEAL = "seal"
_VARIABLE = "SWEEPER_IDENTITY"
_SHORTEST = 16


def refuse(lines: Sequence[str]) -> bool:
    """Return False. Callers that cannot ask a user pass this function as the argument `agree`."""
    del lines
    return False


def sealed(document: Mapping[str, object]) -> dict[str, object]:
    """Return `document` with this user's seal (a keyed hash) added. Raises `EnvironmentFailure`."""
    plain = {key: value for key, value in document.items() if key != _SEAL}
    return plain | {_SEAL: _seal(_key(make=True), plain)}


def is_ours(document: Mapping[str, object]) -> bool:
    """Return whether a document has this user's seal, or whether the user has agreed to exactly
    this document before."""
    key, seal = _key(make=False), str(document.get(_SEAL)).encode("utf-8", "replace")
    if key and hmac.compare_digest(seal, _seal(key, document).encode()):
        return True
    return _digest(document) in _agreed()


def require(document: Mapping[str, object], where: str, agree: Agree) -> None:
    """Unless `is_ours` returns True for `document`, the plan of the sweep at `where`, ask the user
    with `agree` whether to execute it. Raise `UsageError` if the user does not agree."""
    if is_ours(document):
        return
    if not agree([f"{where} was not launched by you from here:", *_executed(document)]):
        raise UsageError(
            f"{where} was not launched by you from here, and its commands would run with your "
            "environment: read the sweep with `sweeper show`, then add --trust"
        )
    _remember(document)


def _executed(document: Mapping[str, object]) -> Iterator[str]:
    """Yield lines that describe what a launch of a recorded sweep executes."""
    recipe, launch = table_of(document.get("recipe")), table_of(document.get("launch"))
    stages = [table_of(stage) for stage in list_of(document.get("stages"))]
    recipes = [table_of(stage.get("recipe")) for stage in stages] or [recipe]
    of_stages = [table_of(stage.get("launch")) for stage in stages]
    env = dict.fromkeys(
        pair for section in (launch, *of_stages) for pair in table_of(section.get("env")).items()
    )
    came = table_of(document.get("provenance"))
    typed = came.get("command")
    facts = {
        "made on": came.get("host"),
        "by": _argv(typed),
        "executes": "; ".join(_argv(r.get("command")) or str(r.get("reference")) for r in recipes),
        "file": "; ".join(dict.fromkeys(str(r["file"]) for r in recipes if r.get("file"))),
        "with": "; ".join(dict.fromkeys(str(r["python"]) for r in recipes if r.get("python"))),
        "in": "; ".join(dict.fromkeys(str(r["cwd"]) for r in recipes if r.get("cwd"))),
        "on": launch.get("backend"),
        "on an alarm": _argv(table_of(document.get("on_alarm")).get("run")),
        "tells": ", ".join(map(str, _receivers(table_of(document.get("notify"))))),
        "variables": ", ".join(_shown(env)),
        "secrets": ", ".join(map(str, list_of(document.get("secrets")))),
    }
    for name, value in facts.items():
        if value:
            yield f"  {name}: {value}"


def _receivers(notify: Mapping[str, object]) -> Iterator[object]:
    yield from filter(None, (_argv(notify.get("command")), notify.get("webhook")))
    email = table_of(notify.get("email"))
    yield from filter(None, (notify.get("slack"), email.get("server"), email.get("password")))


def _argv(command: object) -> str:
    return shlex.join(map(str, list_of(command))) or str(command or "")


def _shown(variables: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield environment variables with their values, since a value can also start a program
    (LD_PRELOAD). The values of secrets are left out."""
    for name, value in variables:
        yield name if is_secret_name(str(name)) else f"{name}={value}"


def _text(document: Mapping[str, object]) -> bytes:
    plain = {key: value for key, value in document.items() if key != _SEAL}
    return json.dumps(json.loads(json.dumps(plain)), sort_keys=True, separators=(",", ":")).encode()


def _seal(key: bytes, document: Mapping[str, object]) -> str:
    return hmac.new(key, _text(document), hashlib.sha256).hexdigest()


def _digest(document: Mapping[str, object]) -> str:
    return hashlib.sha256(_text(document)).hexdigest()


def _key(*, make: bool) -> bytes:
    """Return this user's secret key: $SWEEPER_IDENTITY, or else the key in the home folder. If
    there is no key, create one; with `make=False`, return an empty value instead."""
    given = os.environ.get(_VARIABLE, "")
    if given:
        if len(given) < _SHORTEST:
            raise EnvironmentFailure(f"{_VARIABLE} has fewer than {_SHORTEST} characters")
        return given.encode("utf-8", "surrogateescape")
    path = os.path.join(home(), "identity")
    try:
        with suppress(FileNotFoundError):
            return _read(path)
        if not make:
            return b""
        os.makedirs(home(), mode=0o700, exist_ok=True)
        with suppress(FileExistsError):  # Another launch was first, so its key is used.
            atomic_create(path, os.urandom(32).hex().encode(), mode=0o600)
        return _read(path)
    except OSError as error:
        raise EnvironmentFailure(
            f"{path}: {error.strerror}; set SWEEPER_HOME to a writable folder"
        ) from error


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read().strip()


def _agreed() -> set[str]:
    try:
        with open(os.path.join(home(), "trusted"), encoding="ascii", errors="replace") as file:
            return set(file.read().split())
    except OSError:
        return set()


def _remember(document: Mapping[str, object]) -> None:
    """Record that the user agreed to a document. A single write appends the document's digest,
    because another process may append at the same time."""
    with suppress(OSError):  # The user is asked again then.
        os.makedirs(home(), mode=0o700, exist_ok=True)
        with open(os.path.join(home(), "trusted"), "a", encoding="ascii") as file:
            file.write(f"{_digest(document)}\n")


def dropped(folder: SweepFolder, old: Plan, remaining: Container[str]) -> list[Run]:
    """Return the runs of the plan `old` that have succeeded and are not retired, and whose ids are
    not in `remaining`."""
    left = [run for run in old.runs if not run.retired and run.id not in remaining]
    states = folder.read_states() if left else {}
    return [r for r in left if r.id in states and states[r.id].state is State.SUCCEEDED]


def sentence(count: int) -> str:
    """Return the part of a message which says that a launch would drop `count` finished runs."""
    return (
        f"{plural(count, 'finished run is', 'finished runs are')} no longer in the grid: a launch "
        "removes such runs from the sweep's status and report"
    )


def require_consent(folder: SweepFolder, new: Plan, agree: Agree) -> None:
    """Ask the user before a plan removes finished runs. Raises `UsageError` if the answer is no."""
    with suppress(NotFound):  # at the first launch
        old = folder.read_plan()
        remaining = {run.id for run in folder.with_chosen(new).runs}
        gone = dropped(folder, old, remaining)
        if gone and not agree([f"{new.name}: {sentence(len(gone))}"]):
            raise UsageError(
                f"{new.name}: {sentence(len(gone))}. To do that, launch with --drop. "
                "Otherwise keep their values in the grid, or give the grid another name"
            )
