"""Checks a launch before it is recorded: can its jobs reach the store, the engine, their secrets
and their code, and does the service have their models? Finds or starts the engine of the runs."""

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sweeper.backends import Capabilities, backend_type, capabilities_at, capabilities_together
from sweeper.backends.base import Backend
from sweeper.backends.secret_references import where_to_say
from sweeper.engine.access_token import TOKEN
from sweeper.engine.model_aliases import STAND_INS, TEACHER, TINY
from sweeper.errors import EnvironmentFailure, GridError, NotFound, UsageError, is_silence
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import first_of
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.plan import MODEL_KEYS, Plan, Run

if TYPE_CHECKING:
    from sweeper.engine.lifecycle import EngineInfo
    from sweeper.recipe.snapshot import CodeCopy


ENGINE_URL = "SWEEPER_ENGINE_URL"
"""The environment variable with the engine's address for jobs that run on other machines."""
_SERVICE_KEY = "TINKER_API_KEY"
_TRIALS = 20
_MODELS_SECONDS = 10.0
_NO_NAME = re.compile(r"://|\$\{|^[./~]")
"""Matches values that are not names of models: checkpoints, folders, and values that are not
known yet."""


def admit(
    launch: Launch, store: Store, service: str, secrets: Sequence[str], *, live: bool
) -> Capabilities:
    """Check that jobs at each backend of a launch can work, and return the capabilities that all
    backends share. `secrets` are the names of the secrets that runs need. Raises `UsageError` for
    one problem, and `GridError` with a line for each of several problems."""
    wrong: list[str] = []
    for place in launch.places:
        try:
            _admit(launch, place, store, service, secrets, live=live)
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        wrong = list(dict.fromkeys(wrong))
        raise GridError(wrong) if len(wrong) > 1 else UsageError(wrong[0])
    return capabilities_together(launch)


def _admit(
    launch: Launch, backend: str, store: Store, service: str, secrets: Sequence[str], *, live: bool
) -> None:
    capabilities = capabilities_at(launch, backend)
    if not capabilities.here and service == "local":
        engine_url(capabilities)
    if capabilities.files:
        return
    if not store.is_remote:
        raise UsageError(
            f"{backend}: jobs cannot read the folder {store.root}: launch with `--root "
            "s3://bucket/prefix`, or set SWEEPER_ROOT to such an address"
        )
    if live:
        raise UsageError(f"{backend}: --live does not work, because jobs cannot read the checkout")
    needed = [*secrets, *([_SERVICE_KEY] if service == "local" else [])]
    for name in needed:
        if name not in capabilities.secrets:
            raise UsageError(
                f"{backend}: in the grid, say where jobs find {name}"
                f"{where_to_say(backend_type(backend), name)}"
            )


def engine_url(capabilities: Capabilities) -> str | None:
    """Return the address of the engine that the user started for the jobs. Return None if jobs run
    on this machine, where the launch finds or starts an engine. Raises `UsageError` if the address
    or the token is missing."""
    if capabilities.here:
        return None
    url, token = os.environ.get(ENGINE_URL, ""), os.environ.get(TOKEN, "")
    if not url.startswith(("http://", "https://")) or not token:
        raise UsageError(
            "service: local needs an engine that the jobs can reach. Start one with `sweeper "
            f"engine start --host ADDRESS`, and set {ENGINE_URL} to http://ADDRESS:PORT and "
            f"{TOKEN} to its token. Or use `service: tinker`"
        )
    return url.rstrip("/")


def engine_key(capabilities: Capabilities) -> str:
    """Return the key that jobs send to their engine: the engine of this machine, or for jobs on
    other machines the engine at `engine_url`."""
    if not capabilities.here:
        return os.environ.get(TOKEN, "")
    from sweeper.engine.lifecycle import client_key

    return client_key()


def kept_here(capabilities: Capabilities, secrets: Sequence[str]) -> list[str]:
    """Return the names of the secrets that jobs get from this process's environment, not from
    the backend's own secrets."""
    return [name for name in secrets if name not in capabilities.secrets]


