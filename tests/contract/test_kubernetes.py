"""What a Kubernetes cluster (a stand-in) refuses, and tests of jobs beyond the contract."""

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.single_jobs import a_job, judge_earlier_sweep, until, until_state
from support.kubernetes import Fault

from sweeper.backends import capabilities_of, open_backend
from sweeper.backends.base import Backend, JobState, JobStatus
from sweeper.backends.kubernetes.backend import status_of
from sweeper.backends.kubernetes.client import JOBS, Cluster
from sweeper.backends.kubernetes.objects import Condition, Job, Metadata, Pod
from sweeper.errors import EnvironmentFailure, Unreachable, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
LITERAL = "$(HOME) $$(HOME) $$ $HOME"
CANARY = "tml-canary-5f0c1d2e3b4a"


def _open(kube: Any, folder: Path, **options: Any) -> Backend:
    return open_backend("kubernetes", "sweep", str(folder), kube.options(**options))


def _set_up(kube: Any, what: Mapping[str, Any]) -> None:
    for name, value in what.items():
        setattr(kube, name, value)


NO_KUEUE = {"missing_kinds": {"localqueues"}}
NO_PODS = {"denied": {("create", "pods")}}  # so the trial with a pod reports nothing
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"namespace": "nowhere"}, {}, 'namespaces "nowhere" not found'),
    ({"context": "other"}, {}, 'namespaces "nowhere" not found'),
    ({"context": "mars"}, {}, "no cluster .*kubectl config get-contexts"),
    ({"secrets": {"A": "keys/a"}}, {}, 'secrets "keys" not found: see launch.kubernetes.secrets'),
    ({"pull_secrets": ["hub"]}, {}, 'secrets "hub" not found: see launch.kubernetes.pull_secrets'),
    ({"queue": "nobody"}, {}, 'localqueues "nobody" not found: see launch.kubernetes.queue'),
    ({"queue": "team"}, NO_KUEUE, "no Kueue, so no job would start: see launch.kubernetes.queue"),
    ({"service_account": "runs"}, {}, 'serviceaccounts: "runs" not found'),
    ({"priority_class": "low"}, {}, 'priorityclasses: "low" not found'),
    ({"resources": {"gpu": "1"}}, {}, "must be a standard resource type"),
    ({"pod": {"hostNetwrk": True}}, {}, "'hostNetwrk' was unexpected"),
    ({"pod": {"volumes": "none"}}, {}, "is not of type"),
    ({"pod": {"container": {"volumeMounts": [{"name": "x"}]}}}, {}, "'mountPath' is a required"),
    ({"pod": {"hostNetwork": "yes"}}, {}, "is not of type 'boolean'"),
    ({"pod": {"volumes": [{"emptyDir": {}}]}}, {}, "'name' is a required property"),
    ({}, {"restricted": True}, 'violates PodSecurity "restricted:latest"'),
    ({}, {"denied": {("create", "jobs")}}, 'jobs is forbidden: User "me" cannot create'),
    ({}, {"denied": {("list", "jobs")}}, 'jobs is forbidden: User "me" cannot list'),
    ({}, {"denied": {("list", "pods")}}, 'pods is forbidden: User "me" cannot list'),
    ({}, {"denied": {("get", "jobs")}}, "not allowed in namespace research: get jobs"),
    ({}, {"denied": {("delete", "jobs")}}, "not allowed in namespace research: delete jobs"),
    ({"service_account": "runs"}, NO_PODS, "not found: see launch.kubernetes.service_account"),
    ({"priority_class": "low"}, NO_PODS, "not found: see launch.kubernetes.priority_class"),
    ({}, {"silent": True}, "http://127.0.0.1:[0-9]+ does not answer"),
]


@pytest.mark.parametrize(("options", "cluster", "message"), REFUSED, ids=[t for _, _, t in REFUSED])
def test_preflight_refuses_in_one_line_and_makes_nothing(
    kube: Any, tmp_path: Path, options: dict[str, Any], cluster: dict[str, Any], message: str
) -> None:
    before = set(kube.things["jobs"])
    _set_up(kube, cluster)
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        _open(kube, tmp_path, **options).preflight([{}])
    assert "\n" not in str(caught.value)
    kube.recover()
    assert set(kube.things["jobs"]) <= before


def _config(kube: Any, **changes: Any) -> str:
    return json.dumps({**json.loads(kube.config.read_text()), **changes})


