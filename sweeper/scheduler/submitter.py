"""Submits runs as jobs: builds the job descriptions for backend and worker, records the description
of each attempt, then submits it."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from sweeper.backends import Capabilities, backend_type, capabilities_at, options_of
from sweeper.backends.base import JobSpec
from sweeper.common.json_values import table_of
from sweeper.common.logs import Log
from sweeper.common.sweeper_argv import worker_command
from sweeper.errors import NotFound, StoreError
from sweeper.recipe.command_template import render_window
from sweeper.scheduler.context import Context
from sweeper.scheduler.engine_watch import EngineWatch
from sweeper.scheduler.places import Places
from sweeper.scheduler.stages import Stages
from sweeper.store.base import Store, each
from sweeper.store.documents import encode
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.job import Job
from sweeper.sweep.launch_settings import MOST_PANES, Launch
from sweeper.sweep.launcher import Service
from sweeper.sweep.plan import Carried, Plan, Run, launch_id
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import Event, begun_anew
from sweeper.sweep.tracking import fields, variables

_LOG = Log(__name__)

Attempt = tuple[str, int]
"""A run's id and the number of its attempt."""


def asked_by(launch: Launch, place: str, config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the resources that the job of a run with this configuration requests at a place."""
    options = options_of(launch, place)
    if not options.get("overrides"):
        return options
    from sweeper.grid.run_overrides import asked_by as chosen

    return chosen(options, config, backend_type(place).merge)


def job_for(capabilities: Capabilities, job: Job, engine: str | None) -> Job:
    """Adapt a job's description to the place where it runs. `engine` is the address of the engine,
    if runs use one."""
    settings = job.settings
    # On another machine a scheduler may own the job. Then the recipe must be a process of the job,
    # and not be forked from a process outside it.
    if not capabilities.here:
        settings = settings._replace(warm=False)
    if capabilities.python is not None:
        job = job._replace(recipe=job.recipe._replace(python=capabilities.python))
    if capabilities.files:
        return job._replace(settings=settings._replace(requirements=None))
    extra = {"TINKER_BASE_URL": engine} if engine is not None else {}
    # Without a copy of the code a program starts in its image's folder.
    cwd = job.cwd if job.snapshot is not None else "."
    settings = settings._replace(env={**settings.env, **extra})
    return job._replace(settings=settings, env_file=None, cwd=cwd)


def worker_argv(
    capabilities: Capabilities,
    folder: SweepFolder,
    token: str,
    env_file: str | None,
    carried: Carried | None = None,
) -> list[str]:
    """Return the command line of a job. `env_file` is a file on this machine with the environment
    variables of runs; the command line names the file only if the store is remote and jobs can read
    the file. `carried` is what a job needs if it shares no files with this machine."""
    return worker_command(
        folder.address,
        token,
        env_file if folder.store.is_remote and capabilities.files else None,
        python=capabilities.python,
        restarts=capabilities.restarts,
        shared_store=folder.store.is_remote and capabilities.here,
        bare=_bare(capabilities, folder.store, carried) or None,
    )


def _bare(capabilities: Capabilities, store: Store, carried: Carried | None) -> list[str]:
    """Return the command that starts sweeper on a machine with only Python (see `bare_command`);
    empty if the job needs no such command."""
    if carried is None or capabilities.files:
        return []
    from sweeper.recipe.job_bundle import bare_command

    return bare_command(capabilities.python or "python", store.root, carried)


class JobBuilder:
    """Builds the jobs of the sweep in `folder`. `env_file` is the file with the environment of the
    sweep's runs. Raises `UsageError` for a place with missing options."""

    def __init__(self, plan: Plan, folder: SweepFolder, env_file: str | None) -> None:
        self._plan, self._folder, self._env_file = plan, folder, env_file
        launch = plan.launch
        self.capabilities = {place: capabilities_at(launch, place) for place in launch.places}
        """The capabilities of jobs, by place."""

    def bare(self, place: str) -> list[str]:
        """Return the command that starts sweeper on a place's machines if they have only Python;
        empty for other places."""
        return _bare(self.capabilities[place], self._folder.store, self._plan.carried)

    def spec(self, run: Run, attempt: int, place: str) -> JobSpec:
        """Return the description of an attempt's job that the backend `place` gets."""
        launch, job = self._plan.launch_of(run.stage), token(run.id, attempt)
        carried = self._plan.carried if launch.requirements is not None else None
        return JobSpec(
            job,
            run.name,
            worker_argv(self.capabilities[place], self._folder, job, self._env_file, carried),
            self._folder.store.local_path(self._folder.name) or "/",
            asked_by(launch, place, run.config),
            self._window(launch, run, attempt),
            launch.grace_s,
            launch.window_panes or MOST_PANES,
        )

    def _window(self, launch: Launch, run: Run, attempt: int) -> str | None:
        """Return the text `window` of a job's `JobSpec`. Jobs with the same text share a window;
        with None, a job has its own."""
        if launch.window is None and launch.window_panes is not None:
            return run.stage or self._folder.name
        return render_window(launch.window, self._folder.name, run, attempt)


class Submitter:
    """Submits attempts of one sweep to its `places`. `service` is the content of `service.json`.
    `engine` watches sweeper's engine (None: the runs do not use this engine). `stages` has the
    values that runs take from other runs."""

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
        self._described: dict[Attempt, bytes] = {}  # attempts whose jobs are certainly recorded

    def open(self, places: Mapping[Attempt, str]) -> dict[str, str]:
        """Record the description of each attempt, and then the intent to submit the attempt to its
        place. Return a dict from run to place; if another launcher has already recorded an intent,
        with the place in that intent. Leave out runs whose intent is damaged."""
        self._write({key: self._job(*key, place) for key, place in places.items()})
        launch = self._launch()
        intents = {key: {"place": place} | launch for key, place in places.items()}
        fresh = self._run_table.add_each(Event.INTENT, intents)
        recorded: dict[str, str] = {}
        for key, place in places.items():
            recorded_place = place if key in fresh else self._places.at(*key)
            if recorded_place not in (None, place):
                self._write({key: self._job(*key, recorded_place)})
            if recorded_place is not None:
                recorded[key[0]] = recorded_place
        return recorded

    def describe_again(self, place: str, runs: Iterable[str]) -> None:
        """Rewrite `job.json` of each run's newest recorded attempt, from the current plan. Leave an
        unchanged file alone, since a job may be reading the file."""
        attempts = [(run, self._run_table.views[run].state.opened) for run in runs]
        jobs = {key: self._job(*key, place) for key in attempts}
        # While a queue is closed, this function is called in every round. So skip the jobs whose
        # descriptions are certainly recorded.
        new = {key: data for key, data in jobs.items() if self._described.get(key) != data}
        folder = self._context.folder

        def is_recorded(key: Attempt) -> bool:
            with suppress(NotFound, StoreError):
                return folder.store.read(folder.job(*key)) == new[key]
            return False

        equal = each(folder.store, is_recorded, new)
        self._write({key: new[key] for key, same in zip(new, equal, strict=True) if not same})
        self._described |= new

    def _job(self, run: str, attempt: int, place: str) -> bytes:
        """Return the encoded `job.json` of an attempt at a place."""
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
            settings=plan.launch.for_worker()._replace(requirements=_requirements(plan)),
            env_file=self._service.env_file,
            secrets=plan.secrets,
            wandb=variables(plan, planned),
            fields=fields(plan, planned),
            engine=self._engine and self._engine.described(run, attempt),
            launch=launch_id(plan.provenance),
            first=begun_anew(self._run_table.events(run), attempt),
        )
        described = job_for(self._builder.capabilities[place], job, self._service.engine)
        return encode(described.document())

    def _write(self, jobs: Mapping[Attempt, bytes]) -> None:
        """Write the code's diff and then `job.json` for each attempt."""
        folder, diff = self._context.folder, self._code_diff()

        def write(key: Attempt) -> None:
            if diff:
                folder.store.replace(f"{folder.log_path(*key)}/code.diff", diff, durable=False)
            folder.store.replace(folder.job(*key), jobs[key])

        each(folder.store, write, jobs)

    def _launch(self) -> dict[str, object]:
        """Return what an INTENT event records about the launch: `{"launch": id}`, or `{}` if the
        plan has no id of a launch."""
        identity = launch_id(self._context.plan.provenance)
        return {} if identity is None else {"launch": identity}

    def _code_diff(self) -> bytes:
        """Return the diff of the code against its git commit; empty if there is none."""
        if self._diff is None:
            diff = table_of((self._context.plan.provenance or {}).get("diff"))
            self._diff = b""
            with suppress(NotFound):
                self._diff = self._context.store.read(str(diff["path"])) if diff else b""
        return self._diff

    def submit(self, place: str, runs: Sequence[str]) -> None:
        """Submit the newest recorded attempt of each run to a place. Then record that the place has
        accepted these attempts."""
        if not runs:
            return
        attempts = {run: self._run_table.views[run].state.opened for run in runs}
        specs = [self._builder.spec(self._run_table.runs[r], n, place) for r, n in attempts.items()]
        self._places.submit(place, specs)
        _LOG.info("submitted to %s: %s", place, ", ".join(spec.token for spec in specs))
        self._run_table.add_each(Event.SUBMITTED, {key: {} for key in attempts.items()})


def _requirements(plan: Plan) -> str | None:
    """Return the path of the recipe's requirements file within the copy of the code, or None if the
    plan has no such file."""
    name = plan.launch.requirements
    return None if name is None or plan.carried is None else plan.carried.files.get(name)
