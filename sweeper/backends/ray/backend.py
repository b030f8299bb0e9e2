"""Runs jobs on a Ray cluster, each as a detached actor that is named after the sweep's folder,
the sweep's identity and the token. Ray lists actors until long after their end. This module does
not import Ray: it calls `driver.py`, a process that is restarted when it has lost the connection
to the head."""

import importlib.util
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, overload

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus
from sweeper.backends.helper import Helper
from sweeper.backends.identity import Identity
from sweeper.backends.ray.messages import About, ActorOptions, Death, Described, Node
from sweeper.backends.ray.options import Options
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.fields.options import read_options
from sweeper.paths import add_extra

_PLACE = "launch.ray"
_MEBIBYTE = 1 << 20
_ABSENT = JobStatus(JobState.ABSENT)
_WAITS = {"DEPENDENCIES_UNREADY", "PENDING_CREATION"}


def open_backend(folder: str, options: Mapping[str, object]) -> "RayBackend":
    """Open the backend for the sweep at `folder`. Raises `EnvironmentFailure` if Ray is not
    installed."""
    if importlib.util.find_spec("ray") is None:
        raise EnvironmentFailure(
            f"ray: Ray is not installed with sweeper: run `{add_extra('ray')}`, and install the "
            "same version of Ray as on the cluster"
        )
    return RayBackend(folder, options)


class Driver(Helper):
    """The driver process (`driver.py`). The overloads of `ask` declare the types of the answers."""

    @overload
    def ask(self, do: Literal["hello"]) -> dict[str, str]: ...

    @overload
    def ask(self, do: Literal["nodes"]) -> list[Node]: ...

    @overload
    def ask(self, do: Literal["poll"], *, names: Sequence[str]) -> dict[str, About]: ...

    @overload
    def ask(self, do: Literal["cancel"], *, names: Sequence[str]) -> list[str]: ...

    @overload
    def ask(self, do: Literal["logs"], *, name: str) -> list[str]: ...

    @overload
    def ask(self, do: str, **about: object) -> object: ...

    def ask(self, do: str, **about: object) -> object:
        return super().ask(do, **about)


class RayBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`)."""

    name = "ray"

    def __init__(self, folder: str, plan_options: Mapping[str, object]) -> None:
        self._options = options = read_options(Options, plan_options, _PLACE)
        self._identity = Identity(folder)
        self._prefix = f"sweeper-{self._identity.folder_hash}"
        address = options.address or os.environ.get("RAY_ADDRESS") or "auto"
        environment = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", **os.environ}
        if any(environment.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
            environment.setdefault("RAY_AUTH_MODE", "token")
        opening = {"address": address, "namespace": self._prefix}
        self.driver = Driver("ray", "sweeper.backends.ray.driver", opening, environment)

    def location(self) -> dict[str, str]:
        return {"address": self.hello()["address"]}

    def hello(self) -> Mapping[str, str]:
        """Return `{"address": the head's address inside the cluster, "version": Ray's version}`."""
        return self.driver.ask("hello")

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        nodes = self.driver.ask("nodes")
        for needs in resources:
            why = lacking(needs, nodes)
            if why is not None and not self._options.wait_for_nodes:
                raise UsageError(
                    f"ray: {why}, so no node can run this job. If an autoscaler will add a larger "
                    "node, set launch.ray.wait_for_nodes"
                )

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        secrets = dict(self._options.secrets)
        if jobs:
            self._identity.ensure()
        described = [
            Described(
                name=self._name(job.token),
                token=job.token,
                argv=list(job.argv),
                cwd=job.cwd,
                secrets=secrets,
                options=_options(job.resources),
            )
            for job in jobs
        ]
        if described:
            self.driver.ask("submit", jobs=described)

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        return {token: self._name(token) for token in self._described(tokens)}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        actors = self._described(tokens)
        return {t: status_of(actors[t]) if t in actors else _ABSENT for t in tokens}

    def cancel(self, tokens: Sequence[str]) -> list[str]:
        names = {self._name(token): token for token in tokens}
        return [names[name] for name in self.driver.ask("cancel", names=list(names))]

    def forget(self, tokens: Sequence[str]) -> None:
        if tokens:
            self.driver.ask("forget", names=[self._name(token) for token in tokens])

    def logs(self, token: str) -> Iterator[str]:
        return iter(self.driver.ask("logs", name=self._name(token)))

    def _described(self, tokens: Sequence[str]) -> dict[str, About]:
        names = {self._name(token): token for token in tokens}
        actors = self.driver.ask("poll", names=list(names)) if names else {}
        return {names[name]: about for name, about in actors.items()}

    def _name(self, token: str) -> str:
        return f"{self._prefix}-{self._identity.current()}-{token}"


def _options(resources: Mapping[str, object]) -> ActorOptions:
    """Return an actor's options in Ray's format."""
    ray_options = read_options(Options, resources, _PLACE)
    options = ActorOptions(num_cpus=ray_options.num_cpus)
    if ray_options.num_gpus:
        options["num_gpus"] = ray_options.num_gpus
    if ray_options.resources:
        options["resources"] = ray_options.resources
    if ray_options.labels:
        options["label_selector"] = ray_options.labels
    if ray_options.memory:
        options["memory"] = ray_options.memory * _MEBIBYTE
    if ray_options.placement == "spread":
        options["scheduling_strategy"] = "SPREAD"
    return options


def lacking(resources: Mapping[str, object], nodes: Sequence[Node]) -> str | None:
    """Return a message if no node has all resources that a job asks for, else None."""
    options = _options(resources)
    wanted: dict[str, float] = {"CPU": options["num_cpus"]}
    if "num_gpus" in options:
        wanted["GPU"] = options["num_gpus"]
    if "memory" in options:
        wanted["memory"] = options["memory"]
    wanted |= options.get("resources", {})
    if any(all(node["has"].get(k, 0) >= v for k, v in wanted.items()) for node in nodes):
        return None
    most = {key: max((node["has"].get(key, 0) for node in nodes), default=0) for key in wanted}
    short = [key for key, value in wanted.items() if most[key] < value] or list(wanted)
    units = {"memory": _MEBIBYTE}
    return "; ".join(
        f"a job asks for {key} {wanted[key] / units.get(key, 1):g}, but the largest node has "
        f"{most[key] / units.get(key, 1):g}"
        for key in short
    )


def status_of(about: About) -> JobStatus:
    """Return a job's status from the driver's description."""
    state, node = about["state"], about.get("node")
    end = about.get("end")
    death: Death = about.get("death") or {}
    gone = death.get("reason") == "NODE_DIED"
    # If a node goes down, the worker is killed before the actor ends. So wait for the end of the
    # actor, which says whether the node went down.
    killed = end is not None and end["code"] == -signal.SIGKILL and (gone or state != "DEAD")
    if end is not None and not killed:
        tail = [line for line in end["tail"] if line.strip()]
        # A worker records how it ended. If it never started, the last line of output is the reason.
        began = any(line.startswith("sweeper: ") for line in tail)
        last_line = tail[-1][:200] if tail and end["code"] != 0 and not began else None
        return JobStatus(
            JobState.ENDED, end["code"], last_line and f"start: {last_line}", node=node
        )
    if state in _WAITS:
        return JobStatus(JobState.PENDING, None, "resources")
    if state != "DEAD":
        return JobStatus(JobState.RUNNING, node=node)
    kind, message = death.get("kind"), " ".join(str(death.get("message") or "").split())
    why = "its node is gone" if gone else "oom" if kind == "oom_context" else None
    if kind in ("creation_task_failure_context", "runtime_env_failed_context"):
        why = f"start: {message[-200:]}"
    return JobStatus(JobState.ENDED, None, why, gone, node)
