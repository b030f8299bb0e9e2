"""What Beaker (a stand-in) refuses, and tests of jobs beyond the contract."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.single_jobs import a_job, judge_earlier_sweep, until, until_state
from support.beaker import Fault

from sweeper.backends import capabilities_of, open_backend
from sweeper.backends.base import Backend, JobState
from sweeper.errors import EnvironmentFailure, Unreachable, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
LITERAL = "$(HOME) ${HOME} $$ $HOME"
CANARY = "tml-canary-5f0c1d2e3b4a"


def _open(beaker: Any, folder: Path, **options: Any) -> Backend:
    return open_backend("beaker", "sweep", str(folder), beaker.options(**options))


READ = {"permission": "WORKSPACE_PERMISSION_READ"}
SMALL = {"shape": {"cpu_count": 8, "memory_bytes": 2**33, "gpu_count": 0}}
ONE = {"clusters": ["lab/cpu"]}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"workspace": "lab/nowhere"}, {}, "workspace lab/nowhere not found"),
    ({"workspace": "01NOWHERE"}, {}, "the workspace 01NOWHERE: it does not exist"),
    ({}, {"archived": True}, "the workspace lab/sweeps is archived"),
    ({}, READ, "you have only read access to the workspace lab/sweeps"),
    ({}, {"denied": {"ListWorkloads"}}, "does not have permission: ListWorkloads"),
    ({}, {"denied": {"GetWorkspace"}}, "the workspace lab/sweeps: .*permission: GetWorkspace"),
    ({"budget": "lab/nothing"}, {}, "the budget lab/nothing: it does not exist"),
    ({"budget": "lab/closed"}, {}, "the budget lab/closed is deprecated"),
    ({}, {"workspace_budget": ""}, "has no budget: set launch.beaker.budget"),
    ({"image": "lab/sweper"}, {}, "the image lab/sweper: it does not exist"),
    ({"image": "lab/half"}, {}, "image lab/half is not committed: its upload was never completed"),
    ({"clusters": ["lab/cpus"]}, {}, "the cluster lab/cpus: it does not exist"),
    ({**ONE, "gpus": 1}, SMALL, "the nodes of lab/cpu have 0 GPUs, but a job asks for 1"),
    ({**ONE, "cpus": 16.0}, SMALL, "have 8 CPUs, but a job asks for 16"),
    ({**ONE, "memory": "16GiB"}, SMALL, "bytes of memory, but a job asks for 17179869184"),
    ({**ONE, "timeout_s": 7200.0}, {"most_seconds": 3600}, "allows jobs of at most 3600 s"),
    ({"hostnames": ["n9.lab.org"]}, {}, "no node n9.lab.org"),
    ({"priority": "urgent"}, {}, "allows priorities up to high, not urgent"),
    ({"datasets": {"/data": "lab/promts"}}, {}, "the dataset lab/promts: it does not exist"),
    (
        {"datasets": {"/data": "lab/half"}},
        {},
        "dataset lab/half is not committed: its upload was never completed",
    ),
    ({"secrets": {"A": CANARY}}, {}, "the secret for A in .* is not in the"),
    ({}, {"silent": True}, "http://127.0.0.1:[0-9]+ does not answer"),
]


@pytest.mark.parametrize(("options", "service", "message"), REFUSED, ids=[t for _, _, t in REFUSED])
def test_preflight_refuses_in_one_line_and_makes_nothing(
    beaker: Any, tmp_path: Path, options: dict[str, Any], service: Mapping[str, Any], message: str
) -> None:
    before = set(beaker.experiments)
    for name, value in service.items():
        setattr(beaker, name, value)
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        _open(beaker, tmp_path, **options).preflight([{}])
    assert "\n" not in str(caught.value)
    assert CANARY not in str(caught.value)
    assert set(beaker.experiments) == before


def test_options_of_single_runs_are_checked(beaker: Any, tmp_path: Path) -> None:
    """Options that the user has no permission to look up are accepted."""
    backend = _open(beaker, tmp_path)
    backend.preflight([{}, {"docker_image": "registry/sweeper:1"}, {"priority": "low"}])
    with pytest.raises(EnvironmentFailure, match="the cluster lab/cpus: it does not exist"):
        backend.preflight([{}, {"clusters": ["lab/cpus"]}])
    beaker.secrets["key"] = CANARY
    beaker.denied = {"GetSecret", "GetBudget", "GetCluster", "GetImage", "GetWorkspacePermissions"}
    options = {**ONE, "secrets": {"A": "key"}, "budget": "lab/everyday"}
    _open(beaker, tmp_path, **options).preflight([{}])


def _settings(beaker: Any, **changes: Any) -> str:
    return json.dumps({**beaker.settings, **changes})


def test_an_unusable_login_is_refused(
    beaker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yml"
    texts = {
        _settings(beaker, user_token=CANARY): "the token has expired or is not valid",
        _settings(beaker, user_token=""): "no login",
        _settings(beaker, rpc_address="127.0.0.1:9"): "does not answer",
        _settings(beaker, default_workspace=""): "no workspace is given",
        _settings(beaker, default_org="nobody", default_workspace="01X"): "organization nobody",
        "{{": "no login",
    }
    monkeypatch.setenv("BEAKER_CONFIG", str(config))
    for text, message in texts.items():
        config.write_text(text)
        with pytest.raises(EnvironmentFailure, match=message) as caught:
            _open(beaker, tmp_path)
        assert "\n" not in str(caught.value)
        assert CANARY not in str(caught.value)
    config.unlink()
    with pytest.raises(EnvironmentFailure, match=r"no login .*BEAKER_TOKEN"):
        _open(beaker, tmp_path)
    with pytest.raises(UsageError, match="no image is given: write"):
        capabilities_of("beaker", {})
    monkeypatch.setitem(sys.modules, "beaker.beaker_pb2", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install .*\[beaker\]"):
        _open(beaker, tmp_path)


def test_an_expired_token_is_a_passing_error(beaker: Any, tmp_path: Path) -> None:
    backend = _open(beaker, tmp_path)
    backend.submit([a_job(1)])
    until_state(backend, a_job(1).token, JobState.RUNNING)
    beaker.faults += [Fault("ListWorkloads", "UNAUTHENTICATED"), Fault("create", 401)]
    with pytest.raises(Unreachable, match="running jobs continue"):
        backend.find([a_job(1).token])
    with pytest.raises(Unreachable, match="running jobs continue"):
        backend.submit([a_job(2)])
    assert backend.poll([a_job(1).token])[a_job(1).token].state is JobState.RUNNING
    backend.cancel([a_job(1).token])


def test_a_full_quota_delays_submissions(beaker: Any, tmp_path: Path) -> None:
    backend, jobs = _open(beaker, tmp_path), [a_job(number) for number in range(3)]
    tokens = [job.token for job in jobs]
    until(lambda: not beaker.going)  # experiments of earlier tests
    beaker.most = 1
    with pytest.raises(Unreachable, match="too many unfinished experiments"):
        backend.submit(jobs)
    (there,) = backend.find(tokens)
    with pytest.raises(Unreachable, match="too many unfinished experiments"):
        backend.submit(jobs)
    beaker.most = None
    backend = _open(beaker, tmp_path)
    backend.submit([job for job in jobs if job.token != there])
    assert set(backend.find(tokens)) == {*tokens}
    backend.cancel(tokens)


def test_a_job_refused_for_good_is_not_retried(beaker: Any, tmp_path: Path) -> None:
    backend = _open(beaker, tmp_path)
    wrong = {"permission": READ["permission"], "denied": {"create"}}
    for name, value in wrong.items():
        setattr(beaker, name, value)
        with pytest.raises(EnvironmentFailure, match="permission to write to lab/sweeps") as caught:
            backend.submit([a_job(1), a_job(2)])
        assert not isinstance(caught.value, Unreachable)
        beaker.recover()
    with pytest.raises(EnvironmentFailure, match="cluster lab/none not found"):
        backend.submit([a_job(1, clusters=["lab/none"])])
    assert backend.find([a_job(1).token, a_job(2).token]) == {}


def test_the_reason_of_a_waiting_job(beaker: Any, tmp_path: Path) -> None:
    backend = _open(beaker, tmp_path)
    jobs = [a_job(1, hostnames=["n9.lab.org"]), a_job(2)]
    tokens = [job.token for job in jobs]
    backend.submit(jobs)

    def why() -> str:  # a new backend: an open one asks only every 10 s
        return str(_open(beaker, tmp_path).poll(tokens)[tokens[0]].reason)

    until(lambda: why() == "no room on 4 nodes")
    status = _open(beaker, tmp_path).poll(tokens)[tokens[0]]
    assert (status.state, status.since is not None) == (JobState.PENDING, True)
    running = until_state(backend, tokens[1], JobState.RUNNING)
    assert running.node == "n0.lab.org"
    backend.cancel(tokens)
    # A cancelled job that waits ends at once.
    ended = until_state(backend, tokens[0], JobState.ENDED)
    assert (ended.reason, ended.preempted) == ("manual: Canceled by someone.", False)
    until_state(backend, tokens[1], JobState.ENDED)


def test_how_jobs_end(beaker: Any, tmp_path: Path) -> None:
    backend = _open(beaker, tmp_path)
    ends: dict[str, tuple[int | None, str | None]] = {
        "exit 7": (7, None),
        "exit 0": (0, None),
        "kill -9 $$": (-9, None),
        f"echo '{LITERAL}'": (0, None),
    }
    jobs = [a_job(number, "sh", "-c", text) for number, text in enumerate(ends)]
    backend.submit(
        [*jobs, a_job(8, "there-is-no-such-program"), a_job(9, docker_image="nowhere/nothing:1")]
    )
    for job, end in zip(jobs, ends.values(), strict=True):
        status = until_state(backend, job.token, JobState.ENDED)
        assert (status.code, status.reason, status.preempted) == (*end, False)
    status = until_state(backend, a_job(8).token, JobState.ENDED)
    assert "failed to start: " in str(status.reason)
    status = until_state(backend, a_job(9).token, JobState.ENDED)
    assert status.reason == "failed to pull image nowhere/nothing:1: not found"
    (printed,) = _open(beaker, tmp_path).logs(jobs[3].token)
    assert printed == LITERAL
    assert list(backend.logs(a_job(9).token)) == []


@pytest.mark.parametrize("preemptible", [True, False])
def test_beaker_does_not_restart_preempted_jobs(
    beaker: Any, tmp_path: Path, preemptible: bool
) -> None:
    """It would by default; the spec turns that off."""
    backend, job = _open(beaker, tmp_path, preemptible=preemptible), a_job(1)
    backend.submit([job])
    until_state(backend, job.token, JobState.RUNNING)
    (experiment,) = backend.find([job.token]).values()
    beaker.preempt(experiment, 0.5)
    ended = until_state(backend, job.token, JobState.ENDED)
    assert (ended.preempted, ended.node) == (True, "n0.lab.org")
    assert ended.reason == "This job was preempted by a job of urgent priority."
    assert len(beaker.experiments[experiment].jobs) == 1


def test_lost_answers_and_a_busy_service(beaker: Any, tmp_path: Path) -> None:
    """Each experiment is created once, even if replies are lost."""
    backend, jobs = _open(beaker, tmp_path), [a_job(number) for number in range(3)]
    tokens = [job.token for job in jobs]
    for status in (500, 0):
        beaker.faults.append(Fault("create", status, after=True))
        with pytest.raises(Unreachable, match="does not answer"):
            _open(beaker, tmp_path).submit([a_job(status)])
    backend = _open(beaker, tmp_path)
    lost = [a_job(500).token, tokens[0]]
    assert set(backend.find([*tokens, lost[0]])) == {*lost}
    before = set(beaker.experiments)
    backend.submit([a_job(500)])  # creates nothing
    assert set(beaker.experiments) == before
    backend.submit(jobs[1:])
    beaker.faults += [Fault("ListWorkloads", "INTERNAL", times=2), Fault("GetNode", "UNAVAILABLE")]
    assert len(_open(beaker, tmp_path).find(tokens)) == 3
    beaker.faults.append(Fault("ListWorkloads", "INTERNAL", times=99))
    with pytest.raises(Unreachable, match="does not answer: the stand-in was told to"):
        backend.find(tokens)
    beaker.recover()
    beaker.page = 2
    assert len(_open(beaker, tmp_path).find([*tokens, lost[0]])) == 4
    _open(beaker, tmp_path).cancel([*tokens, lost[0]])


def test_a_hanging_service_is_given_up(
    beaker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client itself would wait forever."""
    monkeypatch.setattr("sweeper.backends.beaker.client._SECONDS", 0.5)
    backend = _open(beaker, tmp_path)
    beaker.hangs = True
    for _ in range(2):
        with pytest.raises(Unreachable, match="does not answer: Deadline Exceeded"):
            backend.find(["0123456789ab-a1"])
    beaker.hangs = False

    def answers() -> bool:
        with suppress(Unreachable):
            return backend.find(["0123456789ab-a1"]) == {}
        return False

    until(answers)


