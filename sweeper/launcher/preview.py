"""Previews a launch: its plan, the jobs that it would submit (also in the backend's own format)
and the runs that have results already. Writes nothing."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from sweeper.backends import backend_type, capabilities_together, every_backend, options_of
from sweeper.backends.base import JobSpec, Manifest
from sweeper.errors import NotFound, StoreError, SweeperError, UsageError
from sweeper.grid.overrides import flow
from sweeper.launcher.preflight import admit, service_warnings
from sweeper.money.estimate import Estimate, estimate, sentence, unrecorded_metric
from sweeper.planner.plan import repeats_by_default
from sweeper.recipe.command_template import render_command
from sweeper.store.base import Store
from sweeper.sweep.event import NOTHING
from sweeper.sweep.folder import Events, SweepFolder
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.states import ENDED, RunState, State, fold, wants_attempt
from sweeper.sweep.tracking import NAMES, SECTION, TRACK, TRACK_NAME, TRACK_PROJECT

if TYPE_CHECKING:
    from sweeper.scheduler.submitter import JobBuilder


GIVEN = (
    *("PYTHONUNBUFFERED", "SWEEPER_ATTEMPT", "SWEEPER_FOLDER", "SWEEPER_KEPT", "SWEEPER_ROOT"),
    *(
        "SWEEPER_RUN",
        "SWEEPER_NAME",
        "SWEEPER_RUN_DIR",
        "SWEEPER_SEED",
        "SWEEPER_SWEEP",
        "TINKER_TAGS",
    ),
)
"""Environment variables that every run gets in addition to `launch.env`."""

_SERVICE = {
    "local": ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "TINKER_API_KEY", "TINKER_BASE_URL"),
    "tinker": ("TINKER_API_KEY",),
    "none": (),
}


class RunPreview(NamedTuple):
    """The effect of a launch on a run. The name of `run` is the recorded name, or the name that a
    new run would get. `attempt` is the number of the attempt that the launch would submit (0:
    none)."""

    run: Run
    state: RunState
    attempt: int


class LaunchPreview(NamedTuple):
    """A plan, and the effect of its launch on each run of the sweep at `folder`. `retired` counts
    the recorded runs that the grid no longer has. `dropped` counts those of them that have
    succeeded and are not yet retired. `estimate` is the expected usage of the runs that would start
    (None: unknown). For a race, `estimate` includes all runs that later rounds may start, and
    `least` includes none of these runs."""

    plan: Plan
    folder: SweepFolder
    previews: tuple[RunPreview, ...]
    retired: int
    estimate: Estimate | None = None
    dropped: int = 0
    least: Estimate | None = None


def survey(planned: Plan, store: Store) -> LaunchPreview:
    """Compare a plan with the store. Add to the plan the warnings that depend on the store, the
    user's configuration or the model service."""
    folder = SweepFolder(store, planned.name)
    planned = folder.with_chosen(planned)
    events: Events = {}
    with suppress(NotFound):
        events = folder.read_events()
    names: dict[str, str] = {}
    retired = gone = 0
    with suppress(NotFound):  # The sweep was never launched.
        old = folder.read_plan()
        from sweeper.launcher.manifest import merged  # slow to import
        from sweeper.sweep.trust import dropped

        runs = merged(folder, old, planned).runs
        warnings = (*planned.warnings, *repeats_by_default(planned, old))
        planned = planned._replace(warnings=warnings)
        names = {run.id: run.name for run in runs}
        retired = sum(run.retired for run in runs)
        gone = len(dropped(folder, old, {run.id for run in planned.runs}))
    odd = unrecorded_metric(planned, store)
    more = [*later_warnings(planned, store), *service_warnings(planned)]
    more += [] if odd is None else [odd]
    planned = planned._replace(warnings=(*planned.warnings, *more))
    previews: list[RunPreview] = []
    for run in planned.runs:
        happened = events.get(run.id, set())
        state = fold(happened)
        attempt = 0
        if wants_attempt(happened, planned.retries_of(run.stage)):
            attempt = state.opened + 1
        elif state.unacknowledged:  # Submitted again unless the backend has the job.
            attempt = state.opened
        previews.append(RunPreview(run._replace(name=names.get(run.id, run.name)), state, attempt))
    starting = [preview.run for preview in previews if preview.attempt]
    expected = least = None
    with suppress(UsageError):  # an unreadable price table: `sweeper costs --prices` reports it
        expected = estimate(planned, starting, store)
        if planned.race is not None and planned.unknown and expected is not None:
            least = estimate(planned._replace(unknown={}), starting, store)
    return LaunchPreview(planned, folder, tuple(previews), retired, expected, gone, least)


