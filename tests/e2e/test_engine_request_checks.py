"""What the engine checks before it handles a request: other users and web pages reach its port."""

import contextlib
import http.client
import json
import os
import stat

import pytest

from sweeper.engine import access_token, lifecycle, wire
from sweeper.engine.app import JSON_BYTES

pytestmark = pytest.mark.e2e
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def ask(engine):
    """Return a function that makes a request and returns the status and the reason of a refusal."""
    address = engine.url.removeprefix("http://")
    credentials = {"X-API-Key": lifecycle.client_key(engine.home)}

    def ask(method, path, body=None, headers=None, whole=False):
        with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            connection.request(method, f"/api/v1/{path}", body, credentials | (headers or {}))
            answer = connection.getresponse()
            document = json.loads(answer.read())
            return answer.status, document if whole else document.get("detail", "")

    return ask


@pytest.fixture
def answer(ask):
    """Return a function that posts a document and returns the response."""

    def answer(path, document):
        status, reply = ask("POST", path, json.dumps(document), JSON, whole=True)
        assert status == 200, reply
        return reply

    return answer


def test_every_request_needs_a_token_that_only_its_user_can_read(engine, ask):
    """All except healthz, also on paths that do not exist."""
    assert stat.S_IMODE(os.stat(access_token.path(engine.home)).st_mode) == 0o600
    for key in ("", "tml-local", lifecycle.client_key(engine.home) + "x"):
        other = {"X-API-Key": key}
        assert ask("GET", "healthz", headers=other) == (200, "")
        checkpoint = "training_runs/a:train:0/checkpoints/weights/b"
        for method, path in (("GET", "meter"), ("DELETE", checkpoint), ("PATCH", "nowhere")):
            status, why = ask(method, path, headers=other)
            assert status == 401 and "`sweeper engine env`" in why
    bearer = {"X-API-Key": "", "Authorization": f"Bearer {lifecycle.client_key(engine.home)}"}
    assert ask("GET", "meter", headers=bearer)[0] == 200


def test_pages_of_a_browser_are_not_answered(ask):
    """Neither a page whose host name resolves to this machine nor one that only sends requests."""
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:9"):
        assert ask("GET", "meter", headers={"Host": host}) == (200, "")
    for host in ("evil.example", "127.0.0.1.evil.example:80", "", "[::2]"):
        status, why = ask("GET", "healthz", headers={"Host": host})
        assert (status, why) == (
            403,
            f"the Host header is {host!r}: this engine only serves its own machine",
        )
    for origin in ("http://evil.example", "null", "http://localhost"):
        assert ask("POST", "create_session", "{}", JSON | {"Origin": origin})[0] == 403
    assert ask("POST", "create_session", "{}", TEXT)[0] == 415
    assert ask("POST", "create_session", "{}")[0] == 415
    assert ask("POST", "create_session", "{}", JSON)[0] == 200


def test_large_and_deep_bodies_are_refused(ask):
    deep = b"[" * 40_000_000
    limit = f"the body has more than {JSON_BYTES:,} bytes"
    assert ask("POST", "create_session", deep, JSON) == (413, limit)
    pieces = iter([deep[:1_000_000]] * 40)  # in chunks, without a length
    assert ask("POST", "create_session", pieces, JSON) == (413, limit)
    protobuf = {"Content-Type": "application/x-protobuf"}
    assert ask("POST", "forward_backward", b"\x0a" + bytes(70_000_000), protobuf)[0] == 413
    for body in (deep[:1_000_000], b'{"a":' * 200_000):
        refused = (400, "the body is nested too deeply")
        assert ask("POST", "create_session", body, JSON) == refused
    status, why = ask("POST", "forward_backward", b"\x0b" * 1_000_000, protobuf)
    assert status == 400 and why
    assert ask("POST", "create_session", "{}", JSON) == (200, "")


def test_a_number_in_a_body_that_is_too_large_is_free_at_once(ask, answer):
    """The SDK numbers rejected requests too, and later requests wait for their number."""
    session = answer("create_session", {})["session_id"]
    made = answer("create_model", {
        "session_id": session, "model_seq_id": 0, "base_model": "tiny/qwen3",
        "lora_config": {"rank": 1},
    })  # fmt: skip
    run = made["model_id"]
    answer("retrieve_future", {"request_id": made["request_id"]})
    head = wire.pb.ForwardBackwardRequest(model_id=run, seq_id=1, loss_fn="cross_entropy")
    protobuf = {"Content-Type": "application/x-protobuf"}
    datum = wire.pb.ForwardBackwardRequest()
    datum.data.add().model_input.add().encoded_text.tokens = bytes(70_000_000)
    large = head.SerializeToString() + datum.SerializeToString()
    assert ask("POST", "forward_backward", large, protobuf)[0] == 413
    words = {"model_id": run, "path": "a", "seq_id": 2, "user_metadata": {"x": "y" * 20_000_000}}
    assert ask("POST", "save_weights", json.dumps(words), JSON)[0] == 413
    old = {"model_id": run, "seq_id": 3, "forward_backward_input": {}}
    status, why = ask("POST", "forward_backward", json.dumps(old), JSON)
    assert status == 400 and "needs protobuf" in why
    step = {"model_id": run, "seq_id": 4, "adam_params": {"learning_rate": 0.1}}
    stepped = answer("retrieve_future", {"request_id": answer("optim_step", step)["request_id"]})
    assert "metrics" in stepped
