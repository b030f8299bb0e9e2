"""Training sessions of agents. A session is a run of the sweep `agent-NAME`. The run executes
orders of an agent, such as to train or to save. Each order is a file in the store, which the run
answers with another file (`recipes/session.py`)."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from sweeper.agents.answers import quoted
from sweeper.agents.grids import find_below
from sweeper.agents.workspace import GridPreview, Workspace
from sweeper.common.alarm_thresholds import RULES
from sweeper.errors import AlreadyExists, NotFound, SweeperError, UsageError
from sweeper.results.runs import RecordedRun
from sweeper.results.status import read_status
from sweeper.results.sweeps import Sweep, SweepRun
from sweeper.store.documents import encode, read_json, timestamp
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import Plan

Kind = Literal["sft", "grpo"]
Service = Literal["local", "tinker", "none"]

FILES = ".agents-files"
"""The folder below the root for graders and data of sessions. The names of the files are derived
from the content."""
_RECIPES = {"sft": "sweeper.recipes.session_sft", "grpo": "sweeper.recipes.session_rl"}
_METRICS = {
    "sft": {"name": "test/nll", "goal": "minimize"},
    "grpo": {"name": "test/reward", "goal": "maximize"},
}
_LAUNCH = {"backend": "local", "retries": 2, "max_parallel": 8}
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,60}")
_RESERVED = {
    "seed": "use the argument `seed`",
    "data": "use the argument `data` or `problems`",
    "load_checkpoint_path": "use the argument `start_from`",
    "reward_function": "use the argument `grader`",
    "function_environment": "graders always run in bubblewrap",
    "reward_model": "use the argument `grader`",
    "kl_reference": "the session's initial weights are the reference",
    "log_path": "sweeper sets it",
    "base_url": "use the argument `service`",
    "wandb_project": "only the project's owner sets it",
    "wandb_name": "only the project's owner sets it",
}
_TRY_SECONDS = 120.0


class Grading(NamedTuple):
    """An agent's grader: Python code that defines `score(question, response, answer)`, and
    example calls as (question, response, answer, expected score)."""

    text: str
    examples: Sequence[tuple[str, str, str, float]]

    @property
    def file(self) -> bytes:
        """The content of a Python file with the grader and its examples, which a recipe loads."""
        shown = "".join(f"    {example!r},\n" for example in map(tuple, self.examples))
        return f"{self.text.rstrip()}\n\n\nEXAMPLES = [\n{shown}]\n".encode()


class Spec(NamedTuple):
    """The definition of a session. `settings` are the settings of the recipe. The session trains on
    `problems` (prompts and answers), on `data` (a file below the grids folder), or on the task in
    `settings`."""

    kind: Kind
    name: str
    seed: int
    service: Service
    settings: Mapping[str, object]
    problems: Sequence[Mapping[str, str]] = ()
    data: str | None = None
    grading: Grading | None = None
    start_from: str | None = None


class Session(NamedTuple):
    """A session: a run that executes orders (requests of an agent, such as to train or to sample).
    The orders and their answers are files in `folder`, a path relative to the root."""

    run: SweepRun
    kind: Kind
    folder: str

    @property
    def name(self) -> str:
        """The name that tools use: sweep/run."""
        return f"{self.run.sweep}/{self.run.name}"


class Sessions:
    """The sessions in a workspace's root. Raises `StoreError`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._store = workspace, workspace.store

    def open(self, spec: Spec, limits: Mapping[str, float]) -> Session:
        """Start a session within the allowance, or return the existing session with this name and
        seed. If that session is held, for example because its budget is used up, add `limits` to
        its budget and resume it. Raises `UsageError`, and the errors of `launch`."""
        if _NAME.fullmatch(spec.name) is None:
            raise UsageError(f"{spec.name!r} is not a valid name: use a-z, digits, '.', '_', '-'")
        if self._store.is_remote:
            raise UsageError(
                "sessions need a store on this machine: start the server with a local folder, as "
                "in `sweeper agent mcp --root sweeps`"
            )
        before = self._recorded(f"agent-{spec.name}")
        created: list[str] = []  # files that the plan reads
        try:
            plan = _planned(spec, self._settings(spec, created), before)
            (planned,) = (run for run in plan.runs if run.seed == spec.seed)
            exists = before is not None and planned.id in {run.id for run in before.runs}
            if not exists and spec.grading is not None:
                _try_out(spec.grading)
            if not exists or (
                limits and self._held_reason(self.find(f"{plan.name}/{planned.name}"))
            ):
                self._launch(plan, limits)
        except SweeperError:
            self._store.remove(created)
            raise
        return self.ensure_running(self.find(f"{plan.name}/{planned.name}"))

    def _launch(self, plan: Plan, limits: Mapping[str, float]) -> None:
        from sweeper.launcher.preview import survey

        self._workspace.launch(GridPreview(survey(plan, self._store), {}), limits)

    def left(self) -> dict[str, float]:
        """Return the unused part of each limit of the allowance."""
        return self._workspace.left()

    def _recorded(self, sweep: str) -> Plan | None:
        try:
            plan = SweepFolder(self._store, sweep).read_plan()
        except NotFound:
            return None
        self._workspace.require_ours(sweep)
        return plan

    def _settings(self, spec: Spec, created: list[str]) -> dict[str, object]:
        """Return the recipe's settings for a session. Write the session's problems and grader to
        files, and append the paths of new files to `created`."""
        for key in spec.settings:
            if key in _RESERVED:
                raise UsageError(f"settings: {key} cannot be set: {_RESERVED[key]}")
            if re.fullmatch("[a-z_]+", key) is None:
                raise UsageError(f"settings: {key[:100]!r} is not a setting")
        settings = dict(spec.settings)
        if spec.problems and spec.data is not None:
            raise UsageError("give `problems` or `data`, not both")
        if spec.problems:
            text = "".join(json.dumps(dict(problem)) + "\n" for problem in spec.problems)
            settings["data"] = self._file(text.encode(), "jsonl", created)
        if spec.data is not None:
            settings["data"] = find_below(self._workspace.grids, spec.data, (".jsonl",), "data")
        if spec.grading is not None:
            path = self._file(spec.grading.file, "py", created)
            settings |= {"reward_function": f"{path}:score", "function_environment": "bubblewrap"}
        if spec.start_from is not None:
            settings["load_checkpoint_path"] = self.address(spec.start_from)
        return settings

    def _file(self, data: bytes, kind: str, created: list[str]) -> str:
        path = f"{FILES}/{hashlib.sha256(data).hexdigest()[:16]}.{kind}"
        with suppress(AlreadyExists):
            self._store.create(path, data)
            created.append(path)
        return self._store.local_path(path) or path

    def address(self, checkpoint: str, session_run: RecordedRun | None = None) -> str:
        """Return the address of a checkpoint. `checkpoint` is an address (`tinker://...`), the name
        of a checkpoint of `session_run`, or a run (sweep/run). For a run, return the address of the
        run's last checkpoint. Raises `NotFound`, `UsageError`."""
        if checkpoint.startswith("tinker://"):
            return checkpoint
        if session_run is not None and "/" not in checkpoint:
            recorded = session_run.checkpoint_records()
            records = [record for record in recorded if record.get("name") == checkpoint]
            names = ", ".join(str(record.get("name")) for record in recorded) or "none"
            message = f"no checkpoint {checkpoint!r} of this session (it has {names})"
        else:
            record = self._workspace.registry.run(checkpoint)
            records, message = record.checkpoint_records(), f"{checkpoint} has no checkpoint"
        paths = [path for row in records if isinstance(path := row.get("state_path"), str)]
        if not paths:
            raise NotFound(message)
        return paths[-1]

    def find(self, reference: str) -> Session:
        """Find a session by its run (sweep/run). Raises `NotFound`, and `UsageError` for a run
        that is not a session."""
        run = self._workspace.registry.run(reference)
        plan = SweepFolder(self._store, run.sweep).read_plan()
        kinds: dict[str | None, Kind] = {_RECIPES["sft"]: "sft", _RECIPES["grpo"]: "grpo"}
        kind = kinds.get(plan.recipe.module)
        if kind is None or not isinstance(run, SweepRun):
            raise UsageError(
                f"{run.sweep}/{run.name} is not a session: begin one with init_sft or init_grpo"
            )
        self._workspace.require_ours(run.sweep)
        return Session(run, kind, f"{run.sweep}/session/{run.id}")

    def ensure_running(self, session: Session) -> Session:
        """Return the session in its current state, and start a launcher if none is running.
        Raises `UsageError` for a session that has ended or is held."""
        now = self.find(session.name)
        if now.run.is_finished:
            why = f": {quoted(now.run.explained)}" if now.run.explained else ""
            raise UsageError(
                f"the session {session.name} has ended: {now.run.state.value}{why}. To continue, "
                "begin a new session from one of this session's checkpoints, with another name or "
                "another seed"
            )
        if (held := self._held_reason(now)) is not None:
            raise UsageError(
                f"{now.name} is held and executes no orders: {quoted(held)}. To continue, call "
                f"init_{now.kind} again with the same arguments and with additional tokens, usd or "
                "hours. The session then executes the waiting order"
            )
        folder = SweepFolder(self._store, now.run.sweep)
        if not read_status(Sweep(folder)).launcher:
            self._workspace.start_again(folder)
        return now

    def _held_reason(self, session: Session) -> str | None:
        """Return why the session's sweep is held. Return None if the sweep is not held, if a
        launcher is running, or if the session has ended."""
        if session.run.is_finished:
            return None
        status = read_status(Sweep(session.run.sweep_folder))
        return None if status.launcher else status.held

    def last(self, session: Session) -> int:
        """Return the number of the session's last order; 0 if the session has no orders."""
        names = self._store.names(f"{session.folder}/orders")
        return max((int(name.rpartition("/")[2][:6]) for name in names), default=0)

    def order(self, session: Session, order: Mapping[str, object]) -> int | None:
        """Create an order (a request to the session), and return the order's number. Return None
        if the previous order has no answer yet."""
        last = self.last(session)
        if last and self.answer(session, last) is None:
            return None
        document = {"schema": 1, "time": timestamp(), "by": self._workspace.by, **order}
        try:
            self._store.create(f"{session.folder}/orders/{last + 1:06d}.json", encode(document))
        except AlreadyExists:
            return None
        return last + 1

    def ordered(self, session: Session, number: int) -> dict[str, object]:
        """Return the order with this number. Raises `NotFound`."""
        return _document(read_json(self._store, f"{session.folder}/orders/{number:06d}.json"))

    def answer(self, session: Session, number: int) -> dict[str, object] | None:
        """Return the answer to the order with this number; None if there is no answer yet."""
        path = f"{session.folder}/answers/{number:06d}.json"
        with suppress(NotFound):
            return _document(read_json(self._store, path))
        return None

    def progress(self, session: Session) -> dict[str, object] | None:
        """Return the progress that the session's program reports; None before the first report."""
        with suppress(NotFound):
            return _document(read_json(self._store, f"{session.folder}/progress.json"))
        return None


