"""What Modal (a stand-in) refuses, and tests of jobs beyond the contract."""

import gc
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.single_jobs import a_job, judge_earlier_sweep, until, until_state
from support.modal import Fault

from sweeper.backends import backend_type, capabilities_of, open_backend
from sweeper.backends.base import Backend, JobSpec, JobState
from sweeper.common.backoff import Backoff
from sweeper.errors import EnvironmentFailure, Unreachable, UsageError
from sweeper.testing import FakeClock

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
CANARY = "tml-canary-5f0c1d2e3b4a"


def _open(modal: Any, folder: Path, **options: Any) -> Backend:
    return open_backend("modal", "sweep", str(folder), modal.options(**options))


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"image": "sweper"}, {}, "the image sweper: .* sweper: not found"),
    ({"image": "sweeper"}, {"images": set()}, "the image sweeper: .* sweeper: not found"),
    ({"environment": "nowhere"}, {}, "No environment nowhere"),
    ({}, {"denied": {"AppGetOrCreate"}}, "not allowed: AppGetOrCreate"),
    ({}, {"denied": {"SandboxListV2"}}, "not allowed: SandboxListV2"),
    ({}, {"denied": {"ClientHello"}}, "the app sweeper: not allowed: ClientHello"),
    ({}, {"denied": {"ImageGetOrCreate"}}, "the image sweeper: not allowed: ImageGetOrCreate"),
    ({"secrets": {"A": CANARY}}, {}, "for A in .* does not exist, or lacks a"),
    (
        {"secrets": {"A": "keys"}},
        {"secrets": {"keys": {"B": "x"}}},
        "for A in .* does not exist, or lacks a variable",
    ),
    (
        {"secrets": {"A": "k", "B": "k"}},
        {"secrets": {"k": {"A": "x"}}},
        "for A, B in .* does not exist, or lacks",
    ),
    ({"environment": "research"}, {"images": set()}, "the image sweeper: .* not found"),
    ({}, {"silent": True}, "http://127.0.0.1:[0-9]+ does not answer"),
]


@pytest.mark.parametrize(("options", "service", "message"), REFUSED, ids=[t for _, _, t in REFUSED])
def test_preflight_refuses_in_one_line_and_makes_nothing(
    modal: Any, tmp_path: Path, options: dict[str, Any], service: Mapping[str, Any], message: str
) -> None:
    before = set(modal.sandboxes)
    for name, value in service.items():
        setattr(modal, name, value)
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        _open(modal, tmp_path, **options).preflight([{}])
    assert "\n" not in str(caught.value)
    assert CANARY not in str(caught.value)
    assert set(modal.sandboxes) == before


def test_a_secret_that_may_not_be_looked_up_is_accepted(modal: Any, tmp_path: Path) -> None:
    modal.secrets["keys"] = {"A": CANARY}
    modal.denied = {"SecretGetOrCreate"}
    _open(modal, tmp_path, secrets={"A": "keys"}).preflight([{}])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MODAL_TOKEN_SECRET": CANARY}, "the token is missing or not valid: `modal token new`"),
        ({"MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""}, "the token is missing or not valid"),
        ({"MODAL_SERVER_URL": "http://127.0.0.1:9"}, "http://127.0.0.1:9 does not answer"),
        ({"MODAL_SERVER_URL": "ftp://127.0.0.1:9"}, "ftp://127.0.0.1:9 does not answer"),
    ],
)
def test_an_unusable_login_is_refused(
    modal: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    changes: Mapping[str, str],
    message: str,
) -> None:
    if "MODAL_SERVER_URL" in changes:  # no server there: shorten the wait
        monkeypatch.setattr("sweeper.backends.modal.client._SECONDS", 2.0)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        _open(modal, tmp_path)
    gc.collect()  # asyncio logs the exception of a task when the task is collected
    assert "\n" not in str(caught.value)
    assert CANARY not in str(caught.value)
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


