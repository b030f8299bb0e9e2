"""The unmodified SDK against the engine: the calls that this release answers."""

import asyncio
import gc
import warnings
from typing import get_args

import numpy as np
import pytest
from support import small_torch

from sweeper.engine import losses
from sweeper.engine.lifecycle import client_key
from sweeper.engine.model_aliases import STAND_INS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

tinker = pytest.importorskip("tinker")
MODEL = "tiny/qwen3"
PROMPT = [10, 20, 30]
WAIT = 240


@pytest.fixture(scope="module")
def connect(engine):
    """Yield a function that makes service clients, and close them at the end."""
    made = []

    def connect(**more):
        client = tinker.ServiceClient(base_url=engine.url, api_key=client_key(engine.home), **more)
        made.append(client)
        return client

    yield connect
    for client in made:
        client.close("success").result(timeout=WAIT)
    # Close the SDK's sockets here, where a ResourceWarning is no error.
    made.clear()
    gc.collect()


@pytest.fixture(scope="module")
def service(connect):
    return connect()


@pytest.fixture(scope="module")
def rest(engine):
    return tinker.RestClient(base_url=engine.url, api_key=client_key(engine.home))


@pytest.fixture
def training(service):
    return service.create_lora_training_client(MODEL, rank=8, seed=0).result()


def floats(values):
    return tinker.TensorData(data=list(map(float, values)), dtype="float32", shape=[len(values)])


def datum(tokens, **inputs):
    targets = tinker.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1])
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": targets, **inputs},
    )


TOKENS = [10, 20, 30, 40, 50, 60, 70, 80]
DATA = [datum(TOKENS, weights=floats([1] * 7)), datum(TOKENS[:5], weights=floats([0, 1, 1, 1]))]


def logprobs(training, data=DATA):
    result = training.forward(data, "cross_entropy").result(timeout=WAIT)
    return [np.array(out["logprobs"].data) for out in result.loss_fn_outputs]


def step(training, learning_rate=1e-2, data=DATA, loss="cross_entropy"):
    passed = training.forward_backward(data, loss)
    stepped = training.optim_step(tinker.AdamParams(learning_rate=learning_rate))
    stepped.result(timeout=WAIT)
    return passed.result(timeout=WAIT)


def sample(sampler, n=1, prompt=PROMPT, **params):
    params = tinker.SamplingParams(**{"max_tokens": 8, "seed": 1, **params})
    return sampler.sample(tinker.ModelInput.from_ints(prompt), n, params).result(timeout=WAIT)


def test_what_is_on_offer(rest):
    models = rest.get_server_capabilities().result().supported_models
    offered = {model.model_name: model.max_context_length for model in models}
    assert offered == dict.fromkeys((MODEL, "tiny/teacher", *STAND_INS), 16384)