def estimate_of(preview: LaunchPreview) -> str | None:
    """Describe the expected usage of the runs that would start. Return None if no run would start,
    or if there is no estimate and the runs use no service."""
    starting = any(preview.attempt for preview in preview.previews)
    if not starting:
        return None
    text = sentence(preview.estimate, preview.plan.service)
    if preview.least is None:
        return text
    return f"at least {sentence(preview.least, preview.plan.service)}; at most {text}"


def later_warnings(planned: Plan, store: Store) -> list[str]:
    """Return the warnings that depend on the store and the user's configuration, not on the
    grid."""
    return [*gone_baselines(planned, store), *_uncounted(planned)]


def _uncounted(planned: Plan) -> list[str]:
    """Return a warning if runs are commands and a budget limits tokens, since a command's tokens
    are counted only if the command records them."""
    if not planned.has_commands:
        return []
    from sweeper.scheduler.budgets import configured_budget  # slow to import

    account = None
    if planned.service != "none":
        with suppress(SweeperError):  # `launch` reports mistakes in the configuration.
            account = configured_budget()
    budgets = [planned.budget, None if account is None else account.budget]
    named = dict.fromkeys(
        key for budget in budgets if budget is not None for key in budget.of_tokens
    )
    if not named:
        return []
    return [
        f"the budget limits {' and '.join(named)}, but a command's tokens are counted from its "
        "metrics file (num_tokens, tokens/sampled, ...): a command that records none is never "
        "stopped; `hours` limits every program"
    ]


def gone_baselines(planned: Plan, store: Store) -> list[str]:
    """Return a warning for each baseline sweep or stage that does not exist."""
    baselines = (part.baseline.sweep for part in planned.parts if part.baseline is not None)
    messages: list[str] = []
    for other in dict.fromkeys(sweep for sweep in baselines if sweep is not None):
        sweep, _, stage = other.partition("/")
        if sweep == planned.name:
            continue
        try:
            recorded = SweepFolder(store, sweep).read_plan()
        except NotFound:
            messages.append(f"baseline: no sweep {sweep!r} in {store.root} to compare with")
            continue
        except StoreError:
            continue  # The report shows the error.
        if stage and recorded.stage(stage) is None:
            messages.append(f"baseline: {sweep} has no stage {stage!r} to compare with")
    return messages


def document(launch: LaunchPreview) -> dict[str, object]:
    """Return the preview as a JSON object: the plan as in `sweep.json`, and each run with its state
    and the `job` that a launch would submit to the first backend (null for none). If a job has
    `"bare": true`, its command line is the top-level list `bare` followed by its `argv`."""
    runs: list[dict[str, object]] = []
    place, builder = launch.plan.launch.places[0], job_builder(launch)
    specs = jobs(launch, builder, place)
    bare = builder.bare(place) if builder is not None else []
    for preview in launch.previews:
        spec = specs.get(preview.run.id)
        ended = preview.state.event in ENDED
        outcome = NOTHING
        if ended:
            outcome = launch.folder.read_outcome(preview.run.id, preview.state)
        runs.append(
            {
                **preview.run.document(),
                "state": preview.state.state.value,
                "attempts": preview.state.opened,
                "reason": outcome.reason,
                "job": None if spec is None else _job(launch, preview, spec, bare),
            }
        )
    return {
        **launch.plan.document(),
        "runs": runs,
        "root": launch.folder.store.root,
        "bare": bare,
        "environment": environment(launch.plan),
        "retired": launch.retired,
        "dropped": launch.dropped,
        "estimate": None if launch.estimate is None else launch.estimate.document(),
        **({} if launch.least is None else {"estimate_at_least": launch.least.document()}),
        "warnings": list(launch.plan.warnings),
        "notes": list(launch.plan.notes),
    }


