"""The engine's requests without HTTP: exactness, isolation, bounded memory."""

import asyncio
import concurrent.futures
import json
import math
import re
import time

import httpx
import numpy as np
import orjson
import pytest
from tinker.lib._pydantic_conv import deserialize_json_response
from tinker.proto import tinker_public_pb2 as pb
from tinker.types import OptimStepResponse

from sweeper.engine import app, listing, operations, wire
from sweeper.engine.app import REFUSED
from sweeper.engine.checkpoints import Vault, parse
from sweeper.engine.errors import RequestError, Unknown
from sweeper.engine.service import Service
from sweeper.engine.state import SAMPLERS, SAMPLERS_IN_MEMORY
from sweeper.testing import FakeClock

DONE = 10


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def service(models, tmp_path, clock):
    vault = Vault(str(tmp_path / "checkpoints"))
    made = Service(models, vault, str(tmp_path / "spill"), clock=clock)
    yield made
    made.scheduler.stop(DONE)


class Client:
    """A client that numbers its requests as the SDK does."""

    def __init__(self, service, **load):
        self.service, self.sequence = service, 0
        self.session = service.create_session({})["session_id"]
        self.samplers = 0
        body = {"session_id": self.session, "model_seq_id": 0}
        if load:
            answer = service.load_weights({**body, **load})
        else:
            lora = {"rank": 4, "seed": 1}
            answer = service.create_model({**body, "base_model": "tiny/qwen3", "lora_config": lora})
        self.model, self.created = answer["model_id"], self.result(answer)

    def result(self, answer):
        body = self.service.promises.get(answer["request_id"]).result(DONE).body
        self.service.promises.fetched(answer["request_id"])
        return body

    def body(self, **more):
        self.sequence += 1
        return {"model_id": self.model, "seq_id": self.sequence, **more}

    def raw(self, tokens, *, only=False, loss="cross_entropy"):
        body = self.body()
        message = wire.pb.ForwardBackwardRequest(
            model_id=self.model, seq_id=body["seq_id"], loss_fn=loss, forward_only=only
        )
        for row in tokens:
            datum = message.data.add()
            ids = np.array(row[:-1], np.int32)
            datum.model_input.add().encoded_text.tokens = ids.tobytes()
            targets = datum.loss_fn_inputs["target_tokens"]
            targets.dtype = wire.pb.DTYPE_INT64
            targets.dense = np.array(row[1:], np.int64).tobytes()
        return message.SerializeToString()

    def forward_backward(self, tokens, **more):
        body = self.result(self.service.forward_backward(self.raw(tokens, **more)))
        if isinstance(body, dict):
            raise RequestError(body["error"])
        return wire.pb.ForwardBackwardOutput.FromString(body)

    def train(self, seed, steps=1):
        """Train on random tokens; return the bytes of the logprobs of each step."""
        rng, out = np.random.default_rng(seed), []
        for _ in range(steps):
            tokens = [rng.integers(0, 256, n).tolist() for n in rng.integers(4, 12, 5)]
            out.append(self.forward_backward(tokens).loss_fn_outputs[0].fields["logprobs"].data)
            self.result(self.service.optim_step(self.body(adam_params={"learning_rate": 1e-2})))
        return out

    def snapshot(self):
        self.samplers += 1
        body = self.body(sampling_session_seq_id=self.samplers)
        return self.result(self.service.save_weights_for_sampler(body))["sampling_session_id"]

    def sample(self, sampler, number=0, **params):
        body = {
            "sampling_session_id": sampler,
            "seq_id": number,
            "num_samples": 2,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 6, "seed": 3, **params},
        }
        return self.result(self.service.sample(body))

    def save(self, name, **more):
        return self.result(self.service.save_weights(self.body(path=name, **more)))["path"]