def test_the_tokenizer_is_the_models_and_needs_no_network(training, monkeypatch):
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    info = training.get_info()
    assert (info.model_data.model_name, info.lora_rank, info.is_lora) == (MODEL, 8, True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns that torch is missing
        tokenizer = training.get_tokenizer()
    text = "<|im_start|>user\nhé 漢<|im_end|>\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 261 and max(ids) == 258
    assert tokenizer.eos_token_id == 256 == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.pad_token == "<|endoftext|>"
    assert "<|im_start|>assistant" in tokenizer.chat_template


def test_loss_and_logprobs_agree(training):
    result = training.forward_backward(DATA, "cross_entropy").result(timeout=WAIT)
    outputs = [np.array(out["logprobs"].data) for out in result.loss_fn_outputs]
    assert [len(out) for out in outputs] == [7, 4]
    expected = -outputs[0].sum() - outputs[1][1:].sum()
    assert result.metrics["loss:sum"] == pytest.approx(expected, rel=1e-5)
    for out, again in zip(outputs, logprobs(training), strict=True):
        np.testing.assert_array_equal(out, again)


def test_training_for_reward_raises_the_probability_of_what_was_rewarded(training):
    before = logprobs(training)[0]
    rewarded = datum(TOKENS, logprobs=floats(before), advantages=floats([1] * 7))
    loss = step(training, data=[rewarded], loss="importance_sampling").metrics["loss:sum"]
    assert loss == pytest.approx(-7, rel=1e-4)  # every ratio is 1
    assert logprobs(training)[0].sum() > before.sum()


def test_a_large_batch_arrives_in_chunks_and_adds_up(service):
    rng = np.random.default_rng(0)
    data = [datum(rng.integers(0, 256, 6).tolist()) for _ in range(1100)]  # more than one request
    whole = service.create_lora_training_client(MODEL, rank=4, seed=3).result()
    result = whole.forward_backward(data, "cross_entropy").result(timeout=WAIT)
    assert len(result.loss_fn_outputs) == 1100
    assert step(whole, data=data[:2]).metrics["loss:sum"] > 0
    parts = [np.array(out["logprobs"].data).sum() for out in result.loss_fn_outputs]
    assert result.metrics["loss:sum"] == pytest.approx(-sum(parts), rel=1e-5)


def test_sampling_agrees_with_training(training):
    for _ in range(3):
        step(training)
    sampler = training.save_weights_and_get_sampling_client().result()
    for sequence in sample(sampler, n=4).sequences:
        (trained,) = logprobs(training, [datum(PROMPT + sequence.tokens)])
        by_training = trained[len(PROMPT) - 1 :]
        np.testing.assert_allclose(sequence.logprobs, by_training, atol=1e-5)
    scored = sampler.compute_logprobs(tinker.ModelInput.from_ints(TOKENS)).result(timeout=WAIT)
    assert scored[0] is None
    np.testing.assert_allclose(scored[1:], logprobs(training)[0], atol=1e-5)


def test_a_prompt_may_fill_the_context_and_its_logprobs_are_those_of_training(training):
    step(training)
    sampler = training.save_weights_and_get_sampling_client().result()
    tokens = np.random.default_rng(0).integers(0, 256, 16385).tolist()
    full = tinker.ModelInput.from_ints(tokens[:-1])
    scored = sampler.compute_logprobs(full).result(timeout=WAIT)
    (trained,) = logprobs(training, [datum(tokens)])
    np.testing.assert_allclose(scored[1:], trained[:-1], atol=1e-4)
    with pytest.raises(
        tinker.RequestFailedError, match="16385 tokens; the context has room for 16384"
    ):
        sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens)).result(timeout=WAIT)


def test_sampling_parameters(training):
    sampler = training.save_weights_and_get_sampling_client().result()
    assert sampler.get_base_model() == MODEL
    assert [s.tokens for s in sample(sampler, 3).sequences] == [
        s.tokens for s in sample(sampler, 3).sequences
    ]
    greedy = sample(sampler, temperature=0.0).sequences[0]
    assert greedy.tokens == sample(sampler, temperature=0.0, seed=9).sequences[0].tokens
    assert greedy.tokens == sample(sampler, top_k=1).sequences[0].tokens
    assert greedy.stop_reason == "length" and len(greedy.tokens) == 8
    stopped = sample(sampler, temperature=0.0, stop=[greedy.tokens[0]]).sequences[0]
    assert stopped.stop_reason == "stop" and stopped.tokens == greedy.tokens[:1]
    assert len({s.sequence_id for s in sample(sampler, 4).sequences}) == 4
    ended = sample(sampler, max_tokens=None, stop=None).sequences[0]
    assert (ended.stop_reason == "stop") == (ended.tokens[-1] == 256)
    prompt, params = tinker.ModelInput.from_ints(PROMPT), tinker.SamplingParams(max_tokens=1)
    scored = sampler.sample(
        prompt, 1, params, include_prompt_logprobs=True, topk_prompt_logprobs=2
    ).result(timeout=WAIT)
    assert scored.topk_prompt_logprobs[0] is None
    assert [len(row) for row in scored.topk_prompt_logprobs[1:]] == [2, 2]


def test_named_weights_and_base_models_can_be_sampled(service, training):
    step(training)
    path = training.save_weights_for_sampler("named").result(timeout=WAIT).path
    saved = service.create_sampling_client(model_path=path).result()
    live = training.save_weights_and_get_sampling_client().result()
    assert sample(saved).sequences[0].tokens == sample(live).sequences[0].tokens
    assert saved.get_base_model() == MODEL
    before = sample(live).sequences[0].logprobs
    step(training, 1e-1)
    assert sample(live).sequences[0].logprobs == before
    base = service.create_sampling_client(base_model=MODEL).result()
    assert sample(base).sequences[0].logprobs != before


