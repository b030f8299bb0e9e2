"""From a plan to a launcher at work: what `sweeper launch` and `sweeper.launch` do.

In this order, so that a launch which cannot work leaves nothing behind: everything that can be
missing is checked, then the engine is started, then the plan is written, then the launcher runs;
here, in a tmux window, or on its own with a log file.

Run as a module with the sweep's folder it is that launcher.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeper import environment, lock, provenance
from sweeper.backends import open_backend
from sweeper.documents import encode, read_json, timestamp
from sweeper.errors import NotFound, StoreError, SweeperError
from sweeper.launcher import Launcher, Summary
from sweeper.layout import Layout
from sweeper.states import OPEN
from sweeper.store import Store, open_store
from sweeper.sweeps import read_plan, read_states

if TYPE_CHECKING:
    from sweeper.planner import Plan

__all__ = ["Launched", "default_root", "drive", "launch"]

_ENGINE_SECONDS = 60.0


class Launched(NamedTuple):
    """A launched sweep. `summary` is None when the launcher was left to itself."""

    name: str
    root: str
    summary: Summary | None


def default_root() -> str:
    """Where sweeps lie when nobody says otherwise: $SWEEPER_ROOT, else `sweeps` here."""
    return os.environ.get("SWEEPER_ROOT") or "sweeps"


def launch(
    source: "str | os.PathLike[str] | Mapping[str, Any] | Plan",
    root: str | None = None,
    *,
    overrides: "Mapping[str, Any] | Sequence[str] | None" = None,
    wait: bool = True,
    notify: Callable[[Summary], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> Launched:
    """Launch a grid, or go on with it: runs that are done are skipped, running ones adopted, new
    ones added, failed ones left alone unless `launch.retries` has some left.

    `source` is a grid's path, its mapping, or a plan. With `wait` this process is the launcher
    until the sweep has ended, and `notify` hears of every change; `tell` gets a sentence about
    what this launch does to an earlier one. Raises `GridError` for a grid that cannot run,
    `EnvironmentFailure` when something it needs is missing, `AnotherLauncher` when the sweep has
    one.
    """
    from sweeper.planner import Plan, plan

    planned = source if isinstance(source, Plan) else plan(source, overrides)
    store = open_store(root or default_root())
    open_backend(planned.launch.backend, planned.name, f"{store.root}/{planned.name}")
    environment.require(_secrets(planned))
    url = _ensure_engine(planned.launch.backend) if planned.service == "local" else None
    with lock.holding_sweep(store, planned.name):
        _record(store, planned, url, tell)
        if wait:
            return Launched(planned.name, store.root, _drive(store, planned.name, notify))
    _detach(store, planned.name, planned.launch.backend)
    return Launched(planned.name, store.root, None)


def drive(folder: str, notify: Callable[[Summary], None]) -> Summary:
    """Be the launcher of the sweep at `folder` until it has ended."""
    root, _, sweep = folder.rpartition("/")
    store = open_store(root)
    with lock.holding_sweep(store, sweep):
        return _drive(store, sweep, notify)


def _drive(store: Store, sweep: str, notify: Callable[[Summary], None]) -> Summary:
    folder = f"{store.root}/{sweep}"
    backend = open_backend(read_plan(store, sweep)["launch"]["backend"], sweep, folder)
    summary = Launcher(store, sweep, backend, notify=notify).run()
    environment.forget(read_json(store, Layout(sweep).service)["env_file"])
    return summary


def _record(store: Store, plan: "Plan", url: str | None, tell: Callable[[str], None]) -> None:
    """Keep the environment, write the plan."""
    service = environment.service_environment(plan.service, url)
    path = environment.write(f"{store.root}/{plan.name}", service)
    layout = Layout(plan.name)
    store.replace(layout.service, encode({"schema": 1, "env_file": path, "engine": url}))
    document = plan.document() | {
        "created": timestamp(),
        "provenance": provenance.collect(plan.recipe.cwd),
    }
    with suppress(NotFound):  # which is the case at the first launch
        document = merge(read_plan(store, plan.name), document)
        _tell_retired(store, document, tell)
    store.replace(layout.plan, encode(document))


def _secrets(plan: "Plan") -> list[str]:
    return [*plan.secrets, *(["TINKER_API_KEY"] if plan.service == "tinker" else [])]


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The plan of a sweep that is launched again. Runs are matched by id and keep the name they
    are known by; those that the grid no longer has stay on record, retired."""
    names = {run["id"]: run["name"] for run in old["runs"]}
    taken = set(names.values())
    runs: list[dict[str, Any]] = []
    for run in new["runs"]:
        name = names.get(run["id"])
        if name is None:
            # A name that an earlier grid gave to another run gets a suffix.
            name = run["name"] if run["name"] not in taken else f"{run['name']}~{run['id'][:6]}"
        runs.append(run | {"name": name})
    kept = {run["id"] for run in runs}
    retired = [run | {"retired": True} for run in old["runs"] if run["id"] not in kept]
    return new | {"created": old["created"], "runs": runs + retired}


