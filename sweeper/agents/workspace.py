"""The workspace of the agents' tools: a root, a grids folder and an allowance."""

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sweeper.agents import allowance
from sweeper.agents.allowance import Limits
from sweeper.agents.grids import Recorded, planned_for, recorded_elsewhere
from sweeper.errors import AnotherLauncher, NotFound, SweeperError, UsageError
from sweeper.launcher.preview import LaunchPreview, survey
from sweeper.results.registry import Registry
from sweeper.results.sweeps import Sweep
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Budget, Plan, Run
from sweeper.sweep.requests import Requested
from sweeper.sweep.sweep_requests import user

AGENT = "SWEEPER_AGENT"
"""The environment variable that holds the agent's name, if `sweeper agent start` has started the
agent."""


class GridPreview(NamedTuple):
    """A preview of the launch of a grid. `reused` is a dict from run id to a run that has succeeded
    in another sweep and is not launched. `launch` is the preview for all other runs."""

    launch: LaunchPreview
    reused: Mapping[str, Recorded]

    @property
    def starting(self) -> list[Run]:
        """The runs that a launch would start."""
        return [preview.run for preview in self.launch.previews if preview.attempt]


class Workspace:
    """The root where sweeps are stored, the grids folder, and the limits on agents. Agents can
    resume, cancel and retry only sweeps that agents have launched. Raises `StoreError`."""

    def __init__(self, root: str, grids: str, limits: Limits) -> None:
        self.store = open_store(root)
        self.root, self.grids, self.limits = self.store.root, grids, limits
        self.agent = os.environ.get(AGENT, "")
        self.by = f"agent {self.agent} of {user()}" if self.agent else f"agent of {user()}"
        self._lock = threading.Lock()

    @property
    def registry(self) -> Registry:
        """A registry of the current contents of the root."""
        return Registry(self.root, snapshot=True)

    def left(self) -> dict[str, float]:
        """Return the unused part of each limit of the allowance."""
        return allowance.used(self.store, allowance.entries(self.store)).left(self.limits)

    def require_ours(self, sweep: str) -> None:
        """Raise `UsageError` if no agent has launched the sweep, and `NotFound` if there is no
        such sweep."""
        if not allowance.of_sweep(self.store, allowance.entries(self.store), sweep):
            self.registry.sweep(sweep)
            raise UsageError(
                f"{sweep} was launched by a person, and you can change only sweeps that agents "
                "launched: ask this person"
            )

    def preview(self, grid: str, overrides: Sequence[str], *, again: bool) -> GridPreview:
        """Plan a grid and preview its launch. Leave out runs that have succeeded in another sweep,
        except runs that are already recorded in this sweep. Leave out nothing if `again` is set, or
        if the grid has stages or is a race. Raises `UsageError`."""
        planned = planned_for(self.grids, grid, overrides)
        reused: dict[str, Recorded] = {}
        if not again and not planned.stages and planned.race is None:
            on_record = self._recorded(planned.name)
            recorded = recorded_elsewhere(self.store, planned)
            reused = {run: entry for run, entry in recorded.items() if run not in on_record}
            remaining = tuple(run for run in planned.runs if run.id not in reused)
            planned = planned._replace(runs=remaining)
        return GridPreview(survey(planned, self.store), reused)

    def _recorded(self, sweep: str) -> set[str]:
        try:
            return {run.id for run in SweepFolder(self.store, sweep).read_plan().runs}
        except NotFound:
            return set()

    def launch(self, preview: GridPreview, requested: Mapping[str, float]) -> dict[str, float]:
        """Launch a previewed grid. `requested` has limits on the launch in tokens, dollars and
        hours. Return what is left of the allowance. Raises `UsageError` if the launch exceeds
        the allowance, and the errors of `launch`."""
        plan = preview.launch.plan
        if not self.limits.allows_any:
            raise UsageError(
                "nothing may be launched: this server was started without --budget. Ask for a "
                "server with a budget, such as --budget runs=50,usd=20"
            )
        folder = SweepFolder(self.store, plan.name)
        with self._lock:
            recorded = allowance.entries(self.store)
            if self._recorded(plan.name):
                self.require_ours(plan.name)
            launches = allowance.of_sweep(self.store, recorded, plan.name)
            counted = {run for entry in launches for run in entry.runs}
            new = [run.id for run in preview.starting if run.id not in counted]
            new += [f"to come: {k} {n}" for k, most in plan.unknown.items() for n in range(most)]
            left = allowance.used(self.store, recorded).left(self.limits)
            caps = self._caps(preview, requested, left, len(new))
            budget = self._budget(plan, caps, launches)
            life = self._life(plan.name, launches)
            entry = allowance.reserve(folder, new, budget, life, self.agent)
            try:
                self._recheck()
                limits = Budget(budget.get("usd"), budget.get("tokens"), budget.get("hours"))
                bounded = plan._replace(budget=limits) if caps else plan
                self.start(bounded)
                if life is None:
                    allowance.confirm(self.store, entry, folder.ensure_identity())
            except SweeperError:
                if not self._has_started(plan.name):
                    allowance.retract(self.store, entry)
                raise
        return self.left()

    def start(self, plan: Plan) -> None:
        """Record a plan and start its launcher. Raises the errors of `launch`."""
        from sweeper.launcher.launching import LaunchRequest, User, launch_plan

        launch_plan(LaunchRequest(plan, self.root, wait=False), User())

    def start_again(self, folder: SweepFolder) -> None:
        """Start the launcher of a recorded sweep, if none is running. Raises the errors of
        `launch`."""
        from sweeper.launcher.launching import resume

        with suppress(AnotherLauncher):
            resume(folder, wait=False)

    def start_runs(self, sweep: Sweep, runs: Sequence[str]) -> list[Requested]:
        """Retry failed runs. Raises the errors of `retry`."""
        from sweeper.launcher.control import retry_runs

        return retry_runs(sweep, runs)

    def _life(self, sweep: str, launches: Sequence[allowance.Entry]) -> str | None:
        """Return the text that identifies the sweep, and record it as the `life` of `launches`.
        Return None if `launches` is empty, because then no agent has launched the sweep."""
        if not launches:
            return None
        life = SweepFolder(self.store, sweep).ensure_identity()
        for entry in launches:
            if entry.life != life:
                allowance.confirm(self.store, entry, life)
        return life

    def retry(self, sweep: str, runs: Sequence[str]) -> list[Requested]:
        """Start failed runs again. Each retried run counts as one more run of the allowance. Raises
        `UsageError` if the allowance is too small, and the errors of `retry`."""
        from sweeper.launcher.control import to_retry

        self.require_ours(sweep)
        if not self.limits.allows_any:
            raise UsageError(
                "nothing may be started: this server was started without --budget. Ask for a "
                "server with a budget, such as --budget runs=50,usd=20"
            )
        opened = Registry(self.root).sweep(sweep)  # a snapshot would not show changes
        chosen = [run.id for run in to_retry(opened, runs)]
        with self._lock:
            left = self.left()
            if len(chosen) > left.get("runs", len(chosen)):
                raise UsageError(
                    f"{plural(len(chosen), 'more run')} would exceed what is left of the budget: "
                    f"{_listed(left)}"
                )
            self._require_room(sweep, left)
            again = [f"{run} again {secrets.token_hex(4)}" for run in chosen]
            launches = allowance.of_sweep(self.store, allowance.entries(self.store), sweep)
            life = self._life(sweep, launches)
            folder = SweepFolder(self.store, sweep)
            entry = allowance.reserve(folder, again, {}, life, self.agent) if again else None
            try:
                self._recheck()
                return self.start_runs(opened, chosen)
            except SweeperError:
                if entry is not None:
                    allowance.retract(self.store, entry)
                raise

    def _require_room(self, sweep: str, left: Mapping[str, float]) -> None:
        """Raise `UsageError` if the sweep's own budget allows it to use more than `left`, the rest
        of the allowance."""
        recorded = allowance.of_sweep(self.store, allowance.entries(self.store), sweep)
        now = allowance.used(self.store, recorded)._asdict()
        for name in left.keys() - {"runs"}:
            most = max((entry.budget.get(name, 0.0) for entry in recorded), default=0.0)
            if most - now[name] > left[name]:
                raise UsageError(
                    f"{sweep} may still use {most - now[name]:g} {name} of its own budget, but "
                    f"only {left[name]:g} {name} are left of this server's budget: launch the "
                    "failed runs in another grid with a smaller budget"
                )

    def _caps(
        self, preview: GridPreview, limits: Mapping[str, float], left: Mapping[str, float], new: int
    ) -> dict[str, float]:
        """Return the launch's limits: a dict from `tokens`, `usd` and `hours` to amounts. Amounts
        come from `limits`, or else from `left`, the rest of the allowance (but are 0 then if no run
        is new). `new` is the number of new runs. Raises `UsageError` if the launch may exceed a
        limit, or executes commands although the allowance limits tokens or dollars."""
        if new > left.get("runs", new):
            raise UsageError(
                f"{plural(new, 'more run')} would exceed what is left of the budget: "
                f"{_listed(left)}"
            )
        expected = preview.launch.estimate
        caps: dict[str, float] = {}
        for name in ("tokens", "usd", "hours"):
            if name not in left:
                if name in limits:
                    caps[name] = limits[name]
                continue
            # A launch without new runs needs no more of the allowance.
            caps[name] = limits.get(name, left[name] if new else 0.0)
            if caps[name] > left[name] or (new and left[name] <= 0):
                raise UsageError(
                    f"{caps[name]:g} {name} would exceed what is left of the budget: "
                    f"{_listed(left)}"
                )
        for name in ("tokens", "usd"):
            if name in left and new and preview.launch.plan.has_commands:
                raise UsageError(
                    f"this server's budget limits {name}, but runs that execute a command do not "
                    f"always record their {name}: launch a recipe, or ask for a server with "
                    "--budget runs=N,hours=H"
                )
        guess = None if expected is None else expected.document()
        for name in ("tokens", "usd"):
            likely = None if guess is None else guess.get(name)
            expecting = likely if isinstance(likely, int | float) and new else 0.0
            if name in caps and expecting > caps[name]:
                raise UsageError(
                    f"this launch would use about {expecting:,.4g} {name}, more than its limit of "
                    f"{caps[name]:g}: launch fewer or shorter runs. Left of the budget: "
                    f"{_listed(left)}"
                )
        return caps

    def _budget(
        self, plan: Plan, caps: Mapping[str, float], launches: Sequence[allowance.Entry]
    ) -> dict[str, float]:
        """Return the budget of the whole sweep: the amounts that earlier launches have used or may
        still use, plus `caps`, but at most the grid's own budget."""
        spent = allowance.used(self.store, launches)._asdict()
        of_grid = {} if plan.budget is None else plan.budget.document()
        total = {name: float(spent[name]) + cap for name, cap in caps.items()}
        for name, most in of_grid.items():
            if isinstance(most, int | float):
                total[name] = min(most, total.get(name, most))
        return total

    def _recheck(self) -> None:
        """Raise `UsageError` if the recorded launches exceed the allowance. Another server may have
        recorded a launch at the same time."""
        used = allowance.used(self.store, allowance.entries(self.store))
        for name, most in self.limits._asdict().items():
            if most is not None and getattr(used, name) > most * (1 + 1e-9):
                raise UsageError(
                    f"this launch and another launch at the same time would together exceed the "
                    f"budget for {name}: try again if enough {name} are left"
                )

    def _has_started(self, sweep: str) -> bool:
        try:
            return bool(SweepFolder(self.store, sweep).read_states())
        except NotFound:
            return False


def _listed(left: Mapping[str, float]) -> str:
    """Format the rest of the allowance, for example as `runs 3, tokens 1000`."""
    return ", ".join(f"{name} {amount:g}" for name, amount in left.items())