def test_logprobs_of_named_tokens_and_the_likeliest_of_those_sampled(service, training):
    step(training)
    sampler = training.save_weights_and_get_sampling_client().result()
    prompt = tinker.ModelInput.from_ints(TOKENS)
    params = tinker.SamplingParams(max_tokens=4, seed=3, stop=[])

    def ask(**more):
        return sampler.sample(prompt, 2, params, **more).result(timeout=WAIT)

    whole = ask(include_prompt_logprobs=True, topk_sample_logprobs=256)
    for sequence in whole.sequences:
        for token, logprob, best in zip(
            sequence.tokens, sequence.logprobs, sequence.topk_logprobs, strict=True
        ):
            assert len(best) == 256
            assert [value for _, value in best] == sorted((v for _, v in best), reverse=True)
            assert dict(best).get(token, logprob) == pytest.approx(logprob)
            assert sum(np.exp(value) for _, value in best) == pytest.approx(1, abs=0.05)
    # For each position: the prompt's token, none (-1), and another one.
    ids = np.array([[token, -1, 7] for token in TOKENS[1:]])
    answer = ask(target_prompt_logprobs=tinker.TensorData.from_numpy(ids))
    dense = answer.target_prompt_logprobs.to_numpy()
    assert dense.shape == (7, 3)
    np.testing.assert_allclose(dense[:, 0], whole.prompt_logprobs[1:], atol=1e-6)
    assert (dense[:, 1] == 0).all() and (dense[:, 2] < 0).all()
    sparse = tinker.TensorData(
        data=[7, TOKENS[7]],
        dtype="int64",
        shape=[7, 3],
        sparse_crow_indices=[0, 0, 0, 0, 1, 1, 1, 2],
        sparse_col_indices=[2, 0],
    )
    listed = ask(target_prompt_logprobs=sparse).target_prompt_logprobs
    assert listed.sparse_crow_indices == sparse.sparse_crow_indices
    assert list(listed.data) == pytest.approx([dense[3, 2], dense[6, 0]], abs=1e-6)
    assert ask().sequences[0].topk_logprobs is None and ask().target_prompt_logprobs is None


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1]] * 6, "has 6 rows; the prompt needs 7"),
        ([[-1]] * 7, "names no token"),
        ([[900]] * 7, "outside the vocabulary"),
    ],
)
def test_named_tokens_that_cannot_be_are_refused(service, ids, message):
    sampler = service.create_sampling_client(base_model=MODEL).result()
    given = tinker.TensorData.from_numpy(np.array(ids))
    with pytest.raises(tinker.TinkerError, match=message):
        prompt, params = tinker.ModelInput.from_ints(TOKENS), tinker.SamplingParams(max_tokens=1)
        sampler.sample(prompt, 1, params, target_prompt_logprobs=given).result(timeout=WAIT)


def test_listings(service, rest, training):
    state = training.save_state("listed", user_metadata={"a": "b"}).result(timeout=WAIT).path
    weights = training.save_weights_for_sampler("listed").result(timeout=WAIT).path
    run = rest.get_training_run(training.model_id).result()
    assert (run.base_model, run.lora_rank) == (MODEL, 8)
    assert run.last_checkpoint.tinker_path == state
    assert run.last_sampler_checkpoint.tinker_path == weights
    listed = {
        c.tinker_path: c for c in rest.list_checkpoints(training.model_id).result().checkpoints
    }
    assert set(listed) == {state, weights}
    assert listed[state].user_metadata == {"a": "b"} and listed[state].size_bytes > 1000
    assert training.model_id in {
        r.training_run_id for r in rest.list_training_runs(limit=100).result().training_runs
    }
    everything = rest.list_user_checkpoints(limit=100).result().checkpoints
    assert {state, weights} <= {c.tinker_path for c in everything}
    assert rest.get_weights_info_by_tinker_path(state).result().lora_rank == 8
    session = service.holder.get_session_id()
    assert session in rest.list_sessions(limit=100).result().sessions
    assert training.model_id in rest.get_session(session).result().training_run_ids
    sampler = service.create_sampling_client(model_path=weights).result(timeout=WAIT)
    sample(sampler)
    name = rest.get_session(session).result().sampler_ids[-1]
    sampling = rest.get_sampler(name).result()
    assert (sampling.base_model, sampling.model_path) == (MODEL, weights)
    rest.delete_checkpoint_from_tinker_path(weights).result()
    left = rest.list_checkpoints(training.model_id).result().checkpoints
    assert [c.tinker_path for c in left] == [state]