def _tell_retired(store: Store, document: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Say what becomes of runs that were launched by an earlier grid and are not in this one."""
    states = read_states(store, document["name"])
    known = [states[r["id"]] for r in document["runs"] if r.get("retired") and r["id"] in states]
    if known:
        running = sum(state.state in OPEN for state in known)
        still = f"; {running} still running, and left to end" if running else ""
        tell(f"{len(known)} runs that were launched before are no longer in the grid{still}")


def _ensure_engine(backend: str) -> str:
    """The address of this user's engine, started when there is none."""
    from sweeper.engine import lifecycle
    from sweeper.engine.home import home

    found = lifecycle.find()
    if found is not None:
        return found.url
    if backend == "tmux":
        from sweeper.backends.tmux import TmuxServer

        TmuxServer().ensure_window("engine", "engine", "engine", lifecycle.command(home()))
    else:
        null = subprocess.DEVNULL  # it keeps a log of its own
        subprocess.Popen(
            lifecycle.command(home()), stdin=null, stdout=null, stderr=null, start_new_session=True
        )
    return lifecycle.wait(timeout=_ENGINE_SECONDS).url


def _detach(store: Store, sweep: str, backend: str) -> None:
    """Start the launcher where it outlives this process, and see that it has taken over."""
    layout = Layout(sweep)
    before = _published(store, layout)
    command = [sys.executable, "-P", "-m", "sweeper.start", f"{store.root}/{sweep}"]
    if backend == "tmux":
        from sweeper.backends.tmux import TmuxServer

        TmuxServer().ensure_window(sweep, f"{store.root}/{sweep}", "launcher", command)
        where = f"its window: `sweeper attach {sweep}`"
    else:
        where = store.local_path(layout.launcher_log) or os.devnull
        with open(where, "ab") as log:
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    deadline = time.monotonic() + 20
    while not lock.is_held(store, sweep) and time.monotonic() < deadline:
        if _published(store, layout) != before:
            return  # it came, and went already: there was little to do
        time.sleep(0.05)
    if time.monotonic() >= deadline:
        raise StoreError(f"the launcher of {sweep!r} did not start: see {where}")


def _published(store: Store, layout: Layout) -> object:
    """What the last launcher published; changes when another has begun."""
    with suppress(NotFound):
        return store.read(layout.observations)
    return None


def main(arguments: Sequence[str]) -> int:
    """The launcher on its own: prints a line at every change."""
    from sweeper.progress import exit_code, line

    try:
        summary = drive(arguments[0], lambda s: print(line(s), flush=True))
    except SweeperError as error:
        print(f"sweeper: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: the jobs go on", file=sys.stderr)
        return 130
    return exit_code(summary)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
