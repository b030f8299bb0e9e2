"""The unmodified SDK against engines with limits, a token, and other names for their models."""

import contextlib
import gc
import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from harness.real import until

from sweeper.engine import lifecycle
from sweeper.engine.lifecycle import Settings
from sweeper.engine.limits import Limits

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

tinker = pytest.importorskip("tinker")
MODEL, WAIT, SECRET = "tiny/qwen3", 120, "tml-a-secret-of-this-test"
DATA = [
    tinker.Datum(
        model_input=tinker.ModelInput.from_ints([10, 20, 30]),
        loss_fn_inputs={"target_tokens": tinker.TensorData(data=[20, 30, 40], dtype="int64")},
    )
]


@pytest.fixture(autouse=True)
def collected():
    """Collect the sockets that the SDK leaves open."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait long for a slow engine."""
    monkeypatch.setattr(lifecycle, "_ASK_SECONDS", WAIT)


@contextmanager
def serving(home, settings, **environ):
    with subprocess.Popen(
        lifecycle.command(str(home), settings=settings),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environ},
    ) as process:
        try:
            yield lifecycle.wait(str(home), timeout=60)
        finally:
            process.terminate()


@contextmanager
def connected(info, **more):
    key = lifecycle.client_key(info.home)
    client = tinker.ServiceClient(base_url=info.url, api_key=key, **more)
    try:
        yield client
    finally:
        client.close("success").result(timeout=WAIT)


def request(url, method, path, key):
    """Return the status of a request without a body."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=WAIT)
    connection.request(method, f"/api/v1/{path}", headers={"X-API-Key": key})
    with contextlib.closing(connection), connection.getresponse() as answer:
        return answer.status


def train(service, steps=6):
    training = service.create_lora_training_client(MODEL, rank=4, seed=0).result()
    out = []
    for _ in range(steps):
        passed = training.forward_backward(DATA, "cross_entropy")
        stepped = training.optim_step(tinker.AdamParams(learning_rate=1e-2))
        stepped.result(timeout=WAIT)
        out.append(passed.result(timeout=WAIT).metrics["loss:sum"])
    return out, training


def test_a_session_beyond_the_limit_is_paused_and_then_served(tmp_path, monkeypatch):
    from tinker.lib.queue_state_logger import QueueStateLogger

    seen = []
    monkeypatch.setattr(
        QueueStateLogger, "on_queue_state_change", lambda _self, *state: seen.append(state)
    )
    with serving(tmp_path, Settings(limits=Limits(max_sessions=1))) as info:
        with connected(info) as second:
            with connected(info, user_metadata={"sweep": "s"}) as first:
                train(first, 1)
                waiting = second.create_lora_training_client(MODEL, rank=4)
                until(lambda: any(state.value == "paused_rate_limit" for state, _ in seen))
            assert waiting.result(timeout=WAIT).get_info().lora_rank == 4
        report = lifecycle.meter(info)
    assert report["total"]["paused"] == 1
    assert report["sessions"][-1]["user_metadata"] == {"sweep": "s"}
    assert report["sessions"][-1]["trained_tokens"] == 3


def test_samples_beyond_the_limit_arrive_later(tmp_path):
    limits = Limits(max_concurrent_samples=1)
    with serving(tmp_path, Settings(limits=limits)) as info, connected(info) as service:
        sampler = service.create_sampling_client(base_model=MODEL).result()
        prompt = tinker.ModelInput.from_ints([1, 2, 3])
        params = tinker.SamplingParams(max_tokens=400, seed=1, stop=[])
        futures = [sampler.sample(prompt, 8, params) for _ in range(4)]
        drawn = [future.result(timeout=WAIT).sequences[0].tokens for future in futures]
        assert drawn[1:] == drawn[:-1]
        total = lifecycle.meter(info)["total"]
        assert total["refused"] > 0
        assert total["sampled_tokens"] == 4 * 8 * 400


def test_failures_a_rate_and_latency_change_no_result(tmp_path):
    with serving(tmp_path / "a", Settings()) as info, connected(info) as service:
        expected, _ = train(service)
        assert lifecycle.meter(info)["total"]["failed"] == 0
    limits = Limits(fail_rate=0.3, rate_limit=3, latency=0.2, seed=0)
    with serving(tmp_path / "b", Settings(limits=limits)) as info, connected(info) as service:
        result, training = train(service, 6)
        assert result == expected
        before = time.monotonic()
        training.optim_step(tinker.AdamParams()).result(timeout=WAIT)
        assert time.monotonic() - before > 0.15  # the latency allows no faster reply
        total = lifecycle.meter(info)["total"]
        assert total["failed"] > 0 and total["refused"] > 0
        assert total["trained_tokens"] == 6 * 3 and total["steps"] == 7


def test_every_request_needs_a_token_that_was_chosen(tmp_path):
    with serving(tmp_path, Settings(), SWEEPER_ENGINE_TOKEN=SECRET) as info:
        with connected(info) as service:
            train(service, 1)
        for key in ("tml-local", SECRET + "x"):
            for method, path in (("GET", "sessions"), ("POST", "create_session"), ("GET", "meter")):
                assert request(info.url, method, path, key) == 401
        assert lifecycle.meter(info, SECRET + "x") is None
        lines = lifecycle.describe(info, SECRET + "x")
        assert lines == [f"{info.url}, pid {info.pid}, since {info.started}"]
        _, second, third = lifecycle.describe(info)
        assert second.startswith("0 of 1 sessions open; tokens: trained 3")
        assert third.endswith("(ended): tokens: trained 3, 1 steps")
        for path in (lifecycle.log_path(str(tmp_path)), lifecycle.record_path(str(tmp_path))):
            with open(path) as file:
                assert SECRET not in file.read()


ASK = """
import json, sys, tinker
service = tinker.ServiceClient()
out = {}
for name in ("tiny/qwen3", "Qwen/Qwen3-8B"):
    training = service.create_lora_training_client(name, rank=4, seed=0).result()
    sampler = training.save_weights_and_get_sampling_client().result()
    tokenizer = sampler.get_tokenizer()
    base = service.create_sampling_client(base_model=name).result()
    out[name] = [training.get_info().model_data.model_name, sampler.get_base_model(),
                 tokenizer.encode("2+2=4"), tokenizer.decode(base.get_tokenizer().encode("ab")),
                 training.get_tokenizer().encode("2+2=4")]
service.close("success").result()
print(json.dumps(out))
"""


def test_a_model_has_other_names_and_its_tokenizer_is_found_by_them(tmp_path):
    settings = Settings(aliases={"Qwen/Qwen3-8B": MODEL})
    with serving(tmp_path, settings) as info:
        run = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-c", ASK],
            env={**os.environ, **lifecycle.client_environment(info)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    models = json.loads(run.stdout)
    for name, (model, base, tokens, text, own_text) in models.items():
        assert (model, base, text) == (name, name, "ab")
        assert tokens == own_text and len(tokens) == 5