def test_a_new_connection_leaves_others_open(beaker: Any, tmp_path: Path) -> None:
    backend, job = _open(beaker, tmp_path), a_job(1, "printf", "%s\\n", "one", "two", "three")
    backend.submit([job])
    until_state(backend, job.token, JobState.ENDED)
    lines = backend.logs(job.token)
    assert next(lines) == "one"
    beaker.faults.append(Fault("ListWorkloads", "UNAVAILABLE", times=3))
    with pytest.raises(Unreachable, match="does not answer"):
        backend.find([job.token])
    assert list(lines) == ["two", "three"]


def test_jobs_of_an_earlier_sweep_in_the_folder_are_not_ours(beaker: Any, tmp_path: Path) -> None:
    judge_earlier_sweep(partial(_open, beaker), tmp_path / "sweep", "experiment")


def test_a_sweep_in_another_workspace_is_refused(beaker: Any, tmp_path: Path) -> None:
    backend = _open(beaker, tmp_path)
    backend.submit([a_job(1, "true")])
    (there,) = backend.find([a_job(1).token]).values()
    beaker.experiments[there].message.experiment.workspace_id = "another"
    with pytest.raises(EnvironmentFailure, match="a workspace other than lab/sweeps already has"):
        _open(beaker, tmp_path).submit([a_job(1, "true")])


def test_experiments_and_logs_contain_no_secrets(
    beaker: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")  # include the client's own messages
    beaker.secrets["key"] = CANARY
    backend = _open(beaker, tmp_path, secrets={"A": "key"})
    job = a_job(1, "sh", "-c", 'test -n "$A" || exit 9')
    backend.preflight([{}])
    backend.submit([job])
    assert until_state(backend, job.token, JobState.ENDED).code == 0
    visible = beaker.shown() + caplog.text + "".join(backend.logs(job.token))
    assert '"secret": "key"' in visible
    assert CANARY not in visible
    assert os.environ.get("A") is None