def test_a_checkpoint_has_a_time_to_live(rest, training):
    path = training.save_state("brief", ttl_seconds=7200).result(timeout=WAIT).path

    def remaining():
        (checkpoint,) = rest.list_checkpoints(training.model_id).result().checkpoints
        return checkpoint.expires_at and (checkpoint.expires_at - checkpoint.time).total_seconds()

    assert remaining() == pytest.approx(7200, abs=5)
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert remaining() is None
    rest.set_checkpoint_ttl_from_tinker_path(path, 86400).result()
    assert remaining() == pytest.approx(86400, abs=60)
    with pytest.raises(tinker.BadRequestError, match="from 3600 to"):
        rest.set_checkpoint_ttl_from_tinker_path(path, 10).result()
    with pytest.raises(tinker.RequestFailedError, match="from 3600 to"):
        training.save_state("briefer", ttl_seconds=10).result(timeout=WAIT)


def test_a_diverging_run_sees_its_infinities(training):
    step(training, 1e20)
    passed = training.forward_backward(DATA, "cross_entropy").result(timeout=WAIT)
    stepped = training.optim_step(tinker.AdamParams(learning_rate=1e20)).result(timeout=WAIT)
    assert not np.isfinite(passed.metrics["loss:sum"])
    assert not np.isfinite(stepped.metrics["unclipped_grad_l2:mean"])
    with pytest.raises(tinker.RequestFailedError, match="learning_rate is NaN or infinite"):
        training.optim_step(tinker.AdamParams(learning_rate=float("nan"))).result(timeout=WAIT)


def test_what_cannot_be_done_has_a_clear_message(service, training):
    with pytest.raises(tinker.NotFoundError, match="no base model 'x/y': use tiny/qwen3"):
        service.create_lora_training_client("x/y").result()
    with pytest.raises(tinker.RequestFailedError, match="there is no checkpoint"):
        service.create_training_client_from_state("tinker://gone:train:0/weights/x").result()
    with pytest.raises(tinker.NotFoundError, match="there is no checkpoint"):
        service.create_sampling_client(model_path="tinker://a/sampler_weights/x").result()
    for loss in {*get_args(tinker.types.LossFnType)} - {*losses.LOSSES}:
        with pytest.raises(tinker.RequestFailedError, match=f"loss_fn '{loss}' is not supported"):
            training.forward_backward(DATA, loss).result(timeout=WAIT)
    with pytest.raises(tinker.RequestFailedError, match=r"data\[0\]: a token is outside"):
        training.forward_backward([datum([1, 999])], "cross_entropy").result(timeout=WAIT)


def sampled_datum(sequence, advantage, tokens=None, start=0):
    """Return a datum of one sampled sequence, with its provenance."""
    tokens_used = sequence.tokens if tokens is None else tokens
    n, drawn = len(PROMPT), len(tokens_used)
    advantages = floats([0] * (n - 1) + [advantage] * drawn)
    prompt, name = tinker.PromptProvenanceSpan, sequence.sequence_id
    answer = tinker.SampledProvenanceSpan
    return datum([*PROMPT, *tokens_used], advantages=advantages).with_provenance(
        model_input=[
            prompt(sequence_id=name, length=n),
            answer(sequence_id=name, length=drawn - 1),
        ],
        loss_fn_inputs=[
            prompt(sequence_id=name, offset=1, length=n - 1),
            answer(sequence_id=name, offset=start, length=drawn),
        ],
    )


