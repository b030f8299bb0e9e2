"""Submits runs as jobs: records what an attempt is to do, then hands it to the backend."""

from collections.abc import Sequence
from contextlib import suppress

from sweeper.common.json_values import table_of
from sweeper.errors import NotFound, StoreError
from sweeper.scheduler.context import Context
from sweeper.scheduler.engine_watch import EngineWatch
from sweeper.scheduler.job_builder import JobBuilder, job_for
from sweeper.scheduler.places import Places
from sweeper.scheduler.run_table import RunTable
from sweeper.scheduler.stages import Stages
from sweeper.store.documents import encode
from sweeper.sweep.job import Job
from sweeper.sweep.launcher import Service
from sweeper.sweep.plan import Plan, launch_id
from sweeper.sweep.states import Event, begun_anew
from sweeper.sweep.tracking import fields, variables


class Submitter:
    """Submits attempts of one sweep to its `places`. `service` is the service record of the last
    launch, `engine` the watch of the runs' engine if they use one of ours, and `stages` the
    inputs from other runs."""

    def __init__(
        self,
        context: Context,
        run_table: RunTable,
        places: Places,
        service: Service,
        engine: EngineWatch | None,
        stages: Stages,
    ) -> None:
        self._context = context
        self._stages = stages
        self._run_table = run_table
        self._places = places
        self._service = service
        self._engine = engine
        self._builder = JobBuilder(context.plan, context.folder, service.env_file)
        self._diff: bytes | None = None
        self._described: dict[str, bytes] = {}  # what is known to be on record, by its path

    def open(self, run: str, attempt: int, place: str) -> str | None:
        """Records what the attempt is to do, then that it is about to be submitted to `place`.
        Returns the recorded place, since another launcher may have opened it. None if the record
        is damaged."""
        self.describe(run, attempt, place)
        if self._run_table.add(run, attempt, Event.INTENT, {"place": place} | self._launch()):
            return place
        there = self._places.at(run, attempt)
        if there not in (None, place):
            self.describe(run, attempt, there)
        return there

    def describe(self, run: str, attempt: int, place: str, *, again: bool = False) -> None:
        """Records what the attempt is to do at its place, from the plan. `again`: an equal record
        is left alone, since a job may be reading it."""
        planned = self._run_table.runs[run]
        planned = planned._replace(config=self._stages.config(planned))
        plan = self._context.plan.of(planned.stage)
        job = Job(
            run=run,
            attempt=attempt,
            name=planned.name,
            seed=planned.seed,
            config=planned.config,
            recipe=plan.recipe,
            cwd=plan.recipe.cwd,
            snapshot=plan.snapshot,
            env=plan.launch.env,
            metrics_dir=plan.launch.metrics_dir,
            env_file=self._service.env_file,
            secrets=plan.secrets,
            timeout_s=plan.launch.timeout_s,
            grace_s=plan.launch.grace_s,
            resume=plan.launch.resume,
            sync_s=plan.launch.sync_s,
            wandb=variables(plan, planned),
            fields=fields(plan, planned),
            engine=self._engine and self._engine.described(run, attempt),
            warm=plan.launch.warm,
            requirements=_requirements(plan),
            launch=launch_id(plan.provenance),
            first=begun_anew(self._run_table.events(run), attempt),
        )
        folder = self._context.folder
        path = folder.job(run, attempt)
        told = job_for(self._builder.capabilities[place], job, self._service.engine)
        data = encode(told.document())
        if again:
            if self._described.get(path) == data:
                return  # while a queue is closed this comes every round
            with suppress(NotFound, StoreError):
                if folder.store.read(path) == data:
                    self._described[path] = data
                    return
        if self._code_diff():
            diff = f"{folder.log_path(run, attempt)}/code.diff"
            folder.store.replace(diff, self._code_diff(), durable=False)
        folder.store.replace(path, data)
        if again:
            self._described[path] = data

    def _launch(self) -> dict[str, object]:
        """The entry of an intent that names the launch of the attempt."""
        found = launch_id(self._context.plan.provenance)
        return {} if found is None else {"launch": found}

    def _code_diff(self) -> bytes:
        """The difference of the code from its commit, as a diff; empty if there is none."""
        if self._diff is None:
            kept = table_of((self._context.plan.provenance or {}).get("diff"))
            self._diff = b""
            with suppress(NotFound):
                self._diff = self._context.store.read(str(kept["path"])) if kept else b""
        return self._diff

    def submit(self, place: str, runs: Sequence[str]) -> None:
        """Submits the newest opened attempt of each run to its place, and acknowledges it."""
        if not runs:
            return
        attempts = {run: self._run_table.views[run].state.opened for run in runs}
        specs = [self._builder.spec(self._run_table.runs[r], n, place) for r, n in attempts.items()]
        self._places.submit(place, specs)
        for run, attempt in attempts.items():
            self._run_table.add(run, attempt, Event.SUBMITTED)


def _requirements(plan: Plan) -> str | None:
    """The file in the copy of the code with the requirements of a stage's recipe."""
    name = plan.launch.requirements
    return None if name is None or plan.carried is None else plan.carried.files.get(name)