def test_equal_requests_give_equal_bits_whoever_else_trains(service):
    alone = Client(service).train(0, steps=4)
    client, others = Client(service), [Client(service) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        busy = [pool.submit(other.train, 7 + n, 6) for n, other in enumerate(others)]
        assert client.train(0, steps=4) == alone
        assert len({tuple(future.result(DONE)) for future in busy}) == 3


def test_a_resumed_run_continues_bit_for_bit(service):
    straight = Client(service)
    first, second = straight.train(0, steps=3), straight.train(1, steps=3)
    stopped = Client(service)
    assert stopped.train(0, steps=3) == first
    path = stopped.save("at3")
    assert Client(service, path=path, optimizer=True).train(1, steps=3) == second
    # without the optimizer's moments it starts from the same weights and then differs
    fresh = Client(service, path=path, optimizer=False).train(1, steps=3)
    assert fresh[0] == second[0] and fresh[1:] != second[1:]
    stopped.train(5)
    stopped.result(stopped.service.load_weights(stopped.body(path=path, optimizer=True)))
    assert stopped.train(1, steps=3) == second


def detail_of(answer):
    """Return a sampled answer without the number of cached prompt tokens."""
    message = pb.SampleResponse.FromString(answer)
    message.ClearField("prompt_cache_hit_tokens")
    return message.SerializeToString()


def test_a_snapshot_never_changes_and_never_changes_training(service):
    quiet, sampled = Client(service), Client(service)
    before = sampled.snapshot()
    answer = detail_of(sampled.sample(before))
    quiet.snapshot()
    assert quiet.train(0, steps=2) == sampled.train(0, steps=2)
    assert detail_of(sampled.sample(before, 1)) == answer
    after = sampled.snapshot()
    assert detail_of(sampled.sample(after)) != answer
    assert quiet.train(1) == sampled.train(1)


def test_gradients_add_up_until_the_step(service):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 256, 9).tolist() for _ in range(4)]
    at_once, in_two, only = Client(service), Client(service), Client(service)
    step = {"adam_params": {"learning_rate": 1e-2}}
    at_once.forward_backward(rows)
    in_two.forward_backward(rows[:2])
    in_two.forward_backward(rows[2:])
    only.forward_backward(rows)
    only.forward_backward(rows, only=True)  # a forward pass adds nothing
    norms = [
        c.result(service.optim_step(c.body(**step)))["metrics"]["unclipped_grad_l2:mean"]
        for c in (at_once, in_two, only)
    ]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5) and norms[2] == norms[0] > 0
    # the gradients are used up
    again = at_once.result(service.optim_step(at_once.body(**step)))
    assert again["metrics"]["unclipped_grad_l2:mean"] == 0


def test_a_request_sent_again_is_not_done_again(service):
    client = Client(service)
    raw = client.raw([[1, 2, 3]])
    first = service.forward_backward(raw)
    assert service.forward_backward(raw) == first
    body = client.body(adam_params={})
    once = client.result(service.optim_step(body))
    assert client.result(service.optim_step(body)) == once
    single = Client(service)
    single.forward_backward([[1, 2, 3]])
    expected = single.result(service.optim_step(single.body(adam_params={})))
    assert once == expected


@pytest.mark.parametrize(
    ("request_of", "message"),
    [
        (lambda c: c.service.forward_backward(c.raw([[1, 999]])), "outside the vocabulary"),
        (lambda c: c.service.forward_backward(c.raw([])), "data is empty"),
        (lambda c: c.service.forward_backward(c.raw([[1, 2]], loss="gspo")), "not supported"),
        (lambda c: c.service.optim_step(c.body(optimizer_params={})), "only AdamW"),
        (lambda c: c.service.optim_step(c.body(adam_params={"eps": -1})), "eps is -1"),
        (lambda c: c.service.save_weights(c.body(path="a/b")), "not a checkpoint's path"),
        (lambda c: c.service.save_weights(c.body(path="a", ttl_seconds=60)), "from 3600 to"),
        (lambda c: c.service.load_weights(c.body(path="tinker://x/weights/y")), "no checkpoint"),
    ],
)
def test_a_bad_request_fails_in_its_turn_and_the_next_goes_on(service, request_of, message):
    client = Client(service)
    assert message in client.result(request_of(client))["error"] and client.train(0)


JSON, PROTOBUF = KINDS = "application/json", "application/x-protobuf"
NOT_THERE = "this engine has no {} /api/v1/{}"


def call(service, method, address, body, kind):
    """Return the application's answer."""

    async def send():
        transport = httpx.ASGITransport(app.build(service, {}))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            headers = {"content-type": kind}
            return await http.request(method, f"/api/v1/{address}", content=body, headers=headers)

    return asyncio.run(send())


def reply(*request):
    """Return the status and the detail of the application's answer."""
    answer = call(*request)
    return answer.status_code, answer.json()["detail"]