def test_stable_reinforce_trains_on_what_the_sampler_recorded(service, training):
    loss, config = "stable_reinforce", {"kl_coeff": 0.5}
    sampler = training.save_weights_and_get_sampling_client(record_stability_info=True).result()
    drawn = sample(sampler, 2)
    first, second = drawn.sequences
    recorded = np.array(first.logprobs)

    def compute():
        return training.forward_backward([sampled_datum(first, 2.0)], loss, config).result(WAIT)

    # The policy equals the sampler, so only the advantages count.
    assert compute().metrics["loss:sum"] == pytest.approx(-2 * recorded.sum(), rel=1e-4)
    before = recorded.sum()
    training.optim_step(tinker.AdamParams(learning_rate=3e-2)).result(timeout=WAIT)
    moved = compute()
    trained = np.array(moved.loss_fn_outputs[0]["logprobs"].data)[len(PROMPT) - 1 :]
    assert trained.sum() > before + 0.1
    expected = -(2 * trained - 0.25 * (trained - recorded) ** 2).sum()
    assert moved.metrics["loss:sum"] == pytest.approx(expected, rel=1e-4)

    unmoved = training.save_weights_and_get_sampling_client().result()
    other = sample(unmoved).sequences[0]
    wrong = [*second.tokens[:-1], (second.tokens[-1] + 1) % 256]
    for data, message in (
        (DATA, r"data\[0\]: this loss needs provenance"),
        ([sampled_datum(first, 1.0), sampled_datum(other, 1.0)], r"data\[1\]: no sequence .* was "
         "recorded in this session .* record_stability_info=True"),
        ([sampled_datum(second, 1.0, wrong)], "are not the tokens 0 to 8 of"),
        ([sampled_datum(second, 1.0, start=3)], "a span covers tokens 3 to 11, but "),
    ):  # fmt: skip
        with pytest.raises(tinker.RequestFailedError, match=message):
            training.forward_backward(data, loss).result(timeout=WAIT)
    prompted = sampled_datum(first, 1.0)
    prompted.loss_fn_inputs["advantages"] = floats([1] * (len(PROMPT) - 1 + len(first.tokens)))
    with pytest.raises(tinker.RequestFailedError, match="not sampled has an advantage"):
        training.forward_backward([prompted], loss).result(timeout=WAIT)


def test_custom_losses_run_through_the_sdk(service, monkeypatch):
    from tinker.lib.public_interfaces import training_client

    total = small_torch.total
    monkeypatch.setattr(training_client, "torch", small_torch.Torch)
    adam = tinker.AdamParams(learning_rate=1e-2)

    def weighted(data, given):
        weights = [np.array(d.loss_fn_inputs["weights"].data) for d in data]
        value = -sum(float((w * lp).sum()) for w, lp in zip(weights, given, strict=True))
        return total(value, [(lp, -w) for w, lp in zip(weights, given, strict=True)]), {"seen": 2}

    def squared(_data, given):
        return total(sum(float((lp**2).sum()) for lp in given), [(lp, 2 * lp) for lp in given]), {}

    def after(loss):
        training = service.create_lora_training_client(MODEL, rank=8, seed=0).result()
        start = logprobs(training)
        compute = training.forward_backward if loss == "cross_entropy" else None
        passed = (compute or training.forward_backward_custom)(DATA, loss)
        training.optim_step(adam).result(timeout=WAIT)
        return start, passed.result(timeout=WAIT).metrics, logprobs(training)

    # The engine's own loss, computed by the client, gives identical results.
    _, built_in, expected = after("cross_entropy")
    _, metrics, gradient = after(weighted)
    assert metrics["loss:sum"] == pytest.approx(built_in["loss:sum"], rel=1e-6)
    assert metrics["seen"] == 2
    for ours, other in zip(gradient, expected, strict=True):
        np.testing.assert_array_equal(ours, other)
    # A loss that the engine does not have.
    start, metrics, end = after(squared)
    before = sum(float((lp**2).sum()) for lp in start)
    assert metrics["loss:sum"] == pytest.approx(before, rel=1e-5)
    assert sum(float((lp**2).sum()) for lp in end) < before


def test_32_clients_at_once_each_as_if_alone(connect):
    async def train_alone(seed):
        service = connect()
        training = await service.create_lora_training_client(MODEL, rank=8, seed=seed)
        rng, out = np.random.default_rng(seed), []
        for _ in range(5):
            data = [datum(rng.integers(0, 256, 8).tolist()) for _ in range(4)]
            passed = training.forward_backward(data, "cross_entropy")
            stepped = training.optim_step(tinker.AdamParams(learning_rate=1e-2))
            out.append((await passed).metrics["loss:sum"])
            await stepped
        sampler = await training.save_weights_and_get_sampling_client()
        params = tinker.SamplingParams(max_tokens=4, seed=seed)
        drawn = await sampler.sample(tinker.ModelInput.from_ints(PROMPT), 2, params)
        return [*out, *(s.tokens for s in drawn.sequences)]

    async def together(seeds):
        return await asyncio.gather(*map(train_alone, seeds))

    crowd = asyncio.run(together([n % 16 for n in range(32)]))
    assert crowd[:16] == crowd[16:]
    assert len({str(result) for result in crowd}) == 16
    assert asyncio.run(together([3])) == [crowd[3]]