def environment(planned: Plan) -> list[str]:
    """Return the names of the variables that sweeper or the grid sets for a run."""
    given = {*GIVEN, *_SERVICE[planned.service], *planned.secrets}
    given |= {name for part in planned.parts for name in part.launch.env}
    if any(part.recipe.kind != "command" for part in planned.parts):
        given.add("SWEEPER_METER")
    if planned.wandb is not None:
        given |= {*NAMES, *(n for n, key in SECTION.items() if getattr(planned.wandb, key))}
    if any(name != "wandb" for name in planned.track):
        given |= {TRACK, TRACK_NAME, TRACK_PROJECT}
    return sorted(given)


def log_path(folder: SweepFolder, run: str, attempt: int) -> str:
    """Return the local folder that an attempt writes to."""
    path = folder.log_path(run, attempt)
    local = folder.store.local_path(path)
    if local is None:
        from sweeper.paths import home
        from sweeper.worker.spool import place

        local = os.path.join(place(folder.store.root, home()).root, path)
    return local


def job_builder(preview: LaunchPreview) -> "JobBuilder | None":
    """Return the builder of the jobs that a launch would submit, or None if no run would start.
    Raises `UsageError` for incomplete options."""
    if not any(preview.attempt for preview in preview.previews):
        return None
    plan, folder = preview.plan, preview.folder
    bare = any(part.launch.requirements is not None for part in plan.parts)
    if bare and not capabilities_together(plan.launch).files:
        from sweeper.recipe.job_bundle import describe

        plan = plan._replace(carried=describe(folder, plan))
    from sweeper.scheduler.submitter import JobBuilder
    from sweeper.sweep.environment_file import env_file

    return JobBuilder(plan, folder, env_file(folder.address))


def jobs(preview: LaunchPreview, builder: "JobBuilder | None", place: str) -> dict[str, JobSpec]:
    """Return a dict from run id to the job that a launch would submit if all runs went to the
    backend `place`. Empty if `builder` is None."""
    if builder is None:
        return {}
    starting = (preview for preview in preview.previews if preview.attempt)
    return {p.run.id: builder.spec(p.run, p.attempt, place) for p in starting}


def _job(
    launch: LaunchPreview, preview: RunPreview, spec: JobSpec, bare: Sequence[str]
) -> dict[str, object]:
    """Return the job that would be submitted for a run, as a JSON object. If the command line
    starts with the words in `bare`, `argv` has only the other words. `log_path` is the folder that
    the attempt writes to. `command` is the argv of a recipe that is a command, else None."""
    folder = log_path(launch.folder, preview.run.id, preview.attempt)
    is_bare = bool(bare) and list(spec.argv[: len(bare)]) == bare
    return {
        "attempt": preview.attempt,
        "place": launch.plan.launch.places[0],
        "token": spec.token,
        "title": spec.title,
        "bare": is_bare,
        "argv": list(spec.argv[len(bare) if is_bare else 0 :]),
        "cwd": spec.cwd,
        "resources": dict(spec.resources),
        "log_path": folder,
        "command": command(launch.plan, preview.run, preview.attempt, folder),
    }


def command(planned: Plan, run: Run, attempt: int, folder: str) -> list[str] | None:
    """Return the argv of a recipe that is a command, or None for other recipes."""
    template = planned.recipe_of(run.stage).command
    if template is None:
        return None
    values: Mapping[str, object] = run.config | {
        "log_path": folder,
        "run": run.id,
        "attempt": attempt,
        **({} if run.seed is None else {"seed": run.seed}),
    }
    return render_command(template, values)


