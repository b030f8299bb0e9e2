"""Every call of the installed SDK does what the table in docs/engine.md says of it."""

# The SDK's types are wider than what the engine returns: two kinds of futures, documents.
# pyright: reportOperatorIssue=false, reportMissingImports=false, reportArgumentType=false

import gc
import inspect
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sweeper.engine import checkpoints, exports, lora, tiny
from sweeper.engine.lifecycle import client_key
from sweeper.engine.models import Models

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

tinker = pytest.importorskip("tinker")
from tinker import resources, types  # noqa: E402
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType  # noqa: E402

MODEL, WAIT = "tiny/qwen3", 60
DOCS = Path(__file__).parents[2] / "docs" / "engine.md"
CLIENTS = [
    tinker.ServiceClient,
    tinker.TrainingClient,
    tinker.SamplingClient,
    tinker.RestClient,
    tinker.AdminClient,
    *(getattr(resources, name) for name in dir(resources) if name.endswith("Resource")),
]
TABLE = {
    call: row[1].strip()
    for line in DOCS.read_text().splitlines()
    if len(row := line.strip("|").split("|")) == 2
    for call in re.findall(r"`(\w+(?:Client|Resource)\.\w+)`", row[0])
}
TOKENS = types.ModelInput.from_ints([10, 20, 30])
PARAMS = types.SamplingParams(max_tokens=2, seed=1)
ADAM = types.AdamParams(learning_rate=1e-3)
DATA = [
    types.Datum(
        model_input=TOKENS,
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=[20, 30, 40], dtype="int64", shape=[3])
        },
    )
]


def calls():
    """Yield every public call of the clients, except asynchronous variants."""
    for client in CLIENTS:
        names = {name for name, _ in inspect.getmembers(client) if not name.startswith("_")}
        for name in sorted(names):
            if not (name.endswith("_async") and name.removesuffix("_async") in names):
                yield f"{client.__name__}.{name}"


def test_the_table_has_every_call_and_no_other():
    assert set(TABLE) == set(calls())


class Given:
    """Arguments of calls: clients, and checkpoints that are created on demand."""

    def __init__(self, url, key):
        self.address = {"base_url": url, "api_key": key}
        self.service = tinker.ServiceClient(**self.address, display_name="every call")
        self.rest = tinker.RestClient(**self.address)
        self.admin = tinker.AdminClient(**self.address)
        self.training = self.service.create_lora_training_client(MODEL, rank=4).result(WAIT)
        self.sampling = self.service.create_sampling_client(base_model=MODEL).result(WAIT)
        self.session = self.service.holder.get_session_id()
        self.numbers = itertools.count(1000)
        self.state = self.training.save_state("state").result(WAIT).path
        self.weights = self.training.save_weights_for_sampler("weights").result(WAIT).path
        self.external = self.training.save_weights_external("external").result(WAIT).path
        made = self.raw("models", "create", request=self.new_model())
        self.raw_model = made.model_id
        self.answer(made)

    def new_model(self):
        return types.CreateModelRequest(
            session_id=self.session,
            model_seq_id=next(self.numbers),
            base_model=MODEL,
            lora_config=types.LoraConfig(rank=4),
        )

    def ask(self, call):
        """Call a coroutine function with the low-level client and return the result."""
        holder = self.service.holder

        async def send():
            with holder.aclient(ClientConnectionPoolType.TRAIN) as client:
                return await call(client)

        return holder.run_coroutine_threadsafe(send()).result(WAIT)

    def raw(self, resource, name, /, *args, **arguments):
        """Call a resource of the low-level client."""
        return self.ask(lambda client: getattr(getattr(client, resource), name)(*args, **arguments))

    def numbered(self, resource, name, request, **fields):
        """Make a numbered call of a training client."""
        fields |= {"model_id": self.raw_model, "seq_id": next(self.order)}
        made = self.raw(resource, name, request=request(**fields))
        answer = self.answer(made)
        assert "error" not in answer, answer
        return answer

    order = itertools.count(1)

    def answer(self, promise):
        """Return the document of a resolved promise, or None if it is not JSON."""
        request = types.FutureRetrieveRequest(request_id=promise.request_id)
        response = self.ask(
            lambda client: client.futures.with_raw_response.retrieve(request=request)
        )
        kind = response.headers["content-type"]
        return json.loads(response.http_response.content) if "json" in kind else None

    def saved(self, public=False):
        """Save a checkpoint for a call to change or delete. Return its path."""
        path = self.training.save_state(f"s{next(self.numbers)}").result(WAIT).path
        if public:
            self.rest.publish_checkpoint_from_tinker_path(path).result(WAIT)
        return path


