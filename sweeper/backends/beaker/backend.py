"""Experiments of a workspace of Beaker's: see docs/beaker.md.

A run's attempt is an experiment of its own, whose name says which. What is asked is one listing of
those of the sweep that have not ended; one that is not on it is asked for by its name. A job's
node, and why it waits or has ended, is asked for when the experiment's word has changed.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper.backends.backoff import Backoff, Freshness
from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus, require
from sweeper.backends.beaker.client import Refused, Service
from sweeper.backends.beaker.options import Options, asked_of
from sweeper.backends.beaker.spec import Names, spec
from sweeper.backends.beaker.status import ENDS, WAITS, is_over, status_of, word
from sweeper.backends.parallel_requests import for_each
from sweeper.errors import EnvironmentFailure

if TYPE_CHECKING:
    from beaker.beaker_pb2 import Job, Workload

__all__ = ["BeakerBackend", "open_backend"]

_WHY_SECONDS = 10.0
"""How often it is asked what jobs wait for."""
_MOST = 100
"""Of so many jobs at most more is asked at a time."""
_ROOM_SECONDS = 5.0, 60.0
"""When a submission is tried again for which there was no room: at first, and at most."""
_ALONE = 20
"""So many experiments are asked for by their names; more by a listing of all."""
_NEWEST: Mapping[str, object] = {"sort_order": "SORT_ORDER_DESCENDING", "created": {}}


class Detail(NamedTuple):
    """An experiment's newest job (None: it has none), as it was at the time `at`, when `said` was
    the experiment's word."""

    said: str
    at: float
    job: "Job | None"


def open_backend(sweep: str, folder: str, options: Options) -> "BeakerBackend":
    """The backend for one sweep. Raises `EnvironmentFailure` where no workspace is to be had."""
    backend = BeakerBackend(Service(options.get("workspace")), options, sweep, folder)
    backend.find([])
    return backend


