"""Runs jobs as experiments of a Beaker workspace: see docs/beaker.md. Each attempt is an experiment
of its own, identified by its name."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus, require
from sweeper.backends.beaker.client import Refused, Service
from sweeper.backends.beaker.options import Options, merged
from sweeper.backends.beaker.spec import Names, spec
from sweeper.backends.beaker.status import ENDS, WAITS, is_over, status_of, word
from sweeper.backends.parallel_requests import for_each
from sweeper.common.backoff import Backoff, Freshness
from sweeper.errors import EnvironmentFailure
from sweeper.fields.options import over

if TYPE_CHECKING:
    from beaker.beaker_pb2 import Job, Workload

_WHY_SECONDS = 10.0
"""Seconds between two queries for the reason why a job waits."""
_MOST = 100
"""Maximum number of jobs whose details are queried together."""
_ROOM_SECONDS = 5.0, 60.0
"""Backoff of a submission for which there was no room: first and longest wait."""
_ALONE = 20
"""Maximum number of missing experiments that are queried by name. If more are missing, all
experiments are listed."""
_NEWEST: Mapping[str, object] = {"sort_order": "SORT_ORDER_DESCENDING", "created": {}}


class Detail(NamedTuple):
    """The result of a query for the newest job of an experiment. `job` is None if there was no job
    yet. `at` is the monotonic time of the query, and `status` the experiment's status at that
    time."""

    status: str
    at: float
    job: "Job | None"


def open_backend(sweep: str, folder: str, options: Options) -> "BeakerBackend":
    """Open the backend for one sweep. Raises `EnvironmentFailure` if the workspace cannot be
    used."""
    backend = BeakerBackend(Service(options.workspace), options, sweep, folder)
    backend.find([])
    return backend


class BeakerBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`). A job's own options, `JobSpec.resources`,
    override `options`."""

    name = "beaker"

    def __init__(self, service: Service, options: Options, sweep: str, folder: str) -> None:
        self._service, self._options = service, options
        self._names = Names(sweep, folder)
        # By token, at the last listing. None: the experiment does not exist.
        self._workloads: dict[str, Workload | None] = {}
        self._details: dict[str, Detail] = {}
        self._nodes: dict[str, str] = {}
        self._over: dict[str, JobStatus] = {}
        self._ids: dict[str, str] = {}
        self._freshness = Freshness()
        self._room = Backoff(*_ROOM_SECONDS)

    def location(self) -> dict[str, str]:
        return {"server": self._service.host, "workspace": self._service.workspace}

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        """Run the checks of `doctor` that a launch requires, for jobs with these resources."""
        from sweeper.backends.beaker.doctor import checks

        for needs in resources:
            require(checks(over(self._options, needs, merged), self._service), self.name)

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
        self._query_details(tokens)
        return {token: self._status(token) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> None:
        self._look(tokens)
        workloads = [self._workloads.get(token) for token in tokens if token not in self._over]
        going = [w.experiment.id for w in workloads if w and word(w, "status") not in ENDS]
        if going:
            self._freshness.end()
            self._service.ask("CancelWorkloads", workload_ids=going)

    def forget(self, tokens: Sequence[str]) -> None:
        self._look(tokens, anew=True)
        workloads = [self._workloads.get(token) for token in tokens]
        over = [w.experiment.id for w in workloads if w and word(w, "status") in ENDS]
        if over:
            self._freshness.end()
            self._service.ask("DeleteWorkloads", workload_ids=over)

    def logs(self, token: str) -> Iterator[str]:
        """Yield the job's current output; nothing if the job never started."""
        workload = self._listed(token).get(token)
        for job in self._jobs([workload] if workload else []):
            for line in self._service.lines(job.id) if job else ():
                yield line.decode(errors="replace").rstrip("\r\n")

    def _create(self, job: JobSpec) -> None:
        self._over.pop(job.token, None)
        name = self._names.name(job.token)
        experiment = spec(job, over(self._options, job.resources, merged), self._names)
        try:
            self._service.create(name, experiment)
        except Refused as error:
            if error.status != "ALREADY_EXISTS":
                raise error.settled() from None
            if self._make_way(job.token):
                self._service.create(name, experiment)

    def _make_way(self, token: str) -> bool:
        """Free the name for a token's experiment, which Beaker has refused as taken. If an ended
        experiment has the name, rename the experiment and return True. Return False if an
        unfinished experiment of this sweep has the name. Raises `Refused` for an unfinished
        experiment of an earlier sweep in the same folder, and `EnvironmentFailure` for an
        experiment in another workspace."""
        workload = self._listed(token, anyones=True).get(token)
        if workload is None:
            reason = (
                f"a workspace other than {self._service.workspace} already has an experiment named"
            )
            raise EnvironmentFailure(f"beaker: {reason} {self._names.name(token)}")
        identity = workload.experiment.id
        if word(workload, "status") not in ENDS:
            if self._names.is_ours(workload.experiment.description):
                return False
            reason = (
                f"the experiment {identity} of an earlier sweep in this folder is still running"
            )
            how = f"to stop it, run `beaker experiment stop {identity}`"
            raise Refused(
                f"beaker: {reason}, and the launcher waits until this experiment ends; {how}",
                "ALREADY_EXISTS",
            )
        self._service.ask("UpdateWorkload", workload_id=identity, name=f"earlier-{identity}")
        self._details.pop(token, None)
        return True

    def _status(self, token: str) -> JobStatus:
        workload, detail = self._workloads.get(token), self._details.get(token)
        if token in self._over or workload is None:
            return self._over.get(token, JobStatus(JobState.ABSENT))
        state, job = word(workload, "status"), detail.job if detail else None
        if state in ENDS and state != "STATUS_SUCCEEDED" and (not detail or detail.status != state):
            return JobStatus(JobState.STOPPING)  # The reason for its end was not queried yet.
        node = self._nodes.get(job.assignment_details.node_id) if job else None
        status = status_of(state, job, node)
        if status.state is JobState.ENDED:
            self._over[token] = status
        return status

    def _look(self, wanted: Sequence[str] = (), *, anew: bool = False) -> None:
        """List the sweep's unfinished experiments if the last listing is outdated or `anew` is
        True. Query the experiments of tokens in `wanted` that are not listed."""
        if anew or self._freshness.is_over():
            going = [*WAITS, "STATUS_RUNNING", "STATUS_STOPPING", "STATUS_UPLOADING_RESULTS"]
            with self._freshness.renewed():
                self._workloads = {**self._listed(statuses=going)}
        missing = [t for t in wanted if t not in self._workloads and t not in self._over]
        if len(missing) > _ALONE:
            everything = self._listed()
            self._workloads |= {token: everything.get(token) for token in missing}
        else:
            self._workloads |= {token: self._listed(token).get(token) for token in missing}
        self._ids |= {
            t: workload.experiment.id for t, workload in self._workloads.items() if workload
        }

    def _listed(
        self, token: str = "", *, anyones: bool = False, **more: object
    ) -> "dict[str, Workload]":
        """Return a dict from token to experiment, for the sweep's tokens that begin with `token`.
        With `anyones`, include experiments of earlier sweeps in the same folder."""
        begins, listed = self._names.name(token), dict[str, "Workload"]()
        where = {
            "workspace_id": self._service.workspace_id,
            "name_or_description_substring": begins,
        }
        for page in self._service.pages("ListWorkloads", **where, **more):
            # The filter matches anywhere in the name or description.
            for workload in page.workloads:
                about = workload.experiment
                belongs = anyones or self._names.is_ours(about.description)
                if about.name.startswith(begins) and belongs:
                    listed[about.name.removeprefix(self._names.prefix)] = workload
        return listed

    def _query_details(self, tokens: Iterable[str]) -> None:
        """Query the newest job of each experiment whose details are due (see `_due`), at most
        `_MOST` experiments."""
        now = time.monotonic()
        due = sorted((at, token) for token in tokens if (at := self._due(token, now)) is not None)
        requests = [(token, item) for _, token in due[:_MOST] if (item := self._workloads[token])]
        jobs = self._jobs([item for _, item in requests])
        for (token, workload), job in zip(requests, jobs, strict=True):
            self._details[token] = Detail(word(workload, "status"), now, job)
            node = job.assignment_details.node_id if job else ""
            if node and node not in self._nodes:
                self._nodes[node] = self._node(node)

    def _due(self, token: str, now: float) -> float | None:
        """Return when the details of an experiment were last queried. Return 0 if they were not
        queried since the status changed, and None if no query is needed now."""
        workload, detail = self._workloads.get(token), self._details.get(token)
        if workload is None or token in self._over:
            return None
        state = word(workload, "status")
        if detail is None or detail.status != state:
            return None if state == "STATUS_SUCCEEDED" else 0.0
        waits = state in WAITS and now - detail.at > _WHY_SECONDS
        return detail.at if waits or (state in ENDS and not is_over(detail.job)) else None

    def _jobs(self, workloads: "Sequence[Workload]") -> "list[Job | None]":
        """Return the newest job of each workload, or None for a workload without a job."""
        newest: dict[str, object] = {"sort_clause": _NEWEST, "page_size": 1}
        newest |= self._service.organization
        tasks = [workload.experiment.tasks[0].id for workload in workloads]
        requests = [{"options": {"task_id": task, **newest}} for task in tasks]
        answers = self._service.ask_each("ListJobs", requests)
        return [answer.jobs[0] if answer.jobs else None for answer in answers]

    def _node(self, identity: str) -> str:
        try:
            return self._service.ask("GetNode", node_id=identity).node.hostname
        except Refused:  # The node no longer exists.
            return identity
