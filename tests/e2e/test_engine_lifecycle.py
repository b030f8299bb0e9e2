"""The engine's process: one per home, found while it lives. Its checkpoints outlive it."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from sweeper.engine import lifecycle
from sweeper.errors import EngineError
from sweeper.launcher.preflight import ensure_engine

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@contextmanager
def serving(home, *more):
    """Start an engine. End it if it still runs at the end."""
    with subprocess.Popen(
        [*lifecycle.command(str(home)), *more], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.stderr.close()


def test_it_is_found_and_stopped(tmp_path):
    with serving(tmp_path) as process:
        info = lifecycle.wait(str(tmp_path), timeout=60)
        assert info.pid == process.pid
        assert lifecycle.wait(str(tmp_path), timeout=60) == info
        assert lifecycle.stop(str(tmp_path)) is True
        assert process.wait(120) == 0
    assert lifecycle.find(str(tmp_path)) is None
    assert lifecycle.stop(str(tmp_path)) is False
    assert not os.path.exists(lifecycle.record_path(str(tmp_path)))
    with open(lifecycle.log_path(str(tmp_path))) as file:
        assert "engine stopped" in file.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_in_order(tmp_path, number):
    with serving(tmp_path) as process:
        lifecycle.wait(str(tmp_path), timeout=60)
        process.send_signal(number)
        assert process.wait(120) == 0
    assert not os.path.exists(lifecycle.record_path(str(tmp_path)))


def test_a_terminal_that_goes_takes_no_engine_with_it(tmp_path):
    with serving(tmp_path) as process:
        info = lifecycle.wait(str(tmp_path), timeout=60)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert process.poll() is None
        assert lifecycle.wait(str(tmp_path), timeout=60) == info
        process.terminate()
        assert process.wait(120) == 0


def test_a_home_has_one_engine(tmp_path):
    with serving(tmp_path) as first:
        info = lifecycle.wait(str(tmp_path), timeout=60)
        with serving(tmp_path) as second:
            _, errors = second.communicate(timeout=120)
            assert second.returncode == 6
            assert b"another engine serves the folder" in errors and b"Traceback" not in errors
        assert lifecycle.wait(str(tmp_path), timeout=60) == info
        assert first.poll() is None


def test_two_homes_have_two_engines_on_one_tmux_server(tmp_path, tmux_socket, monkeypatch):
    """Their sessions differ although they share the server. Each home stops its own."""
    infos = []
    for name in ("one", "two"):
        monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / name))
        infos.append(ensure_engine("tmux"))
    assert ensure_engine("tmux") == infos[1]
    assert [info.home for info in infos] == [str(tmp_path / name) for name in ("one", "two")]
    for info in infos:
        assert lifecycle.stop(info.home) is True


def test_a_killed_engine_is_replaced_by_the_next(tmp_path):
    with serving(tmp_path) as process:
        lifecycle.wait(str(tmp_path), timeout=60)
        process.kill()
        process.wait(120)
    assert os.path.exists(lifecycle.record_path(str(tmp_path)))
    assert lifecycle.find(str(tmp_path)) is None
    with serving(tmp_path) as process:
        assert lifecycle.wait(str(tmp_path), timeout=60).pid == process.pid


def test_why_it_does_not_start_is_one_line(tmp_path, engine):
    taken = engine.url.rpartition(":")[2]
    run = subprocess.run(
        lifecycle.command(str(tmp_path), int(taken)), capture_output=True, text=True, check=False
    )
    assert run.returncode == 6
    last = run.stderr.splitlines()[-1]
    assert last == f"sweeper: cannot listen on 127.0.0.1 port {taken}: Address already in use"
    with pytest.raises(EngineError, match="Address already in use"):
        lifecycle.wait(str(tmp_path), timeout=0)


def verb(home, name, *more):
    command = [sys.executable, "-P", "-m", "sweeper.engine", name, "--home", str(home), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_verbs(tmp_path):
    assert verb(tmp_path, "status").returncode == 5
    nothing = verb(tmp_path, "env")
    assert (nothing.returncode, nothing.stdout) == (5, "") and "engine start" in nothing.stderr
    assert verb(tmp_path, "stop").stdout == "no engine is running\n"
    with serving(tmp_path) as process:
        info = lifecycle.wait(str(tmp_path), timeout=60)
        assert verb(tmp_path, "status").stdout.startswith(f"{info.url}, pid {process.pid}, since ")
        variables = dict(
            line.split()[1].split("=", 1) for line in verb(tmp_path, "env").stdout.splitlines()
        )
        headers = {"X-API-Key": variables["TINKER_API_KEY"], "Content-Type": "application/json"}
        address = variables["TINKER_BASE_URL"].removeprefix("http://")
        with contextlib.closing(http.client.HTTPConnection(address)) as connection:
            for _ in range(12):
                connection.request("POST", "/api/v1/create_session", b"{}", headers)
                assert connection.getresponse().read()
        *listed, last = verb(tmp_path, "status").stdout.splitlines()
        assert len(listed) == 12, listed
        assert last == "  and 2 older sessions: `--all` lists them"
        assert len(verb(tmp_path, "status", "--all").stdout.splitlines()) == 14
        assert verb(tmp_path, "stop").stdout == "stopped\n"


def test_one_that_is_started_stays(tmp_path):
    started = verb(tmp_path, "start", "--alias", "some/name=tiny/qwen3")
    info = lifecycle.wait(str(tmp_path), timeout=60)
    assert started.stdout.startswith(f"{info.url}, pid {info.pid}, since ")
    assert "some/name" in info.models and info.aliases["some/name"] == "tiny/qwen3"
    again = verb(tmp_path, "start")
    assert (again.returncode, again.stdout) == (6, "")
    assert again.stderr.startswith(f"sweeper: an engine is already running at {info.url}")
    assert verb(tmp_path, "stop").stdout == "stopped\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-sessions", "-1"], "max_sessions is -1"),
        (["--host", "192.0.2.1"], "needs a token"),
        (["--model", "mine=/nowhere"], "the model mine from /nowhere"),
        (["--alias", "a=b"], "alias a: there is no model 'b'"),
    ],
)
def test_why_none_was_started_is_one_line(tmp_path, flags, message, monkeypatch):
    monkeypatch.delenv(lifecycle.TOKEN, raising=False)
    failed = verb(tmp_path, "start", *flags)
    assert failed.returncode == 6
    assert message in failed.stderr and failed.stderr.count("\n") == 1
    assert lifecycle.find(str(tmp_path)) is None


def client(exports, code, *arguments):
    """Run SDK calls in another process with these shell exports. Return the JSON that it prints."""
    prelude = """
