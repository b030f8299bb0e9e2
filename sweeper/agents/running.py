"""The tools that plan, launch, watch and stop sweeps. Most tools call the same functions as the
verbs of the same names. Agents read the docstrings and argument descriptions of tools."""

import asyncio
import contextlib
import time
from collections import Counter
from typing import Annotated

from pydantic import Field

from sweeper.agents.answers import MOST, Ours, Text, page
from sweeper.agents.arguments import (
    Amount,
    Arguments,
    Grid,
    Name,
    Number,
    Overrides,
    Selectors,
    Size,
)
from sweeper.agents.workspace import GridPreview, Workspace
from sweeper.results.runs import RecordedRun
from sweeper.results.status import alarms_of, read_status
from sweeper.results.sweeps import Sweep

_MOST_SECONDS = 300.0
_CANCEL_SECONDS = 30.0
_POLL_SECONDS = 0.5


class Launch(Arguments):
    """The grid to launch, and the limits on the launch in tokens, dollars and hours."""

    grid: Grid
    overrides: Overrides = []  # noqa: RUF012 - pydantic copies it
    why: Annotated[
        str, Field(max_length=5000, description="the purpose of the sweep; it becomes a note")
    ] = ""
    tokens: Amount = None
    usd: Amount = None
    hours: Amount = None
    again: Annotated[
        bool, Field(description="also run configurations that have succeeded in another sweep")
    ] = False