class BeakerBackend(Backend):
    """See `sweeper.backends.base.Backend`. `options` stand where a job's resources say nothing."""

    name = "beaker"

    def __init__(self, service: Service, options: Options, sweep: str, folder: str) -> None:
        self._service, self._options = service, options
        self._names = Names(sweep, folder)
        # By token, as of the last look; None: there is none.
        self._there: dict[str, Workload | None] = {}
        self._details: dict[str, Detail] = {}
        self._nodes: dict[str, str] = {}
        self._over: dict[str, JobStatus] = {}
        self._ids: dict[str, str] = {}
        self._freshness = Freshness()
        self._room = Backoff(*_ROOM_SECONDS)

    def location(self) -> dict[str, str]:
        return {"server": self._service.host, "workspace": self._service.workspace}

    def preflight(self, asked: Sequence[Mapping[str, object]]) -> None:
        """Look for all that jobs with these resources name, as `doctor` does."""
        from sweeper.backends.beaker.doctor import checks

        for one in asked:
            require(checks(asked_of(self._options, one), self._service), self.name)

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self._room.check()
        self._names.identity.ensure()
        self._freshness.end()
        with self._room.tried(Refused):
            for_each(jobs, self._create, Refused)

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        self._look(tokens, anew=True)
        return {token: self._ids[token] for token in tokens if token in self._ids}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        if not tokens:
            return {}
        self._look(tokens)
        self._ask_more(tokens)
        return {token: self._status(token) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> None:
        self._look(tokens)
        found = [self._there.get(token) for token in tokens if token not in self._over]
        going = [one.experiment.id for one in found if one and word(one, "status") not in ENDS]
        if going:
            self._freshness.end()
            self._service.ask("CancelWorkloads", workload_ids=going)

    def forget(self, tokens: Sequence[str]) -> None:
        self._look(tokens, anew=True)
        found = [self._there.get(token) for token in tokens]
        over = [one.experiment.id for one in found if one and word(one, "status") in ENDS]
        if over:
            self._freshness.end()
            self._service.ask("DeleteWorkloads", workload_ids=over)

    def logs(self, token: str) -> Iterator[str]:
        """What the job printed, as it is now; nothing of one that never began."""
        found = self._listed(token).get(token)
        for job in self._jobs([found] if found else []):
            for line in self._service.lines(job.id) if job else ():
                yield line.decode(errors="replace").rstrip("\r\n")

    def _create(self, job: JobSpec) -> None:
        self._over.pop(job.token, None)
        name = self._names.name(job.token)
        made = spec(job, asked_of(self._options, job.resources), self._names)
        try:
            self._service.create(name, made)
        except Refused as error:
            if error.status != "ALREADY_EXISTS":
                raise error.settled() from None
            if self._is_in_the_way(job.token):
                self._service.create(name, made)

    def _is_in_the_way(self, token: str) -> bool:
        """Whether the experiment of this name is one that has ended, of a sweep before in the same
        folder: whoever asks for a job again has asked `find` for it first. It has another name when
        this returns. Raises `EnvironmentFailure` where it is not of this workspace, and `Refused`
        where it is of such a sweep and has not ended."""
        there = self._listed(token, anyones=True).get(token)
        if there is None:
            told = f"another workspace than {self._service.workspace} has an experiment of the name"
            raise EnvironmentFailure(f"beaker: {told} {self._names.name(token)}")
        identity = there.experiment.id
        if word(there, "status") not in ENDS:
            if self._names.is_ours(there.experiment.description):
                return False
            told = f"of a sweep that was in the same folder the experiment {identity} is at work"
            how = f"waits for its end, or `beaker experiment stop {identity}`"
            raise Refused(f"beaker: {told}: {how}", "ALREADY_EXISTS")
        self._service.ask("UpdateWorkload", workload_id=identity, name=f"earlier-{identity}")
        self._details.pop(token, None)
        return True

    def _status(self, token: str) -> JobStatus:
        workload, known = self._there.get(token), self._details.get(token)
        if token in self._over or workload is None:
            return self._over.get(token, JobStatus(JobState.ABSENT))
        said, job = word(workload, "status"), known.job if known else None
        if said in ENDS and said != "STATUS_SUCCEEDED" and (not known or known.said != said):
            return JobStatus(JobState.STOPPING)  # it was not asked yet how it has ended
        node = self._nodes.get(job.assignment_details.node_id) if job else None
        found = status_of(said, job, node)
        if found.state is JobState.ENDED:
            self._over[token] = found
        return found

    def _look(self, wanted: Sequence[str] = (), *, anew: bool = False) -> None:
        """List the sweep's experiments that have not ended, and those of `wanted` that are not
        among them."""
        if anew or self._freshness.is_over():
            going = [*WAITS, "STATUS_RUNNING", "STATUS_STOPPING", "STATUS_UPLOADING_RESULTS"]
            with self._freshness.renewed():
                self._there = {**self._listed(statuses=going)}
        missing = [t for t in wanted if t not in self._there and t not in self._over]
        if len(missing) > _ALONE:
            everything = self._listed()
            self._there |= {token: everything.get(token) for token in missing}
        else:
            self._there |= {token: self._listed(token).get(token) for token in missing}
        self._ids |= {t: one.experiment.id for t, one in self._there.items() if one}

    def _listed(
        self, token: str = "", *, anyones: bool = False, **more: object
    ) -> "dict[str, Workload]":
        """The sweep's experiments by their tokens: all of them, or those whose token begins so.
        `anyones`: those of sweeps that were in the same folder before, too."""
        begins, found = self._names.name(token), dict[str, "Workload"]()
        where = {
            "workspace_id": self._service.workspace_id,
            "name_or_description_substring": begins,
        }
        for page in self._service.pages("ListWorkloads", **where, **more):
            for one in page.workloads:  # whose name or description has it anywhere
                about = one.experiment
                ours = anyones or self._names.is_ours(about.description)
                if about.name.startswith(begins) and ours:
                    found[about.name.removeprefix(self._names.prefix)] = one
        return found

    def _ask_more(self, tokens: Iterable[str]) -> None:
        """Ask for the jobs of those of which it is time to."""
        now = time.monotonic()
        due = sorted((at, token) for token in tokens if (at := self._due(token, now)) is not None)
        asked = [(token, one) for _, token in due[:_MOST] if (one := self._there[token])]
        jobs = self._jobs([one for _, one in asked])
        for (token, one), job in zip(asked, jobs, strict=True):
            self._details[token] = Detail(word(one, "status"), now, job)
            node = job.assignment_details.node_id if job else ""
            if node and node not in self._nodes:
                self._nodes[node] = self._node(node)

    def _due(self, token: str, now: float) -> float | None:
        """When more was asked of it last, if that is to be asked again."""
        workload, known = self._there.get(token), self._details.get(token)
        if workload is None or token in self._over:
            return None
        said = word(workload, "status")
        if known is None or known.said != said:
            return None if said == "STATUS_SUCCEEDED" else 0.0
        waits = said in WAITS and now - known.at > _WHY_SECONDS
        return known.at if waits or (said in ENDS and not is_over(known.job)) else None

    def _jobs(self, workloads: "Sequence[Workload]") -> "list[Job | None]":
        """The newest job of each, None where it has none."""
        newest: dict[str, object] = {"sort_clause": _NEWEST, "page_size": 1}
        newest |= self._service.organization
        tasks = [one.experiment.tasks[0].id for one in workloads]
        requests = [{"options": {"task_id": task, **newest}} for task in tasks]
        answers = self._service.ask_each("ListJobs", requests)
        return [answer.jobs[0] if answer.jobs else None for answer in answers]

    def _node(self, identity: str) -> str:
        try:
            return self._service.ask("GetNode", node_id=identity).node.hostname
        except Refused:  # it is no more
            return identity