def has_code(
    capabilities: Capabilities,
    kind: str,
    file: str | None,
    code: "CodeCopy",
    tell: Callable[[str], None],
) -> None:
    """Check that jobs without access to this machine's folders get the recipe's code. Tell the user
    which files such jobs do not get. `kind` and `file` describe the recipe. Raises `UsageError` if
    the code is missing."""
    if capabilities.files:
        return
    if code.snapshot is None:
        if kind == "file":
            raise UsageError(
                f"{file}: jobs on other machines get a copy of the recipe's git "
                f"checkout, but there is no copy ({code.why}): run `git init` in its folder, or "
                "put the recipe into the image"
            )
        tell(f"no code is sent with the jobs ({code.why}): their image must contain it")
    if code.linked:
        tell(f"jobs do not get these files of the checkout: {first_of(code.linked, 3)}")


def try_out(
    backends: Mapping[str, Backend], plan: Plan, runs: Iterable[Run], *, any_place: bool = False
) -> None:
    """Ask each backend whether it would accept the jobs of a plan's runs. Raises
    `EnvironmentFailure` if a backend refuses, or if no backend answers. With `any_place`, raises
    `EnvironmentFailure` only if no backend accepts the jobs."""
    from sweeper.scheduler.submitter import asked_by  # imported late, since `plan` does not use it

    launches = {name: plan.launch_of(name) for name in (None, *(s.name for s in plan.stages))}
    configs = [(launches.get(run.stage, plan.launch), run.config) for run in runs]
    wrong: list[EnvironmentFailure] = []
    for place, backend in backends.items():
        wanted = (asked_by(launch, place, config) for launch, config in configs)
        distinct = {repr(resources): resources for resources in wanted}
        try:
            backend.preflight(list(distinct.values())[:_TRIALS])
        except EnvironmentFailure as error:
            wrong.append(error)
            if not (any_place or is_silence(error)) or len(wrong) == len(backends):
                raise


def shared_environment(capabilities: Capabilities, folder: SweepFolder) -> str | None:
    """Return the path of the runs' environment file in the sweep's folder. Return None if jobs run
    on this machine (their file is in a private folder), or cannot access the sweep's folder."""
    if capabilities.here or not capabilities.files:
        return None
    return environment_in_store(folder)


def environment_in_store(folder: SweepFolder) -> str | None:
    """Return the path of the runs' environment file in the sweep's folder, or None if the store
    has no local folders."""
    return folder.store.local_path(f"{folder.name}/launcher/environment.json")


_ENGINE_SECONDS = 60.0
_CREDENTIALS = ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL")


def engine_for(plan: Plan, capabilities: Capabilities, tell: Callable[[str], None]) -> str:
    """Find or start the engine for a plan, and return the engine's address. If the engine is on
    this machine, tell the user which models of the plan the engine lacks or replaces by other
    models. Raises the errors of `engine_url`, `ensure_engine` and `missing_at_engine`."""
    url = engine_url(capabilities)
    if url is not None:
        return url
    info = ensure_engine(plan.launch.places)
    for name in sorted(texts_of(plan) & info.aliases.keys()):
        tell(
            f"{info.aliases[name]} stands in for {name}, so the results are a rehearsal and do not "
            f"apply to {name}"
        )
    for line in missing_at_engine(plan, info.models):
        tell(line)
    return info.url


def service_warnings(plan: Plan) -> list[str]:
    """Return a warning for each model that the model service of a plan lacks, or a warning if the
    recipe needs a service and none is set up. Starts no engine. Raises `GridError` as
    `missing_at_engine` does."""
    if plan.service == "tinker":
        return missing_at_service(plan)
    if not capabilities_together(plan.launch).here:
        return []
    if plan.service == "local":
        from sweeper.engine import lifecycle

        engine = lifecycle.find()
        offered = [TINY, TEACHER, *STAND_INS]
        return missing_at_engine(plan, offered if engine is None else engine.models)
    lacking = plan.service == "none" and any(map(_needs_service, plan.parts))
    if not lacking or os.path.exists(os.path.expanduser("~/.tinker/credentials.json")):
        return []
    return [
        "the recipe uses a model service, but none is set up: write `service: local` in the "
        "grid for an engine on this machine, or `service: tinker` and set TINKER_API_KEY"
    ]


def _needs_service(plan: Plan) -> bool:
    """Return whether some runs need a model service, but neither their configurations nor the
    environment set one up."""
    if not {"base_url", "model_name"} <= plan.recipe.takes.keys():
        return False
    if any(os.environ.get(name) or name in plan.launch.env for name in _CREDENTIALS):
        return False
    return any(run.config.get("base_url") is None for run in plan.runs)


