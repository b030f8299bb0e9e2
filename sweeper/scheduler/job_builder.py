"""Builds the job descriptions for a backend and a worker. They depend on the backend's
`Capabilities`, since jobs may not run on this machine."""

from collections.abc import Mapping

from sweeper.backends import Capabilities, backend_type, capabilities_at, options_of
from sweeper.backends.base import JobSpec
from sweeper.common.sweeper_argv import worker_command
from sweeper.recipe.command_template import render_window
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.job import Job
from sweeper.sweep.launch import Launch
from sweeper.sweep.plan import Carried, Plan, Run


def asked_by(launch: Launch, place: str, config: Mapping[str, object]) -> Mapping[str, object]:
    """The resources that the job of a run with this configuration requests at a place of the
    sweep."""
    options = options_of(launch, place)
    if not options.get("overrides"):
        return options
    from sweeper.grid.run_overrides import asked_by as chosen

    return chosen(options, config, backend_type(place).merge)


def job_for(capabilities: Capabilities, job: Job, engine: str | None) -> Job:
    """Adapts a job's description to where the backend runs it. `engine` is the address of the
    engine, if runs use one."""
    if not capabilities.here:  # a job's processes may be those alone that its scheduler started
        job = job._replace(warm=False)
    if capabilities.python is not None:
        job = job._replace(recipe=job.recipe._replace(python=capabilities.python))
    if capabilities.files:
        return job._replace(requirements=None)
    given = {"TINKER_BASE_URL": engine} if engine is not None else {}
    # Without a copy of the code a program starts where its image says.
    cwd = job.cwd if job.snapshot is not None else "."
    return job._replace(env={**job.env, **given}, env_file=None, cwd=cwd)


def worker_argv(
    capabilities: Capabilities,
    folder: SweepFolder,
    token: str,
    env_file: str | None,
    carried: Carried | None = None,
) -> list[str]:
    """The command line of a job. `env_file`, the file with the runs' environment on this machine,
    is passed on if the store is remote: without it the store may be unreachable. `carried` is
    what a job brings along if it shares no files with this machine."""
    return worker_command(
        folder.address,
        token,
        env_file if folder.store.is_remote and capabilities.files else None,
        python=capabilities.python,
        restarts=capabilities.restarts,
        bare=_bare(capabilities, folder.store, carried) or None,
    )


def _bare(capabilities: Capabilities, store: Store, carried: Carried | None) -> list[str]:
    """The beginning of the command line of a job that must first install everything but Python;
    empty for other jobs."""
    if carried is None or capabilities.files:
        return []
    from sweeper.provenance.job_bundle import bare_command

    return bare_command(capabilities.python or "python", store.root, carried)


class JobBuilder:
    """Builds the jobs of the sweep in `folder`. `env_file` is the file
    with its runs' environment. Raises `UsageError` for a place with missing options."""

    def __init__(self, plan: Plan, folder: SweepFolder, env_file: str | None) -> None:
        self._plan, self._folder, self._env_file = plan, folder, env_file
        launch = plan.launch
        self.capabilities = {place: capabilities_at(launch, place) for place in launch.places}
        """The capabilities of jobs, by place."""

    def bare(self, place: str) -> list[str]:
        """The beginning of the command lines of jobs at a place that bring along what they need;
        empty if none does."""
        return _bare(self.capabilities[place], self._folder.store, self._plan.carried)

    def spec(self, run: Run, attempt: int, place: str) -> JobSpec:
        """The job of an attempt, in the form that the backend of its place gets."""
        launch, job = self._plan.launch_of(run.stage), token(run.id, attempt)
        carried = self._plan.carried if launch.requirements is not None else None
        return JobSpec(
            job,
            run.name,
            worker_argv(self.capabilities[place], self._folder, job, self._env_file, carried),
            self._folder.store.local_path(self._folder.name) or "/",
            asked_by(launch, place, run.config),
            render_window(launch.window, self._folder.name, run, attempt),
            launch.grace_s,
        )