def test_a_missing_image_or_package_is_refused(
    modal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no image is given: write"):
        capabilities_of("modal", {})
    (image,) = [check for check in backend_type("modal").checks({}) if check.name == "image"]
    with pytest.raises(LookupError, match=r"no image is given: set launch\.modal\.image"):
        image.run()
    monkeypatch.setitem(sys.modules, "modal", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install .*\[modal\]"):
        _open(modal, tmp_path)


_OPENED = """
import sys
from sweeper.backends import open_backend
from sweeper.errors import EnvironmentFailure
try:
    open_backend("modal", "sweep", sys.argv[1], {"image": "sweeper"})
except EnvironmentFailure as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({}, "token_id = 'unfinished", "modal: its configuration cannot be read: Error when .*"),
        ({"MODAL_LOGLEVEL": "nope"}, "", "modal: its configuration cannot be read: .*NOPE.*"),
        ({"MODAL_SANDBOX_V2": "0"}, "", "modal: its configuration turns off sandbox_v2, .*"),
        ({}, "[default]\nsandbox_v2 = false", "modal: its configuration turns off sandbox_v2, .*"),
    ],
    ids=["a broken file", "no level of logs", "variable", "file"],
)
def test_an_unusable_configuration_is_refused(
    modal: Any, tmp_path: Path, changes: Mapping[str, str], text: str, message: str
) -> None:
    """The client reads its configuration at import, so it runs in its own process."""
    file = tmp_path / "modal.toml"
    file.write_text(text)
    ran = subprocess.run(
        [sys.executable, "-c", _OPENED, str(tmp_path)],
        env={**os.environ, **changes, "MODAL_CONFIG_PATH": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.fullmatch(message + r"\n", ran.stdout), ran.stdout + ran.stderr
    assert not modal.requests


def _left_alone_by(clock: FakeClock, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the backoff of a module use this clock."""
    module = f"sweeper.backends.modal.{module}"
    monkeypatch.setattr(f"{module}.Backoff", partial(Backoff, clock=clock))


def test_a_revoked_token_is_a_passing_error(
    modal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    _left_alone_by(clock, "client", monkeypatch)
    backend = _open(modal, tmp_path)
    backend.submit([a_job(1)])
    modal.faults += [Fault("SandboxListV2", "UNAUTHENTICATED")]
    modal.faults += [Fault("SandboxCreateV2", "UNAUTHENTICATED")]
    with pytest.raises(Unreachable, match="running jobs continue"):
        backend.find([a_job(1).token])
    requests = len(modal.requests)
    with pytest.raises(Unreachable, match="running jobs continue"):
        backend.find([a_job(1).token])
    assert len(modal.requests) == requests  # no request during the backoff

    def submitted() -> bool:
        clock.sleep(15)
        with pytest.raises(Unreachable, match="restart the launcher") as caught:
            backend.submit([a_job(2)])
        assert caught.value.__cause__ is not caught.value
        return modal.faults[1].times == 0

    until(submitted)

    def runs() -> bool:
        clock.sleep(15)
        with suppress(Unreachable):
            return backend.poll([a_job(1).token])[a_job(1).token].state is JobState.RUNNING
        return False

    until(runs)
    assert [fault.times for fault in modal.faults] == [0, 0]
    backend.cancel([a_job(1).token])


def test_no_capacity_delays_submissions(
    modal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _left_alone_by(FakeClock(), "backend", monkeypatch)
    backend, jobs = _open(modal, tmp_path), [a_job(number) for number in range(3)]
    tokens = [job.token for job in jobs]
    _until_quiet(modal)
    modal.most = 1
    with pytest.raises(Unreachable, match="Insufficient capacity"):
        backend.submit(jobs)
    (there,) = backend.find(tokens)
    modal.most = None
    with pytest.raises(Unreachable, match="Insufficient capacity"):
        backend.submit(jobs)  # no request during the backoff
    backend = _open(modal, tmp_path)
    backend.submit([job for job in jobs if job.token != there])
    assert set(backend.find(tokens)) == {*tokens}


def _until_quiet(modal: Any) -> None:
    for identity in modal.going():  # sandboxes of earlier tests
        modal.terminate(identity)
    until(lambda: not modal.going())


def test_a_job_refused_for_good_is_not_retried(modal: Any, tmp_path: Path) -> None:
    backend = _open(modal, tmp_path)
    modal.denied = {"SandboxCreateV2"}
    with pytest.raises(EnvironmentFailure, match="not allowed: SandboxCreateV2") as caught:
        backend.submit([a_job(1), a_job(2)])
    assert not isinstance(caught.value, Unreachable)
    modal.denied, modal.images = set(), set()
    with pytest.raises(EnvironmentFailure, match="sweeper: not found") as caught:
        _open(modal, tmp_path).submit([a_job(1)])  # as if the image was removed after the launch
    assert not isinstance(caught.value, Unreachable)
    modal.images = {"sweeper"}
    with pytest.raises(EnvironmentFailure, match="Unknown region: mars"):
        backend.submit([a_job(1, region=["mars"])])
    with pytest.raises(EnvironmentFailure, match="CPU request is too large"):
        backend.submit([a_job(1, cpus=100.0)])
    assert backend.find([a_job(1).token, a_job(2).token]) == {}


def test_how_jobs_end(modal: Any, tmp_path: Path) -> None:
    """A new launcher sees the same ends."""
    backend = _open(modal, tmp_path)
    ends = {"exit 7": 7, "exit 0": 0, "kill -9 $$": -9, "echo one; echo two; exit 3": 3}
    jobs = [a_job(number, "sh", "-c", text) for number, text in enumerate(ends)]
    backend.submit([*jobs, a_job(8, "there-is-no-such-program"), a_job(9, timeout_s=1.0)])
    for opened in (backend, _open(modal, tmp_path)):
        for job, code in zip(jobs, ends.values(), strict=True):
            status = until_state(opened, job.token, JobState.ENDED)
            assert (status.code, status.reason, status.preempted) == (code, None, False)
        assert until_state(opened, a_job(8).token, JobState.ENDED).code == 127
        status = until_state(opened, a_job(9).token, JobState.ENDED)
        assert (status.reason, status.preempted) == ("timeout", False)
    assert list(_open(modal, tmp_path).logs(jobs[3].token)) == ["one", "two"]
    assert list(backend.logs(a_job(9).token)) == []


@pytest.mark.parametrize(
    ("status", "code", "why", "expected"),
    [
        ("TERMINATED", 137, "", (None, "its machine was taken away", True)),
        ("INTERNAL_FAILURE", 0, "lost\nit", (None, "Modal itself failed: lost it", True)),
        ("MEMORY_MANAGER_EVICTION", 137, "", (None, "its machine ran out of memory", True)),
        ("KERNEL_OOM_KILL", 137, "out of it", (None, "oom", False)),
        ("MEMORY_THRASHING_EVICTION", 137, "", (None, "oom", False)),
        ("INIT_FAILURE", 1, "no such mount", (None, "could not start it: no such mount", False)),
        ("IDLE_TIMEOUT", 0, "", (None, "because it was idle", False)),
        ("FAILURE", 255, "", (255, None, False)),
        ("FAILURE", 143, "", (-15, None, False)),
    ],
)
def test_reasons_of_modal_are_translated(
    modal: Any, tmp_path: Path, status: str, code: int, why: str, expected: Any
) -> None:
    backend, job = _open(modal, tmp_path), a_job(1)
    backend.submit([job])
    modal.terminate(backend.find([job.token])[job.token], status, code, why)
    ended = until_state(backend, job.token, JobState.ENDED)
    assert (ended.code, ended.preempted) == (expected[0], expected[2])
    assert ended.reason == expected[1] or str(expected[1]) in str(ended.reason)


def test_a_sandbox_without_its_worker_is_cancelled_later(modal: Any, tmp_path: Path) -> None:
    backend, job = _open(modal, tmp_path), a_job(1)  # its command is not a worker's
    backend.submit([job])
    assert backend.cancel([job.token]) == [job.token]
    modal.terminate(backend.find([job.token])[job.token])
    until(lambda: _cancelled(backend, job.token))  # the time for a call may be up before the signal


def _as_worker(folder: Path, number: int, does: str = "sleep 60") -> JobSpec:
    """Return a job with the command line of a worker, which ends with folder and token."""
    job = a_job(number)
    argv = ["sh", "-c", f"trap 'exit 5' TERM; {does} & wait $!", "sh", str(folder), job.token]
    return job._replace(argv=argv)


def _cancelled(backend: Backend, token: str) -> bool:
    return not backend.cancel([token])  # its shell may not have started yet


def test_a_sandbox_missing_in_a_late_listing_is_cancelled(modal: Any, tmp_path: Path) -> None:
    job = _as_worker(tmp_path, 1)
    _open(modal, tmp_path).submit([job])
    modal.lags = True
    backend = _open(modal, tmp_path)
    assert backend.poll([job.token])[job.token].state is JobState.RUNNING
    until(lambda: _cancelled(backend, job.token))
    assert until_state(backend, job.token, JobState.ENDED).code == 5
    assert backend.cancel([job.token]) == []


@pytest.mark.parametrize("status", ["FAILED_PRECONDITION", "ABORTED", "NOT_FOUND"])
def test_a_refused_command_does_not_mean_that_the_sandbox_ended(
    modal: Any, tmp_path: Path, status: str
) -> None:
    backend, job = _open(modal, tmp_path), _as_worker(tmp_path, 1)
    backend.submit([job])
    modal.faults.append(Fault("SandboxGetCommandRouterAccess", status))

    def refused() -> bool:
        assert backend.cancel([job.token]) == [job.token]
        return modal.faults[0].times == 0  # the time for a call may be up before the request

    until(refused)
    until(lambda: _cancelled(backend, job.token))
    assert until_state(backend, job.token, JobState.ENDED).code == 5


def test_a_sandbox_without_python_is_not_cancelled(modal: Any, tmp_path: Path) -> None:
    job = _as_worker(tmp_path, 1)
    backend = _open(modal, tmp_path, python="/bin/false")
    backend.submit([job])
    assert backend.cancel([job.token]) == [job.token]
    assert backend.poll([job.token])[job.token].state is JobState.RUNNING


def test_starting_sandboxes_do_not_hold_up_the_others(modal: Any, tmp_path: Path) -> None:
    """Jobs that one call had no time for come first in the next call."""
    modal.starting = True
    backend, jobs = _open(modal, tmp_path), [a_job(number) for number in range(24)]
    backend.submit(jobs)
    tokens = [job.token for job in jobs]
    modal.requests.clear()

    def all_pending() -> bool:
        assert sorted(backend.cancel(tokens) or ()) == sorted(tokens)
        return bool(modal.asked_for_tasks)  # the time for a call may be up before the first request

    until(all_pending)
    assert "SandboxGetTaskIdV2" in modal.requests
    assert "TaskExecStart" not in modal.requests
    first = set(modal.asked_for_tasks)
    assert 0 < len(first) < len(jobs)
    modal.asked_for_tasks.clear()
    until(all_pending)
    assert not first & set(modal.asked_for_tasks)
    _until_quiet(modal)


def test_a_forgotten_sandbox_is_absent(modal: Any, tmp_path: Path) -> None:
    backend, job = _open(modal, tmp_path), a_job(1, "true")
    backend.submit([job])
    (identity,) = backend.find([job.token]).values()
    until(lambda: identity not in modal.going())
    del modal.sandboxes[identity]
    until_state(backend, job.token, JobState.ABSENT)
    assert list(backend.logs(job.token)) == []


def test_lost_answers_and_a_busy_service(modal: Any, tmp_path: Path) -> None:
    """Each sandbox is created once, even if replies are lost."""
    jobs = [a_job(number) for number in range(3)]
    tokens = [job.token for job in jobs]
    modal.faults.append(Fault("SandboxCreateV2", "UNAVAILABLE", after=True))
    _open(modal, tmp_path).submit(jobs[:1])  # the client retries and learns that it exists
    before = len(modal.sandboxes)
    modal.faults.append(Fault("SandboxCreateV2", "UNAVAILABLE", after=True))
    modal.faults.append(Fault("SandboxGetFromNameV2", "UNAVAILABLE", times=9))
    with pytest.raises(Unreachable, match="does not answer"):
        _open(modal, tmp_path).submit(jobs[1:2])
    modal.recover()
    backend = _open(modal, tmp_path)
    assert set(backend.find(tokens)) == {*tokens[:2]}
    backend.submit(jobs[1:2])  # creates nothing
    assert len(modal.sandboxes) == before + 1
    backend.submit(jobs[2:])
    modal.faults.append(Fault("SandboxListV2", "UNAVAILABLE", times=2))
    assert set(_open(modal, tmp_path).find(tokens)) == {*tokens}


def test_a_hanging_service_is_given_up(modal: Any, tmp_path: Path) -> None:
    """The client itself would wait forever."""
    backend = _open(modal, tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sweeper.backends.modal.client._SECONDS", 0.5)
        modal.hangs = True
        for _ in range(2):
            with pytest.raises(Unreachable, match=r"does not answer: no answer in 0\.5 s"):
                backend.find(["0123456789ab-a1"])
        modal.hangs = False

    def answers() -> bool:
        with suppress(Unreachable):
            return backend.find(["0123456789ab-a1"]) == {}
        return False

    until(answers)


def test_many_are_listed_page_by_page(modal: Any, tmp_path: Path) -> None:
    backend, jobs = _open(modal, tmp_path), [a_job(number) for number in range(120)]
    backend.submit(jobs)
    tokens = [job.token for job in jobs]
    other = _open(modal, tmp_path)
    assert len(other.find(tokens)) == len(jobs)
    modal.requests.clear()
    states = {status.state for status in other.poll(tokens).values()}
    assert states == {JobState.RUNNING}
    assert modal.requests.count("SandboxWaitV2") == 0  # the listing has the states of all
    _until_quiet(modal)


def test_jobs_of_an_earlier_sweep_in_the_folder_are_not_ours(modal: Any, tmp_path: Path) -> None:
    def opened(folder: Path) -> Backend:
        backend = _open(modal, folder)
        # These jobs are not workers, so `cancel` cannot signal them.
        backend.cancel = lambda tokens: [  # type: ignore[method-assign]
            modal.terminate(identity) for identity in backend.find(tokens).values()
        ]
        return backend

    judge_earlier_sweep(opened, tmp_path / "sweep", "sandbox")


def test_sandboxes_and_logs_contain_no_secrets(
    modal: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")  # include the client's own messages
    modal.secrets["key"] = {"A": CANARY}
    backend = _open(modal, tmp_path, secrets={"A": "key"})
    job = a_job(1, "sh", "-c", 'test -n "$A" || exit 9')
    backend.preflight([{}])
    backend.submit([job])
    assert until_state(backend, job.token, JobState.ENDED).code == 0
    visible = modal.shown() + caplog.text + "".join(backend.logs(job.token))
    assert "st-key" in visible
    assert CANARY not in visible
    assert os.environ.get("A") is None


def test_a_job_without_a_title_is_accepted(modal: Any, tmp_path: Path) -> None:
    backend, job = _open(modal, tmp_path), a_job(1)._replace(title="")
    backend.submit([job])
    assert set(backend.find([job.token])) == {job.token}


def test_the_location_depends_on_the_app(modal: Any, tmp_path: Path) -> None:
    locations = [_open(modal, tmp_path, **more).location() for more in ({}, {}, {"app": "another"})]
    assert locations[0] == locations[1] != locations[2]