def hour():
    """Return the last full hour."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    return now - timedelta(hours=1), now


def raw_forward_backward(given):
    message = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(data=DATA, loss_fn="cross_entropy"),
        model_id=given.raw_model,
        seq_id=next(given.order),
    )
    return given.raw("training", "forward_backward", request=message, forward_only=True)


def custom(given):
    with pytest.raises(ImportError, match="PyTorch"):  # test_engine_sdk.py has a stand-in
        given.training.forward_backward_custom(DATA, lambda *_: None)


def custom_loss(given):
    try:
        import torch  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError):
            given.service.create_custom_loss(lambda logprobs: logprobs, {}).result(WAIT)


GRAPH = types.CreateCustomLossRequest(
    session_id="s", custom_loss_seq_id=0, name="n", inputs=[], graph={"nodes": []}
)
EVENTS = types.TelemetrySendRequest(
    events=[], platform="p", sdk_version="0", session_id="s", process_uuid="u"
)
COPY = types.CopyWeightsRequest(source_path="tinker://a/weights/b", destination_project_id="p")
CONFIG = types.ClientConfigRequest(sdk_version="0")
ARGUMENTS = {
    "ServiceClient.create_lora_training_client": lambda g: (MODEL, 2),
    "ServiceClient.create_sampling_client": lambda g: (g.weights,),
    "ServiceClient.create_training_client_from_state": lambda g: (g.state,),
    "ServiceClient.create_training_client_from_state_with_optimizer": lambda g: (g.state,),
    "TrainingClient.create_sampling_client": lambda g: (g.weights,),
    "TrainingClient.forward": lambda g: (DATA, "cross_entropy"),
    "TrainingClient.forward_backward": lambda g: (DATA, "cross_entropy"),
    "TrainingClient.load_state": lambda g: (g.state,),
    "TrainingClient.load_state_with_optimizer": lambda g: (g.state,),
    "TrainingClient.optim_step": lambda g: (ADAM,),
    "TrainingClient.save_state": lambda g: ("again",),
    "TrainingClient.save_weights_external": lambda g: ("again",),
    "TrainingClient.save_weights_for_sampler": lambda g: ("again",),
    "SamplingClient.compute_logprobs": lambda g: (TOKENS,),
    "SamplingClient.on_queue_state_change": lambda g: (
        tinker.lib.api_future_impl.QueueState.ACTIVE,
        None,
    ),
    "SamplingClient.sample": lambda g: (TOKENS, 1, PARAMS),
    "RestClient.assign_session_project": lambda g: (g.session, "p"),
    "RestClient.copy_weights": lambda g: (g.state, "p"),
    "RestClient.delete_checkpoint": lambda g: g.saved().removeprefix("tinker://").split("/", 1),
    "RestClient.delete_checkpoint_from_tinker_path": lambda g: (g.saved(),),
    "RestClient.export_session_trace": lambda g: (g.session,),
    "RestClient.get_billing_usage": lambda g: hour(),
    "RestClient.get_external_weights_urls": lambda g: (g.external,),
    "RestClient.get_sampler": lambda g: (g.sampling._sampling_session_id,),
    "RestClient.get_session": lambda g: (g.session,),
    "RestClient.get_training_run": lambda g: (g.training.model_id,),
    "RestClient.get_training_run_by_tinker_path": lambda g: (g.state,),
    "RestClient.get_weights_info_by_tinker_path": lambda g: (g.state,),
    "RestClient.list_checkpoints": lambda g: (g.training.model_id,),
    "RestClient.publish_checkpoint_from_tinker_path": lambda g: (g.saved(),),
    "RestClient.search_sessions": lambda g: (types.SessionSearchRequest(),),
    "RestClient.set_checkpoint_ttl_from_tinker_path": lambda g: (g.saved(), 3600),
    "RestClient.unpublish_checkpoint_from_tinker_path": lambda g: (g.saved(public=True),),
    "AdminClient.get_billing_usage": lambda g: hour(),
}
"""Arguments of the clients' methods. Methods that are not listed take none."""
RAW = {
    "AsyncFuturesResource.retrieve": lambda g: types.FutureRetrieveRequest(
        request_id=g.raw("models", "create", request=g.new_model()).request_id
    ),
    "AsyncFuturesResource.retrieve_multi": lambda g: types.FuturesRetrieveRequest(
        target={"sampling_session_id": g.sampling._sampling_session_id}
    ),
    "AsyncModelsResource.copy_weights": lambda g: COPY,
    "AsyncModelsResource.create": lambda g: g.new_model(),
    "AsyncModelsResource.get_info": lambda g: types.GetInfoRequest(model_id=g.raw_model),
    "AsyncSamplingResource.asample": lambda g: types.SampleRequest(
        sampling_session_id=g.sampling._sampling_session_id,
        seq_id=next(g.numbers),
        prompt=TOKENS,
        sampling_params=PARAMS,
    ),
    "AsyncServiceResource.client_config": lambda g: CONFIG,
    "AsyncServiceResource.client_dynamic_config": lambda g: CONFIG,
    "AsyncServiceResource.create_custom_loss": lambda g: GRAPH,
    "AsyncServiceResource.create_sampling_session": lambda g: types.CreateSamplingSessionRequest(
        session_id=g.session, sampling_session_seq_id=next(g.numbers), base_model=MODEL
    ),
    "AsyncServiceResource.create_session": lambda g: types.CreateSessionRequest(
        tags=[], user_metadata=None, sdk_version="0"
    ),
    "AsyncServiceResource.join_sampling_session": lambda g: types.JoinSamplingSessionRequest(
        sampling_session_id=g.sampling._sampling_session_id
    ),
    "AsyncServiceResource.session_heartbeat": lambda g: {"session_id": g.session},
    "AsyncTelemetryResource.send": lambda g: EVENTS,
    "AsyncWeightsResource.get_external_weights_urls": lambda g: {
        "model_id": g.training.model_id,
        "checkpoint_id": "external_weights/external",
    },
    "AsyncWeightsResource.list": lambda g: {"model_id": g.training.model_id},
}
"""Arguments of the low-level client's methods."""
NUMBERED = {
    "AsyncTrainingResource.optim_step": (types.OptimStepRequest, lambda g: {"optim_params": ADAM}),
    "AsyncWeightsResource.load": (
        types.LoadWeightsRequest,
        lambda g: {"path": g.state, "optimizer": True},
    ),
    "AsyncWeightsResource.save": (types.SaveWeightsRequest, lambda g: {"path": "raw"}),
    "AsyncWeightsResource.save_external": (
        types.SaveWeightsExternalRequest,
        lambda g: {"path": "raw"},
    ),
    "AsyncWeightsResource.save_for_sampler": (
        types.SaveWeightsForSamplerRequest,
        lambda g: {"path": "raw"},
    ),
}
"""Methods with numbered requests: the type of the request and its fields."""
SPECIAL = {
    "ServiceClient.close": lambda g: tinker.ServiceClient(**g.address).close("success"),
    "ServiceClient.copy_weights": lambda g: tinker.ServiceClient(
        **g.address, project_id="p"
    ).copy_weights(g.state),
    "ServiceClient.create_custom_loss": custom_loss,
    "ServiceClient.holder": lambda g: g.service.holder,
    "TrainingClient.forward_backward_custom": custom,
    "SamplingClient.create": lambda g: type(g.sampling).create(g.service.holder, base_model=MODEL),
    "SamplingClient.from_sampler_handle": lambda g: (
        type(g.sampling)
        .from_sampler_handle(g.sampling.get_sampler_handle(), api_key=g.address["api_key"])
        .sample(TOKENS, 1, PARAMS)
    ),
    # With a model's name it would ask the hub; runs get a cache with the tokenizer.
    "SamplingClient.get_tokenizer": lambda g: g.training.get_tokenizer(),
    "AsyncFuturesResource.with_raw_response": lambda g: g.answer(raw_forward_backward(g)),
    "AsyncTelemetryResource.with_raw_response": lambda g: g.ask(
        lambda client: client.telemetry.with_raw_response.send(request=EVENTS)
    ),
    "AsyncTrainingResource.forward_backward": raw_forward_backward,
}


