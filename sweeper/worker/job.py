"""Prepares the execution of a job from its description: folder, command and environment."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from sweeper.common.codec import SCHEMA
from sweeper.common.sweeper_argv import BOOTSTRAP
from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.recipe.command_template import render_command, with_log_path, with_pdb
from sweeper.store.base import Store
from sweeper.store.documents import encode
from sweeper.store.local import refuse_links
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.job import Job
from sweeper.sweep.launch_settings import Launch
from sweeper.worker import checkpoint_resume, fork_client
from sweeper.worker.output import say
from sweeper.worker.usage import FOLDER

if TYPE_CHECKING:
    from sweeper.common.gpus import Taken
    from sweeper.worker.heartbeat import Heartbeat

_GPU_SECONDS = 0.5


class Prepared(NamedTuple):
    """The command that the worker executes, with its folder and environment. `log_path` is the
    existing folder for the recipe's files, inside `place`. `place` is the sweep's folder. If the
    store is remote, `place` is a copy of this folder in the spool. `modules` is the file that lists
    the recipe's imports, or None if no fork server may start the recipe."""

    command: list[str]
    environment: dict[str, str]
    cwd: str
    log_path: str
    place: SweepFolder
    modules: str | None = None


def prepare(
    folder: SweepFolder,
    job: Job,
    environment: dict[str, str],
    goes_on: Callable[[], bool] = lambda: True,
) -> Prepared | None:
    """Create the recipe's folder, copy the files that the attempt resumes from, and return the
    command to execute. `environment` is the environment stored for the job. The call can be
    repeated. While an environment is built, call `goes_on` about once a second, and return None
    when `goes_on` returns False. Raises `StoreError`, `EnvironmentFailure`, and `RecipeError` for a
    wrong command template."""
    run, attempt, recipe = job.run, job.attempt, job.recipe
    place = _place(folder, job, environment)
    log_path = place.store.local_path(place.log_path(run, attempt))
    if log_path is None:
        raise EnvironmentFailure(
            f"{place.store.root} is not a local folder, but a worker needs one for its run"
        )
    refuse_links(place.address, log_path)
    try:
        os.makedirs(log_path, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{log_path}: {error.strerror}") from error
    if job.settings.resume != "never":
        checkpoint_resume.seed(place, run, attempt, job.settings.resume, job.first)
    environment = _environment(folder, job, environment, log_path)
    cwd, copy = _code(folder.store, job, environment)
    if job.settings.requirements is not None:
        python = _interpreter(job.settings.requirements, copy, environment, goes_on)
        if python is None:
            return None
        job = job._replace(recipe=recipe._replace(python=python))
        environment |= _activated(python, environment)
    if recipe.kind == "command":
        return Prepared(_command(job, log_path), environment, cwd, log_path, place)
    counted = usage_folder(place, run, attempt)
    refuse_links(place.address, counted)
    with suppress(OSError):  # The usage is not counted then, but the run continues.
        os.makedirs(counted, exist_ok=True)
        environment |= {"SWEEPER_METER": counted}
    modules = fork_client.module_list(job, environment) if _is_warm(job.settings) else None
    command = _bootstrap(place, job, log_path, copy, modules)
    return Prepared(command, environment, cwd, log_path, place, modules)


def _is_warm(settings: Launch) -> bool:
    """Return whether a recipe may be forked. A forked recipe cannot hold locks of GPUs, and has
    no terminal."""
    return settings.warm and not (settings.gpus or settings.debug)


def _interpreter(
    requirements: str,
    copy: Mapping[str, str] | None,
    environment: Mapping[str, str],
    goes_on: Callable[[], bool],
) -> str | None:
    """Return the interpreter of a virtual environment with the packages that the file
    `requirements` lists. Its path is relative to `copy["copy"]`, the local copy of the code. Build
    the environment if it does not exist. Return None if `goes_on` returns False."""
    from sweeper.paths import built, home
    from sweeper.worker.bare_machine import BuildError, build

    path = os.path.join((copy or {}).get("copy", ""), requirements)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return build(built(home(environment)), text, environment, goes_on)
    except (BuildError, OSError, ValueError) as error:
        raise EnvironmentFailure(f"{requirements}: {error}") from error


def _activated(python: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that activate an environment and let recipes import sweeper's source."""
    folder, source = os.path.dirname(python), os.environ.get("SWEEPER_SOURCE", "")

    def joined(*parts: str) -> str:
        return os.pathsep.join(
            dict.fromkeys(filter(None, os.pathsep.join(parts).split(os.pathsep)))
        )

    return {
        "VIRTUAL_ENV": os.path.dirname(folder),
        "PATH": joined(folder, environment.get("PATH", os.defpath)),
        "PYTHONPATH": joined(environment.get("PYTHONPATH", ""), source),
    }


def _environment(
    folder: SweepFolder, job: Job, variables: dict[str, str], log_path: str
) -> dict[str, str]:
    """Return the recipe's environment: the stored variables, and the variables of the backend,
    the grid and sweeper. Raises `EnvironmentFailure` if a secret is missing."""
    run, attempt = job.run, job.attempt
    environment = with_backend_variables(variables) | with_log_path(job.settings.env, log_path)
    environment |= {
        "SWEEPER_ROOT": folder.store.root,
        "SWEEPER_SWEEP": folder.name,
        "SWEEPER_RUN": run,
        "SWEEPER_NAME": f"{folder.name}/{job.name}" + (f" ({attempt})" if attempt > 1 else ""),
        "SWEEPER_RUN_DIR": log_path,
        "SWEEPER_ATTEMPT": str(attempt),
        "SWEEPER_SEED": "" if job.seed is None else str(job.seed),
        "TINKER_TAGS": f"sweeper,sweep:{folder.name},run:{run}.{attempt}",
        # With buffering, a thread that prints while Python exits may abort the process (SIGABRT).
        "PYTHONUNBUFFERED": "1",
    }
    if job.wandb:  # Trackio has one folder for all runs, TensorBoard one in each `log_path`.
        environment |= {**job.wandb, "WANDB_DIR": log_path}
    missing = [name for name in job.secrets if name not in environment]
    if missing:
        raise EnvironmentFailure(f"the secret {missing[0]} is not in the launcher's environment")
    return environment


def usage_folder(folder: SweepFolder, run: str, attempt: int) -> str:
    """Return the folder where the processes of an attempt's recipe write their usage of the
    service."""
    return os.path.join(folder.store.local_path(folder.attempt(run, attempt)) or "", FOLDER)


def backend_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables in `environ` that the backend gives to recipes. Their names are in
    SWEEPER_KEEP, one per line."""
    return {
        name: environ[name]
        for name in environ.get("SWEEPER_KEEP", "").split("\n")
        if name in environ
    }


def with_backend_variables(
    environment: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of a launch, overridden by the variables that the backend gives its
    jobs. Leave out the launch's variables whose names begin with a prefix in SWEEPER_DROP (one per
    line), because these variables may describe the cluster job in which `launch` was called."""
    dropped = tuple(filter(None, environ.get("SWEEPER_DROP", "").split("\n")))
    return {n: v for n, v in environment.items() if not n.startswith(dropped)} | backend_variables(
        environ
    )


def _place(folder: SweepFolder, job: Job, environment: dict[str, str]) -> SweepFolder:
    """Return the folder that the recipe writes to: the sweep's folder or, if the store is remote,
    the copy of this folder in the spool."""
    if not folder.store.is_remote:
        return folder
    from sweeper.paths import home
    from sweeper.worker import spool

    run, attempt = job.run, job.attempt
    resume = job.settings.resume != "never" and job.first < attempt
    return spool.arrange(folder, run, attempt, home(environment), resume=resume)


def _code(store: Store, job: Job, environment: dict[str, str]) -> tuple[str, dict[str, str] | None]:
    """Return the folder to run in, and a dict with two folders: `root`, which had the code at the
    launch, and `copy`, its local copy. If the recipe runs without a copy, the dict is None."""
    recorded = job.snapshot
    if recorded is None:
        return job.cwd, None
    from sweeper.paths import home
    from sweeper.recipe import snapshot

    copy = snapshot.extract(store, recorded, home(environment))
    cwd = os.path.join(copy, recorded.cwd)
    # A folder outside the checkout may exist only on the launching machine.
    cwd = copy if os.path.isabs(recorded.cwd) and not os.path.isdir(cwd) else cwd
    return cwd, {"root": recorded.root, "copy": copy}


def origin_of(job: Job, store: Store) -> dict[str, object]:
    """Return the fields about code for the attempt's events: the id of the launch and, if the code
    was not copied, a digest of the source files."""
    origin: dict[str, object] = {} if job.launch is None else {"launch": job.launch}
    if job.snapshot is None and os.path.isabs(job.cwd):
        from sweeper.recipe.live_code import program

        origin["program"] = program([job.recipe._replace(cwd=job.cwd)], store.local_path(""))
    return origin


def _command(job: Job, log_path: str) -> list[str]:
    values = {**job.config, "log_path": log_path, "run": job.run, "attempt": job.attempt}
    if job.seed is not None:
        values["seed"] = job.seed
    command = render_command(job.recipe.command or [], values)
    return with_pdb(command) if job.settings.debug else command


def _bootstrap(
    folder: SweepFolder, job: Job, log_path: str, copy: dict[str, str] | None, modules: str | None
) -> list[str]:
    recipe = job.recipe
    config: dict[str, object] = {**job.fields, **job.config}
    if recipe.log_path_field is not None:
        config[recipe.log_path_field] = log_path
    if recipe.behavior_field:
        config["behavior_if_log_dir_exists"] = "resume"
    child = f"{folder.attempt(job.run, job.attempt)}/child.json"
    document: dict[str, object] = {
        "schema": SCHEMA,
        "recipe": recipe.document(),
        "config": config,
        "snapshot": copy,
    }
    document |= {} if modules is None else {"modules": modules}
    document |= {"debug": True} if job.settings.debug else {}
    folder.store.replace(child, encode(document), durable=False)
    return [recipe.python, BOOTSTRAP, "run", str(folder.store.local_path(child))]


def with_gpus(
    job: Job, prepared: Prepared, heartbeat: "Heartbeat", rest: Callable[[float], bool]
) -> "Taken | None":
    """Wait until as many GPUs are free as the run needs, lock these GPUs, and hide all other GPUs
    from the recipe. `rest` waits for the given seconds. It returns False if the worker has to stop;
    then return None. Raises `EnvironmentFailure`."""
    from sweeper.common.gpus import NONE_YET, Gpus

    gpus = Gpus(job.settings.gpus, job.settings.per_gpu, prepared.environment)
    try:
        while (taken := gpus.take()) is None:
            if heartbeat.gpus is None:
                say(f"sweeper: waiting until {job.settings.gpus} GPU(s) are free")
                heartbeat.gpus = NONE_YET
                heartbeat.write()
            if not rest(_GPU_SECONDS):
                return None
    except LookupError as error:
        raise EnvironmentFailure(str(error)) from error
    say(f"sweeper: on GPU {taken.text}")
    heartbeat.gpus = taken
    prepared.environment.update(taken.environment)
    return taken