def ensure_engine(places: Collection[str]) -> "EngineInfo":
    """Find this user's engine, or start the engine and wait for it. If tmux is among the backends
    `places`, the engine starts in a tmux window. Raises `EngineError` if the engine does not start,
    and `EnvironmentFailure` if the home folder cannot be written."""
    from sweeper import paths
    from sweeper.engine import lifecycle

    engine = lifecycle.find()
    if engine is not None:
        return engine
    lifecycle.check_home()
    if "tmux" in places:
        from sweeper.backends.tmux.server import TmuxServer

        # The engine of another home on the same tmux server has its own session.
        command = lifecycle.command(paths.home())
        TmuxServer().ensure_window("engine", paths.engine(), "engine", command)
    else:
        from sweeper.common.daemon import outlive

        null = subprocess.DEVNULL  # The engine writes its own log.
        process = subprocess.Popen(
            lifecycle.command(paths.home()),
            stdin=null, stdout=null, stderr=null, start_new_session=True,
        )  # fmt: skip
        outlive(process)
    return lifecycle.wait(timeout=_ENGINE_SECONDS)


def require_secrets(names: Sequence[str]) -> None:
    """Raise `EnvironmentFailure` if one of these variables is not set here."""
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise EnvironmentFailure(
            f"the secret {missing[0]} is not set: `export {missing[0]}=...` before launching, or "
            "write it into the file .env beside the grid"
        )


def models_of(plan: Plan) -> set[str]:
    """Return the names of the models that a plan's runs ask a service for."""
    return {
        text for key, text in _model_texts(plan) if key in MODEL_KEYS and not _NO_NAME.search(text)
    }


def texts_of(plan: Plan) -> set[str]:
    """Return all strings in the configurations of a plan and in the defaults of its recipes."""
    return {text for _, text in _model_texts(plan)}


def missing_at_engine(plan: Plan, offered: Collection[str]) -> list[str]:
    """Raise `GridError` for the plan's models that are not in `offered`, the engine's models. If a
    recipe is a command or the grid says `check_models: false`, return a warning for each missing
    model instead."""
    trained = [model for model in offered if model not in STAND_INS]
    return _refuse_models(
        plan,
        {
            name: f"the engine has no model {name}, only {', '.join(trained)} and "
            "stand-ins for Qwen "
            "models: use one of these, or `sweeper engine stop`, then "
            f"`{hint('engine', 'start', '--alias', f'{name}={trained[0]}')}`"
            for name in sorted(models_of(plan) - set(offered))
            if trained
        },
    )


def missing_at_service(plan: Plan) -> list[str]:
    """Return a warning for each of the plan's models that the hosted service does not list, or a
    single warning if the list cannot be read. Without an API key, check nothing and return [].
    Raises `GridError` as `missing_at_engine` does."""
    from sweeper.fields.kinds import nearest
    from sweeper.results.service_models import offered
    from sweeper.results.service_requests import hosted

    wanted = models_of(plan)
    if not wanted or not os.environ.get("TINKER_API_KEY"):
        return []  # A launch needs the key anyway.
    try:
        names = [model.model_name for model in offered(hosted(), _MODELS_SECONDS)]
    except (EnvironmentFailure, NotFound) as error:
        return [f"the models of this grid were not checked: {error}"]
    return _refuse_models(
        plan,
        {
            name: f"the service has no model {name} (`sweeper doctor --service` lists its models)"
            f"{nearest(name, names)}"
            for name in sorted(wanted - set(names))
        },
    )


def _refuse_models(plan: Plan, missing: Mapping[str, str]) -> list[str]:
    """Raise `GridError` with a line for each missing model and the model's place in the grid.
    Return the lines as warnings instead if a recipe is a command or the grid has `check_models:
    false`."""
    if not missing or not plan.launch.check_models or plan.has_commands:
        return list(missing.values())
    places = plan.model_places
    raise GridError(
        [
            f"{places.get(name) or plan.grid_path or plan.name}: {line}; "
            "`launch: {check_models: false}` starts the runs anyway"
            for name, line in missing.items()
        ]
    )


def _model_texts(plan: Plan) -> set[tuple[str, str]]:
    """Return (key, string) for each string in the configurations of a plan and in the defaults
    of its recipes."""
    given = {
        (key, value)
        for run in plan.runs
        for key, value in run.config.items()
        if isinstance(value, str)
    }
    for part in plan.parts:
        for key, about in part.recipe.takes.items():
            default = about.get("default")
            if isinstance(default, str) and any(key not in run.config for run in part.runs):
                given.add((key, default))
    return given