def make(given, call):
    """Make a call of the table. Return what it returned."""
    if call in SPECIAL:
        return SPECIAL[call](given)
    client, method = call.split(".")
    if client.startswith("Async"):
        resource = client.removeprefix("Async").removesuffix("Resource").lower()
        if call in NUMBERED:
            request, fields = NUMBERED[call]
            return given.numbered(resource, method, request, **fields(given))
        fields = RAW.get(call, lambda _: {})(given)
        return given.raw(
            resource, method, **fields if isinstance(fields, dict) else {"request": fields}
        )
    client = getattr(given, client.removesuffix("Client").lower())
    return getattr(client, method)(*ARGUMENTS.get(call, lambda _: ())(given))


@pytest.fixture(scope="module")
def given(engine):
    made = Given(engine.url, client_key(engine.home))
    yield made
    made.service.close("success").result(WAIT)
    del made
    gc.collect()  # close the SDK's sockets here, where a ResourceWarning is no error


def result_of(made):
    """Return the result of a call, whether it is a future or not."""
    if isinstance(made, Future) or hasattr(made, "result"):
        return made.result(timeout=WAIT)
    return made


@pytest.mark.parametrize("call", sorted(TABLE))
def test_a_call_does_what_the_documentation_says(call, given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if TABLE[call].startswith("yes"):
            result_of(make(given, call))
            return
        message = TABLE[call].removeprefix("refused: ").partition(" (")[0]
        assert message != TABLE[call]
        with pytest.raises(Exception, match=re.escape(message)) as refused:
            result_of(make(given, call))
        assert not isinstance(refused.value, TimeoutError)
    # The client still works.
    given.training.forward(DATA, "cross_entropy").result(timeout=WAIT)


def test_refusals_within_a_call_have_reasons(given):
    with pytest.raises(tinker.RequestFailedError, match="num_samples must be from 1 to"):
        given.sampling.sample(TOKENS, 0, PARAMS).result(WAIT)
    with pytest.raises(tinker.RequestFailedError, match="prompt_alt_tokens_k is not supported"):
        given.sampling.sample(TOKENS, 1, PARAMS, prompt_alt_tokens_k=1).result(WAIT)
    with pytest.raises(tinker.RequestFailedError, match="weights cannot be encrypted here"):
        given.training.save_weights_external("x", age_encryption_recipients=["age1"]).result(WAIT)
    with pytest.raises(tinker.BadRequestError, match="optimizer 'dimuon' is not supported"):
        given.service.create_training_client_from_state(
            given.state, optimizer=types.DimuonOptimizerConfig()
        ).result(WAIT)
    with pytest.raises(tinker.BadRequestError, match="is already private"):
        given.rest.unpublish_checkpoint_from_tinker_path(given.state).result(WAIT)
    with pytest.raises(tinker.BadRequestError, match="is not an external checkpoint"):
        given.raw(
            "weights",
            "get_external_weights_urls",
            model_id=given.training.model_id,
            checkpoint_id="weights/state",
        )


@pytest.mark.filterwarnings("ignore:RestClient.search_sessions is experimental")
def test_a_session_that_has_ended_is_still_known(given):
    service = tinker.ServiceClient(
        **given.address, display_name="Nightly one", user_metadata={"team": "x"}
    )
    metadata = {"purpose": "kept"}
    training, unsaved = (
        service.create_lora_training_client(MODEL, rank=rank, user_metadata=metadata).result(WAIT)
        for rank in (3, 2)
    )
    training.save_state("s").result(WAIT)
    session = service.holder.get_session_id()
    service.close("errored", "why").result(WAIT)
    for run, rank in ((training, 3), (unsaved, 2)):
        answer = given.rest.get_training_run(run.model_id).result(WAIT)
        assert (answer.user_metadata, answer.lora_rank) == (metadata, rank)
    answer = given.rest.get_session(session).result(WAIT)
    assert training.model_id in answer.training_run_ids
    assert answer.user_metadata == {"team": "x"}
    assert session in given.rest.list_sessions(limit=1000).result(WAIT).sessions

    def searched(**query):
        page = given.rest.search_sessions(types.SessionSearchRequest(**query)).result(WAIT)
        return [session.session_id for session in page.sessions]

    finished = {"type": "client_finished", "reasons": ["errored"]}
    for query in (
        {"session_id": session},
        {"display_name": "ONE nightly"},
        {"user_metadata": {"team": "x"}},
        {"statuses": [finished]},
    ):
        assert searched(**query) == [session], query
    assert given.session in searched(statuses=[{"type": "active"}], limit=200)
    assert session not in searched(statuses=[{"type": "active"}], limit=200)
    # Page by page, each session once.
    request, seen = types.SessionSearchRequest(limit=1), []
    while True:
        page = given.rest.search_sessions(request).result(WAIT)
        seen += [session.session_id for session in page.sessions]
        if page.next_cursor is None:
            break
        request = request.model_copy(update={"cursor": page.next_cursor})
    assert len(seen) == len(set(seen)) and {session, given.session} <= set(seen)


def tinker_says(given, *arguments, folder="."):
    done = subprocess.run(
        [Path(sys.executable).with_name("tinker"), "-f", "json", *arguments],
        env=os.environ
        | {
            "TINKER_BASE_URL": given.address["base_url"],
            "TINKER_API_KEY": given.address["api_key"],
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=WAIT,
    )
    # The SDK's compiled parts sometimes abort while Python shuts down, after all output.
    assert done.returncode in (0, -signal.SIGABRT), done.stderr
    return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stdout


def test_the_sdks_command_line(given, engine, tmp_path):
    path, run = given.saved(), given.training.model_id
    tinker_says(given, "checkpoint", "publish", path)
    assert tinker_says(given, "checkpoint", "info", path)["public"] is True
    tinker_says(given, "checkpoint", "unpublish", path)
    assert tinker_says(given, "checkpoint", "info", path)["public"] is False
    listed = tinker_says(given, "checkpoint", "list", "--run-id", run)
    assert path in {entry["tinker_path"] for entry in listed["checkpoints"]}
    assert run in {entry["training_run_id"] for entry in tinker_says(given, "run", "list")["runs"]}
    assert tinker_says(given, "run", "info", run)["training_run_id"] == run
    tinker_says(given, "checkpoint", "download", path, folder=tmp_path)
    (folder,) = tmp_path.iterdir()
    assert sorted(os.listdir(folder)) == [exports.CONFIG, exports.WEIGHTS]
    assert_is_the_adapter(folder, checkpoints.Vault(f"{engine.home}/engine/checkpoints"), path)
    tinker_says(given, "checkpoint", "delete", path, "--yes")
    left = given.rest.list_checkpoints(run).result(WAIT).checkpoints
    assert path not in {entry.tinker_path for entry in left}


def assert_is_the_adapter(folder, vault, path):
    """Assert that PEFT's files contain the engine's adapter: W + alpha / r B A for each map."""
    from safetensors.numpy import load_file

    checkpoint = vault.load(checkpoints.parse(path))
    config = json.loads((folder / exports.CONFIG).read_text())
    assert (config["r"], config["lora_alpha"] / config["r"]) == (4, checkpoint.config.scale)
    arrays = load_file(folder / exports.WEIGHTS)
    weights = tiny.weights()
    shape = Models(str(folder)).get(tiny.TINY).shape
    for name in lora.maps(shape):
        a, b = checkpoint.adapter.pop(f"{name}.A"), checkpoint.adapter.pop(f"{name}.B")
        module = exports.module_of(name)
        assert weights[f"{module}.weight"].shape == (b.shape[0], a.shape[1])
        assert module.rpartition(".")[2] in config["target_modules"]
        assert (arrays.pop(f"base_model.model.{module}.lora_A.weight") == a).all()
        assert (arrays.pop(f"base_model.model.{module}.lora_B.weight") == b).all()
    assert not arrays and not checkpoint.adapter