def counts(preview: LaunchPreview) -> str:
    """Summarise a preview, e.g. `12 to start, 6 succeeded, 2 failed and left alone`."""
    starting = [preview for preview in preview.previews if preview.attempt]
    again = sum(preview.state.opened > 0 for preview in starting)
    parts = [f"{len(starting)} to start" + (f" ({again} of them again)" if again else "")]
    left = [preview.state.state for preview in preview.previews if not preview.attempt]
    for state in sorted(set(left), key=lambda state: (state is not State.SUCCEEDED, state.value)):
        tail = "" if state in (State.SUCCEEDED, State.RUNNING) else " and left alone"
        parts.append(f"{left.count(state)} {state.value}{tail}")
    return ", ".join(parts)


_SEVERAL = (
    "shown as if all runs went to this place, though a launch gives each place "
    "its share (`--backend` shows one place)"
)
_NONE = "jobs of this backend have no manifests"

_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z][A-Za-z0-9_./-]*\Z", re.I)


def manifests(preview: LaunchPreview) -> Iterator[Manifest | str]:
    """Yield the manifests of all runs that a launch would start, in batches as the launch would
    submit them. With several backends, yield a remark for each backend, and all runs' manifests for
    each backend that has manifests: a launch chooses a run's backend only when the run starts.
    Raises `UsageError` if no backend has manifests, and the errors of `admit`."""
    from sweeper.launcher.manifest import secret_names  # slow to import

    plan = preview.plan
    launch = plan.launch
    if all(backend_type(place).manifests is None for place in launch.places):
        others = ", ".join(kind.name for kind in every_backend() if kind.manifests is not None)
        raise UsageError(
            f"--manifest: jobs of {' and '.join(launch.places)} have no manifests; only "
            f"jobs of {others} have them. Use `--json` to see each job"
        )
    admit(
        launch,
        preview.folder.store,
        plan.service,
        secret_names(plan.secrets, plan.service),
        live=False,
    )
    builder = job_builder(preview)
    for share in launch.shares:
        kind = backend_type(share.backend)
        if launch.backends:
            yield f"{kind.name}: {_SEVERAL if kind.manifests is not None else _NONE}"
        if kind.manifests is not None:
            specs = list(jobs(preview, builder, kind.name).values())
            most = min(share.max_parallel or launch.max_parallel, launch.max_parallel)
            batches = [specs[start : start + most] for start in range(0, len(specs), most)]
            options = options_of(launch, kind.name)
            yield from kind.manifests(plan.name, preview.folder.address, options, batches)


def text(manifest: Manifest | str) -> Iterator[str]:
    """Yield the lines of a manifest or of a remark. A manifest whose content is not text is yielded
    as YAML that starts with `---`."""
    if isinstance(manifest, str):
        yield f"# {manifest}"
        return
    if isinstance(manifest.content, str):
        yield f"# {manifest.about}"
        yield from manifest.content.splitlines()
        return
    yield "---"
    yield f"# {manifest.about}"
    yield from _block(manifest.content, "")


def _block(value: object, indent: str) -> Iterator[str]:
    """Yield the lines of a non-empty mapping or list. Every string value is quoted, so that all
    versions of YAML read it as a string."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, object]", value).items():
            name = key if _PLAIN.match(key) else flow(key)
            if _is_flat(inner):
                yield f"{indent}{name}: {flow(inner)}"
            else:
                yield f"{indent}{name}:"
                yield from _block(inner, f"{indent}  ")
        return
    for inner in cast("Sequence[object]", value):
        first, *rest = [f"  {flow(inner)}"] if _is_flat(inner) else _block(inner, "  ")
        yield f"{indent}- {first[2:]}"
        yield from (f"{indent}{line}" for line in rest)


def _is_flat(value: object) -> bool:
    return isinstance(value, str) or not isinstance(value, Mapping | Sequence) or not value