class Running:
    """Tools that plan, launch, watch and stop sweeps. Each returns JSON values or raises
    `SweeperError`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def plan(self, grid: Grid, overrides: Overrides = []) -> dict[str, object]:  # noqa: B006 - the protocol's default
        """Show which runs a launch of the grid would start and which are already done, an
        estimate of the cost, and what is left of the budget. Nothing is started. Mistakes in the
        grid are reported with line numbers. If the grid does not exist, the error lists the
        existing grids."""
        preview = self._workspace.preview(grid, overrides, again=False)
        plan = preview.launch.plan
        names = [run.name for run in preview.starting]
        expected = preview.launch.estimate
        return {
            "sweep": plan.name,
            "runs_to_start": len(names),
            "runs_to_come": sum(plan.unknown.values()),
            "names": names[:20],
            "already_there": dict(
                Counter(
                    run_preview.state.state.value
                    for run_preview in preview.launch.previews
                    if not run_preview.attempt
                )
            ),
            "reused": self._reused(preview),
            "metric": None if plan.metric is None else plan.metric._asdict(),
            "seeds": len({run.seed for run in plan.runs}) if plan.runs else 0,
            "estimate": None if expected is None else expected.document(),
            "warnings": list(plan.warnings),
            "notes": list(plan.notes),
            "budget_left": self._workspace.left(),
        }

    def launch(self, request: Launch) -> dict[str, object]:
        """Start the runs of a grid, without waiting for them. The runs continue when this server
        stops. A launch that exceeds the budget set by a person is refused. If a run has
        succeeded in another sweep with the same configuration and seed, it is not run again:
        `reused` has its result."""
        from sweeper.results.annotations import Noted, mark

        preview = self._workspace.preview(request.grid, request.overrides, again=request.again)
        name = preview.launch.plan.name
        reused = self._reused(preview)
        if not preview.launch.plan.runs:
            return {"launched": False, "sweep": name, "reused": reused}
        left = self._workspace.launch(preview, request.set_values("tokens", "usd", "hours"))
        if request.why.strip():
            mark(name, Noted(request.why), root=self._workspace.root, by=self._workspace.by)
        started = len(preview.starting)
        answer = {"launched": True, "sweep": name, "runs_started": started, "reused": reused}
        return {**answer, "budget_left": left}

    def _reused(self, preview: GridPreview) -> list[dict[str, object]]:
        """Return the results of the runs that succeeded in other sweeps, at most `MOST`."""
        reused: list[dict[str, object]] = []
        sweeps: dict[str, dict[str, RecordedRun]] = {}
        for earlier in list(preview.reused.values())[:MOST]:
            if earlier.sweep not in sweeps:
                runs = self._workspace.registry.sweep(earlier.sweep).runs
                sweeps[earlier.sweep] = {run.id: run for run in runs}
            record = sweeps[earlier.sweep][earlier.run].record()
            reused.append(
                {
                    "run": f"{earlier.sweep}/{earlier.name}",
                    "value": record["value"],
                    "code": record["code"],
                }
            )
        return reused

    def status(
        self,
        sweep: Annotated[
            str | None, Field(max_length=300, description="a sweep's name; null: all sweeps")
        ] = None,
        number: Number = 1,
        size: Size = 20,
    ) -> dict[str, object]:
        """Return how many runs of a sweep are in each state, what the launcher observes, and
        whether jobs or a launcher are running (`at_work`). Without a sweep, return a page of all
        sweeps."""
        if sweep is None:
            records = self._workspace.registry.sweep_records()
            newest = sorted(records, key=lambda record: record["created"] or "", reverse=True)
            return page(newest, number, size).under("sweeps")
        return self._standing(self._workspace.registry.sweep(sweep))

    def _standing(self, sweep: Sweep) -> dict[str, object]:
        status = read_status(sweep)
        names = {run.id: run.name for run in sweep.runs}
        observed = {
            names.get(run, run): observation for run, observation in status.observed.items()
        }
        return {
            "sweep": sweep.name,
            "states": {state.value: count for state, count in status.counts.items()},
            "at_work": status.at_work,
            "finished": status.finished,
            "held": status.held,
            "unreachable": status.unreachable,
            "observed": dict(list(observed.items())[:20]),
            "waits": list(status.waits)[:20],
            "alarms": len(alarms_of(sweep, sweep.runs)),
            "changed": _mark_of(sweep),
        }

    async def wait(
        self,
        sweep: Name,
        seconds: Annotated[
            float, Field(ge=0, le=_MOST_SECONDS, description="the longest wait in seconds")
        ] = 60.0,
        changed: Annotated[
            str, Field(max_length=200, description="the value of `changed` in your last answer")
        ] = "",
    ) -> dict[str, object]:
        """Wait until a sweep changes: a run begins or ends, an alarm is raised, or the sweep is
        over. Pass `changed` from the last answer, so that you miss no change since then. If
        nothing changes for `seconds`, the answer has `timed_out: true`: then call `wait` again."""
        deadline = time.monotonic() + seconds
        while True:
            begun = time.monotonic()
            status = await asyncio.to_thread(self.status, sweep)
            left = deadline - time.monotonic()
            changed = changed or str(status["changed"])
            over = not status["at_work"]
            if over or status["changed"] != changed or left <= 0:
                return {**status, "timed_out": not over and status["changed"] == changed}
            await asyncio.sleep(min(left, max(_POLL_SECONDS, 10 * (time.monotonic() - begun))))

    def alarms(self, sweep: Name, number: Number = 1, size: Size = 20) -> dict[str, object]:
        """Return the alarms of a sweep's runs (detected problems), with evidence and advice."""
        opened = self._workspace.registry.sweep(sweep)
        raised = [
            {"run": alarm.name, "rule": alarm.rule, "time": alarm.time, "key": alarm.key,
             "step": alarm.step, "evidence": Text(alarm.message, 500), "advice": alarm.advice}
            for alarm in alarms_of(opened, opened.runs)
        ]  # fmt: skip
        return page(raised, number, size).under("alarms")

    async def cancel(self, sweep: Name, runs: Selectors = []) -> dict[str, object]:  # noqa: B006
        """Stop runs of a sweep that an agent has launched. Stopped runs do not continue later.
        Returns after at most 30 seconds. If runs are then still stopping, `still_stopping` is
        true."""
        from sweeper.launcher.control import cancel
        from sweeper.sweep.requests import Requested

        self._workspace.require_ours(sweep)
        task = asyncio.create_task(
            asyncio.to_thread(cancel, sweep, runs, root=self._workspace.root)
        )
        done: list[Requested] | None = None
        with contextlib.suppress(TimeoutError):
            done = await asyncio.wait_for(asyncio.shield(task), _CANCEL_SECONDS)
        if done is None:
            task.add_done_callback(_forget)
            return {"sweep": sweep, "still_stopping": True}
        reasons = dict(Counter(Ours(request.why) for request in done))
        return {"sweep": sweep, "still_stopping": False, "runs": reasons}

    def retry(self, sweep: Name, runs: Selectors = []) -> dict[str, object]:  # noqa: B006
        """Start failed runs again ([]: all failed runs) in a sweep that an agent has launched.
        Each retried run counts as one more run of your budget. The budget of the sweep still
        applies."""
        done = self._workspace.retry(sweep, runs)
        return {"sweep": sweep, "runs": dict(Counter(Ours(request.why) for request in done))}


def _mark_of(sweep: Sweep) -> str:
    """Return a hash that changes whenever a run gets an event, a run is added or an alarm is
    raised."""
    import hashlib

    from sweeper.alarms import names

    happened = sorted((run, sorted(map(str, events))) for run, events in sweep.events.items())
    text = repr((happened, len(names(sweep.folder)), len(sweep.runs)))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _forget(task: "asyncio.Task[object]") -> None:
    """Ignore an error of a `cancel` call that ends after the tool has answered."""
    with contextlib.suppress(BaseException):
        task.exception()