import json, sys, tinker
service = tinker.ServiceClient()
def data(i):
    tokens = [(7 * i + j) % 256 for j in range(10)]
    targets = tinker.TensorData(data=tokens[1:], dtype="int64", shape=[9])
    return [tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]),
                         loss_fn_inputs={"target_tokens": targets})]
def step(training, i):
    passed = training.forward_backward(data(i), "cross_entropy")
    stepped = training.optim_step(tinker.AdamParams(learning_rate=1e-2))
    return passed.result().metrics["loss:sum"], stepped.result().metrics
"""
    # Skip Python's shutdown, which sometimes aborts because of the SDK's threads.
    leave = "import os; sys.stdout.flush(); os._exit(0)\n"
    run = subprocess.run(
        [
            "sh",
            "-c",
            exports + 'exec "$0" "$@"',
            sys.executable,
            "-c",
            prelude + code + leave,
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_checkpoints_outlive_the_engine(tmp_path):
    with serving(tmp_path) as process:
        lifecycle.wait(str(tmp_path), timeout=60)
        straight, path = client(
            verb(tmp_path, "env").stdout,
            """
training = service.create_lora_training_client("tiny/qwen3", rank=4, seed=0).result()
first = [step(training, i) for i in range(3)]
path = training.save_state("three").result().path
print(json.dumps([[step(training, i) for i in range(3, 6)], path]))
""",
        )
        process.kill()
        process.wait(120)
    with serving(tmp_path):
        lifecycle.wait(str(tmp_path), timeout=60)
        resumed, run = client(
            verb(tmp_path, "env").stdout,
            """
training = service.create_training_client_from_state_with_optimizer(sys.argv[1]).result()
rest = tinker.RestClient()
run = rest.get_training_run_by_tinker_path(sys.argv[1]).result()
print(json.dumps([[step(training, i) for i in range(3, 6)], run.last_checkpoint.tinker_path]))
""",
            path,
        )
        assert resumed == straight
        assert run == path