NO_PROJECTS = "there are no projects on this engine to copy weights to"
LARGE = {"x": "y" * app.JSON_BYTES}


@pytest.mark.parametrize(
    ("method", "address", "kind", "spoilt", "status", "detail"),
    [
        *(("POST", "save_weights_elsewhere", kind, None, 404, NOT_THERE) for kind in KINDS),
        *(("PUT", "optim_step", kind, None, 404, NOT_THERE) for kind in KINDS),
        *(("POST", "sample", kind, None, 404, NOT_THERE) for kind in KINDS),
        *(("POST", "copy_weights", kind, None, 400, NO_PROJECTS) for kind in KINDS),
        ("POST", "optim_step", PROTOBUF, None, 400, "/api/v1/optim_step needs a JSON body"),
        ("POST", "save_weights", PROTOBUF, None, 400, "/api/v1/save_weights needs a JSON body"),
        ("POST", "asample", PROTOBUF, None, 400, "/api/v1/asample needs a JSON body"),
        ("POST", "optim_step", JSON, b'{"a": ', 400, "the body is not JSON: "),
        ("POST", "optim_step", JSON, b"{", 400, "the body is not JSON: "),
        ("POST", "forward_backward", JSON, None, 400, "forward_backward needs protobuf"),
        ("POST", "forward_backward", PROTOBUF, b"\xff", 400, "not a valid ForwardBackwardRequest"),
        ("POST", "asample", JSON, None, 400, "sampling needs a sampling session"),
        ("POST", "optim_step", JSON, LARGE, 413, ""),
        ("POST", "nowhere", JSON, LARGE, 404, ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refused_request_does_not_block_the_next(
    service, method, address, kind, spoilt, status, detail
):
    """The SDK counts the request. If it got no turn, all later ones would wait."""
    client = Client(service)
    more = spoilt if isinstance(spoilt, dict) else {}
    body = json.dumps(client.body(**more)).encode() if kind == JSON else client.raw([[1, 2, 3]])
    if isinstance(spoilt, bytes):  # `spoilt` is added at the end of the body
        body = body.removesuffix(b"}") + (b"," if kind == JSON else b"") + spoilt
    answer = reply(service, method, address, body, kind)
    assert answer[0] == status and answer[1].startswith(detail.format(method, address)), answer
    assert client.train(0)


def test_numbers_that_are_not_finite_reach_the_sdk_as_numbers(service, monkeypatch):
    """The step is a stand-in, since no real one has all of them at once."""
    stepped = {"nan": math.nan, "up": math.inf, "down": -math.inf, "loss": 0.5}
    monkeypatch.setattr(operations, "step", lambda *_: stepped)
    client = Client(service)
    body = client.body(adam_params={"learning_rate": 0.1})
    promised = call(service, "POST", "optim_step", json.dumps(body).encode(), JSON).json()
    answer = call(service, "POST", "retrieve_future", json.dumps(promised).encode(), JSON)
    read = orjson.loads(answer.content)  # as the SDK parses an answer
    metrics = deserialize_json_response(read, OptimStepResponse).metrics
    assert math.isnan(metrics.pop("nan"))
    assert metrics == {"up": math.inf, "down": -math.inf, "loss": 0.5}


def test_unsupported_calls_are_answered_with_a_reason(service):
    """Also the calls of SDKs other than the one installed here."""
    holes = {"session": "s", "run": "r", "checkpoint:path": "weights/c"}

    async def send():
        transport = httpx.ASGITransport(app.build(service, {}))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            for method, address, message in REFUSED:
                path = re.sub(r"\{(.*?)\}", lambda hole: holes[hole[1]], address)
                answer = await http.request(method, f"/api/v1/{path}")
                outcome = (answer.status_code, answer.json()["detail"])
                assert outcome == (400, message), address

    asyncio.run(send())
    assert any(address.endswith("/archive") for _, address, _ in REFUSED)


def test_a_pass_that_fails_leaves_the_gradients(service):
    clean, failed = Client(service), Client(service)
    for client in (clean, failed):
        client.forward_backward([[1, 2, 3]])
    with pytest.raises(RequestError):
        failed.forward_backward([[1, 2, 3], [1, 999]])
    norms = [c.result(service.optim_step(c.body(adam_params={}))) for c in (clean, failed)]
    assert norms[0] == norms[1]


def test_unknown_models_and_sessions_are_named(service):
    session = {"session_id": service.create_session({})["session_id"], "model_seq_id": 0}
    with pytest.raises(Unknown, match="no base model 'x': use tiny/qwen3"):
        service.create_model({**session, "base_model": "x"})
    with pytest.raises(RequestError, match="rank 0"):
        service.create_model({**session, "base_model": "tiny/qwen3", "lora_config": {"rank": 0}})
    with pytest.raises(RequestError, match="nothing to train"):
        flags = dict.fromkeys(("train_attn", "train_mlp", "train_unembed"), False)
        service.create_model({**session, "base_model": "tiny/qwen3", "lora_config": flags})
    for ask in (service.heartbeat, service.create_model):
        with pytest.raises(Unknown, match="no session"):
            ask({"session_id": "gone", "model_seq_id": 0})
    with pytest.raises(Unknown, match="no training client"):
        service.optim_step({"model_id": "gone", "seq_id": 1})


def test_samplers_not_in_use_go_to_disk_and_come_back_the_same(service, tmp_path):
    client = Client(service)
    client.train(0)
    first = client.snapshot()
    before = client.sample(first)
    for _ in range(SAMPLERS_IN_MEMORY + 3):
        client.snapshot()
    files = list((tmp_path / "spill").rglob("*.npz"))
    assert len(files) == 4
    client.train(1)
    assert client.sample(first, 1) == before
    service.finish_session(client.session)
    assert list((tmp_path / "spill").rglob("*.npz")) == []


def test_the_least_recently_used_samplers_are_dropped(service, tmp_path):
    client = Client(service)
    samplers = [client.snapshot() for _ in range(SAMPLERS)]
    client.sample(samplers[0])
    samplers.append(client.snapshot())
    assert client.sample(samplers[0], 1) and client.sample(samplers[-1])
    with pytest.raises(Unknown, match=f"the {SAMPLERS} samplers that it used last"):
        client.sample(samplers[1])
    assert len(list((tmp_path / "spill").rglob("*.npz"))) <= SAMPLERS - SAMPLERS_IN_MEMORY + 2


def test_an_ended_session_leaves_its_checkpoints_only(service):
    client = Client(service)
    path, sampler = client.save("kept"), client.snapshot()
    service.finish_session(client.session)
    with pytest.raises(Unknown):
        client.train(0)
    with pytest.raises(Unknown):
        client.sample(sampler)
    assert service.registry.runs() == [] and Client(service, path=path, optimizer=True).train(0)


def test_a_silent_session_ends(service):
    idle, alive = Client(service), Client(service)
    service.registry.session(idle.session).last_heard -= 100
    assert service.registry.sweep(idle=50) == [idle.session]
    assert alive.train(0)


def test_prompt_scores_equal_those_of_training(service):
    client = Client(service)
    body = {
        "sampling_session_id": client.snapshot(), "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3, 4]}]},
        "sampling_params": {"max_tokens": 1}, "prompt_logprobs": True, "topk_prompt_logprobs": 2,
    }  # fmt: skip
    message = wire.pb.SampleResponse.FromString(client.result(service.sample(body)))
    computed = np.frombuffer(message.prompt_logprobs, np.float32)
    output = client.forward_backward([[1, 2, 3, 4]], only=True).loss_fn_outputs[0]
    trained = np.frombuffer(output.fields["logprobs"].data, np.float32)
    assert np.isnan(computed[0])
    np.testing.assert_allclose(computed[1:], trained, atol=1e-5)
    top = np.frombuffer(message.topk_prompt_logprobs.logprobs, np.float32).reshape(4, 2)
    assert (top[1:, 0] >= top[1:, 1]).all() and (top[1:, 0] >= computed[1:] - 1e-6).all()
    last = {**body, "seq_id": 1, "prompt_logprobs_last_n": 1, "topk_prompt_logprobs": 0}
    message = wire.pb.SampleResponse.FromString(client.result(service.sample(last)))
    received = np.frombuffer(message.prompt_logprobs, np.float32)
    assert np.isnan(received[:3]).all() and received[3] == computed[3]


def test_sampling_stops_where_told(service):
    client = Client(service)
    sampler = client.snapshot()
    free = wire.pb.SampleResponse.FromString(client.sample(sampler, stop=[]))
    tokens = np.frombuffer(free.sequences[0].tokens, np.int32)
    third = int(tokens[2])
    end = int(np.flatnonzero(tokens == third)[0]) + 1
    text = client.service.models.get("tiny/qwen3").decode([third])
    for number, stop in enumerate(([third], text, [text])):
        stopped = wire.pb.SampleResponse.FromString(client.sample(sampler, number + 1, stop=stop))
        assert len(stopped.sequences[0].tokens) == 4 * end
        assert stopped.sequences[0].stop_reason == wire.pb.STOP_REASON_STOP


def test_the_meter_counts_tokens_for_each_session(service):
    first, second = Client(service), Client(service)
    first.forward_backward([[1, 2, 3, 4], [5, 6, 7]])
    first.forward_backward([[1, 2, 3]], only=True)
    first.result(service.optim_step(first.body(adam_params={})))
    drawn = wire.pb.SampleResponse.FromString(first.sample(first.snapshot(), stop=[]))
    service.finish_session(second.session)
    report = service.meter.report()
    newest, oldest = report["sessions"]
    assert (oldest["session_id"], newest["session_id"]) == (first.session, second.session)
    counts = {"trained_tokens": 5, "forward_tokens": 2, "steps": 1, "prompt_tokens": 3}
    assert counts.items() <= oldest.items()
    assert oldest["samples"] == len(drawn.sequences) == 2
    assert oldest["sampled_tokens"] == sum(len(s.tokens) // 4 for s in drawn.sequences) == 12
    assert oldest["ended"] is None and newest["ended"] >= newest["started"]
    assert newest["trained_tokens"] == 0
    assert counts.items() <= report["total"].items()


def test_the_next_turn_is_read_from_where_the_last_one_ended(service):
    """Cached prompts are removed with the weights, or when these go to disk."""
    client, tokens = Client(service), [n % 256 for n in range(400)]

    def turn(sampler, number, length, **more):
        prompt = {"chunks": [{"type": "encoded_text", "tokens": tokens[:length]}]}
        body = {"sampling_session_id": sampler, "seq_id": number, "prompt": prompt, **more}
        body |= {"sampling_params": {"max_tokens": 4, "seed": 1}}
        return detail_of(client.result(service.sample(body)))

    def reused():
        return service.meter.report()["total"]["cached_tokens"]

    first = client.snapshot()
    turn(first, 0, 200)
    assert reused() == 0
    answer = turn(first, 1, 300)
    assert reused() > 100
    client.train(0)
    second, before = client.snapshot(), reused()
    assert turn(second, 0, 300) != answer
    assert reused() == before
    assert turn(second, 1, 300) == turn(second, 2, 300)
    held = service.prefixes.nbytes
    for _ in range(SAMPLERS_IN_MEMORY):
        client.snapshot()
    assert held > 0 and service.prefixes.nbytes == 0  # both samplers' weights have gone to disk
    assert turn(first, 2, 300) == answer
    service.finish_session(client.session)
    assert service.prefixes.nbytes == 0


def test_the_sweep_deletes_expired_checkpoints(service, clock, tmp_path):
    client = Client(service)
    expired, lasting = client.save("gone", ttl_seconds=3600), client.save("kept", ttl_seconds=3600)
    service.vault.expire(parse(expired), -1)
    clock.sleep(60)
    service.sweep()
    client.train(0)  # the deletion has a separate lane: give it time
    deadline = time.monotonic() + DONE
    while list(tmp_path.rglob("gone.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [str(entry.place) for entry in service.vault.entries(client.model)] == [lasting]


def test_a_run_of_an_earlier_engine_without_checkpoints_hides_no_other(
    service, models, clock, tmp_path
):
    """Its folder stays, and a new engine finds nothing else of it."""
    empty, other = Client(service), Client(service)
    path = parse(empty.save("a"))
    other.save("b")
    service.vault.delete(path)
    vault = Vault(str(tmp_path / "checkpoints"))
    restarted = Service(models, vault, str(tmp_path / "again"), clock=clock)
    try:
        listed = listing.training_runs(restarted, {}, {})["training_runs"]
    finally:
        restarted.scheduler.stop(DONE)
    assert [run["training_run_id"] for run in listed] == [other.model]
    assert set(vault.runs()) == {empty.model, other.model}