def test_an_unusable_kubeconfig_is_refused(
    kube: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kubeconfig"
    gone = {"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}
    texts = {
        _config(kube, users=[{"name": "me", "user": {"token": "old"}}]): "credentials have expired",
        _config(kube, clusters=[gone]): "http://127.0.0.1:9 does not answer",
        _config(kube, contexts=[]): "no cluster",
        "{{": "no cluster",
    }
    monkeypatch.setenv("KUBECONFIG", str(config))
    for text, message in texts.items():
        config.write_text(text)
        with pytest.raises(EnvironmentFailure, match=message) as caught:
            _open(kube, tmp_path)
        assert "\n" not in str(caught.value)
    config.unlink()
    with pytest.raises(EnvironmentFailure, match="no cluster"):
        _open(kube, tmp_path)
    with pytest.raises(UsageError, match="no image is given: write"):
        capabilities_of("kubernetes", {})
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install .*\[kubernetes\]"):
        _open(kube, tmp_path)


def test_what_may_not_be_looked_up_is_accepted(kube: Any, tmp_path: Path) -> None:
    """Users need no permission to create pods, and a full quota will have room later."""
    kube.denied = {("create", "pods"), ("get", "secrets"), ("list", "events")}
    kube.denied |= {("create", "selfsubjectaccessreviews"), ("get", "localqueues")}
    kube.denied |= {("get", "serviceaccounts"), ("get", "priorityclasses")}
    named = {"queue": "nobody", "service_account": "runs", "priority_class": "low"}
    _open(kube, tmp_path, secrets={"A": "keys/a"}, **named).preflight([{}])
    kube.recover()
    kube.quota = kube.most_jobs = 0
    _open(kube, tmp_path).preflight([{}])


def test_a_full_quota_delays_submissions(kube: Any, tmp_path: Path) -> None:
    backend, jobs = _open(kube, tmp_path), [a_job(number) for number in range(3)]
    tokens = [job.token for job in jobs]
    kube.most_jobs = 1 + len(kube.things["jobs"])
    with pytest.raises(Unreachable, match="exceeded quota"):
        backend.submit(jobs)
    (there,) = backend.find(tokens)
    with pytest.raises(Unreachable, match="exceeded quota"):
        backend.submit(jobs)
    kube.most_jobs, kube.quota = None, 0
    (missing, *_) = [job for job in jobs if job.token != there]
    backend = _open(kube, tmp_path)
    backend.submit([missing])

    def why() -> str:  # a new backend: an open one asks only every 10 s
        return str(_open(kube, tmp_path).poll([missing.token])[missing.token].reason)

    until(lambda: "exceeded quota" in why())
    backend.cancel(tokens)


def test_the_reason_of_a_waiting_job(kube: Any, tmp_path: Path) -> None:
    backend = _open(kube, tmp_path, secrets={"A": "keys/a"})
    by_reason = {
        "0/4 nodes are available": {"node_selector": {"pool": "none"}},
        "ImagePullBackOff: Back-off pulling image": {"image": "nowhere/nothing:1"},
        'CreateContainerConfigError: secret "keys" not found': {},
    }
    jobs = [a_job(number, **options) for number, options in enumerate(by_reason.values())]
    backend.submit(jobs)
    for job, reason in zip(jobs, by_reason, strict=True):
        token = job.token
        until(lambda t=token, r=reason: r in str(backend.poll([t])[t].reason))
        assert backend.poll([token])[token].since is not None
    backend.cancel([job.token for job in jobs])
    for job in jobs:  # a cancelled job that waits ends at once
        assert until_state(backend, job.token, JobState.ENDED).reason == "withdrawn"


def test_how_jobs_end(kube: Any, tmp_path: Path) -> None:
    backend = _open(kube, tmp_path)
    ends: dict[str, tuple[int | None, str | None]] = {
        "exit 7": (7, None),
        "exit 0": (0, None),
        "kill -9 $$": (-9, None),
        f"echo '{LITERAL}'": (0, None),
    }
    jobs = [a_job(number, "sh", "-c", text) for number, text in enumerate(ends)]
    backend.submit([*jobs, a_job(9, "there-is-no-such-program")])
    for job, end in zip(jobs, ends.values(), strict=True):
        status = until_state(backend, job.token, JobState.ENDED)
        assert (status.code, status.reason, status.preempted) == (*end, False)
        assert status.node in ("n0", None)
    status = until_state(backend, f"{9:012x}-a1", JobState.ENDED)
    assert "StartError: exec:" in str(status.reason)
    (printed,) = _open(kube, tmp_path).logs(jobs[3].token)
    assert printed == LITERAL  # Kubernetes would have expanded it


def test_lost_answers_and_a_busy_server(kube: Any, tmp_path: Path) -> None:
    """Each job is created once. A listing restarts if its next page has expired."""
    backend, jobs = _open(kube, tmp_path), [a_job(number) for number in range(3)]
    tokens = [job.token for job in jobs]
    kube.faults += [
        Fault("POST", "jobs", 500, after=True),
        Fault("POST", "jobs", 429),
        Fault("POST", "jobs", 503),
    ]
    backend.submit(jobs)
    made = {name: job["metadata"]["uid"] for name, job in kube.things["jobs"].items()}
    kube.faults.append(Fault("POST", "jobs", 0, after=True))
    with pytest.raises(Unreachable):
        backend.submit([a_job(8)])
    assert set(backend.find([*tokens, a_job(8).token])) == {*tokens, a_job(8).token}
    backend.submit([a_job(8)])  # creates nothing
    assert {n: j["metadata"]["uid"] for n, j in kube.things["jobs"].items()}.items() >= made.items()
    kube.faults += [Fault("GET", "jobs", 500, times=3), Fault("GET", "pods", 429)]
    assert len(_open(kube, tmp_path).find(tokens)) == 3
    kube.faults.append(Fault("GET", "jobs", 500, times=99))
    with pytest.raises(Unreachable, match="the API server: 500"):
        backend.find(tokens)
    kube.recover()
    kube.page = 2
    assert len(_open(kube, tmp_path).find(tokens)) == 3
    kube.forgets = 1
    assert len(_open(kube, tmp_path).find(tokens)) == 3
    assert kube.forgets == 0
    backend.cancel([*tokens, a_job(8).token])


def test_a_retry_waits_as_long_as_the_server_asks(
    kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kube.config))
    waits: list[float] = []
    for _ in range(8):
        kube.faults.append(Fault("GET", "jobs", 429, times=3, retry="3"))
        assert not [*Cluster(sleep=waits.append).items(JOBS)]
    assert len(waits) == 24 and all(3 <= wait <= 6 for wait in waits)


def test_jobs_of_an_earlier_sweep_in_the_folder_are_not_ours(kube: Any, tmp_path: Path) -> None:
    judge_earlier_sweep(partial(_open, kube), tmp_path / "sweep", "job")


def test_a_job_taken_back_by_its_queue_is_preempted(kube: Any, tmp_path: Path) -> None:
    kube.open_queues.clear()
    backend = _open(kube, tmp_path, queue="team")
    first = a_job(1)
    backend.submit([first])
    until(lambda: kube.things["workloads"])
    backend = _open(kube, tmp_path, queue="team")
    assert "insufficient quota for cpu" in str(backend.poll([first.token])[first.token].reason)
    kube.open_queues.add("team")
    until_state(backend, first.token, JobState.RUNNING)
    (name,) = backend.find([first.token]).values()
    kube.take_back(name)
    ended = until_state(backend, first.token, JobState.ENDED)
    assert (ended.preempted, ended.reason) == (True, "suspended by its queue")
    backend.submit([a_job(1, attempt=2)])
    until(lambda: name not in kube.things["jobs"])
    backend.cancel([a_job(1, attempt=2).token])


def test_a_pod_on_a_silent_node_is_lost(kube: Any, tmp_path: Path) -> None:
    kube.lost_seconds = 90
    backend = _open(kube, tmp_path)
    backend.submit([a_job(1)])
    until_state(backend, a_job(1).token, JobState.RUNNING)
    (name,) = backend.find([a_job(1).token]).values()
    (pod,) = kube.pods_of(name)
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    node = kube.lose(name, forgotten=False, dead=False)
    ended = until_state(backend, a_job(1).token, JobState.ENDED)
    assert (ended.preempted, ended.reason) == (True, "its node does not answer")
    node.alive = True
    backend.cancel([a_job(1).token])


def test_objects_contain_no_secrets(kube: Any, tmp_path: Path) -> None:
    kube.add("secrets", "keys", values={"a": CANARY})
    backend = _open(kube, tmp_path, secrets={"A": "keys/a"})
    job = a_job(1, "sh", "-c", 'test -n "$A" || exit 9')
    backend.preflight([{}])
    backend.submit([job])
    assert until_state(backend, job.token, JobState.ENDED).code == 0
    shown = json.dumps([kube.things[kind] for kind in ("jobs", "pods", "events")])
    assert "keys" in shown
    assert CANARY not in shown


def test_conditions_without_a_message() -> None:
    about: Metadata = {
        "name": "sweeper-a",
        "uid": "1",
        "labels": {},
        "creationTimestamp": "2026-01-31T12:01:03Z",
    }
    disrupted: Condition = {"type": "DisruptionTarget", "status": "True"}
    unscheduled: Condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    job: Job = {"metadata": about, "spec": {}, "status": {"conditions": []}}
    gone: Pod = {"metadata": about, "status": {"phase": "Failed", "conditions": [disrupted]}}
    waits: Pod = {"metadata": about, "status": {"phase": "Pending", "conditions": [unscheduled]}}
    assert status_of(job, [gone], 0.0) == JobStatus(JobState.ENDED, preempted=True)
    status = status_of(job, [waits], 0.0)
    assert (status.state, status.reason) == (JobState.PENDING, "Unschedulable")