def _document(progress: Mapping[str, object]) -> dict[str, object]:
    return {key: progress[key] for key in progress if key != "schema"}


def _planned(spec: Spec, settings: Mapping[str, object], before: Plan | None) -> Plan:
    """Plan the session's sweep, with the seed of `spec` and all seeds of the recorded plan `before`
    (None: a new sweep). Raises `UsageError` if `before` has other settings, and `GridError`."""
    from sweeper.planner.plan import plan

    seeds = {run.seed for run in before.runs if run.seed is not None} if before else set[int]()
    grid = {
        "name": f"agent-{spec.name}",
        "recipe": _RECIPES[spec.kind],
        "service": spec.service,
        "base": dict(settings),
        "seeds": sorted(seeds | {spec.seed}),
        "metric": _METRICS[spec.kind],
        "alarms": {name: "off" for name, rule in RULES.items() if rule.missing_steps},
        "launch": _LAUNCH,
    }
    planned = plan(grid)
    if before is not None and not {run.id for run in before.runs} <= {r.id for r in planned.runs}:
        raise UsageError(f"the session {spec.name} exists with other settings: choose another name")
    return planned


def _try_out(grading: Grading) -> None:
    """Call a grader on its examples, in isolation. Raises `UsageError` if all examples expect the
    same score, or if the grader fails, takes too long or returns an unexpected score."""
    scores = {score for *_, score in grading.examples}
    if len(scores) < 2:
        raise UsageError(
            "examples: give at least two examples that expect different scores, to show "
            "whether the grader tells answers apart"
        )
    with tempfile.TemporaryDirectory(prefix="sweeper-grader-") as folder:
        path = os.path.join(folder, "grader.py")
        with open(path, "wb") as file:
            file.write(grading.file)
        command = [sys.executable, "-P", "-m", "sweeper.recipes.isolated", f"{path}:score"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_TRY_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"the grader took more than {_TRY_SECONDS:g} s on its examples"
            ) from None
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
            message = last.removeprefix("error: ").replace(f"{path}:score", "grader")
            raise UsageError(message.replace("EXAMPLES", "examples"))
