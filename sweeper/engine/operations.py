"""The operations that the engine does for clients: one function for each kind of request. The
functions run in worker threads, one at a time for each training client."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from sweeper.engine import lora, losses, net, optimizer, sampling
from sweeper.engine.array_types import Arrays, Floats, Ints
from sweeper.engine.batches import Datum, check, microbatches
from sweeper.engine.checkpoints import Checkpoint, Place, Vault
from sweeper.engine.errors import RequestError
from sweeper.engine.models import Model
from sweeper.engine.optimizer import Moments
from sweeper.engine.prefixes import BLOCK, Prefixes
from sweeper.engine.state import Adapter, Run

MAX_SAMPLES = 1024


class PassResult(NamedTuple):
    """The result of a pass: metrics, and the logprobs of each datum's targets, in the targets'
    shape."""

    logprobs: list[Floats]
    metrics: dict[str, float]


def lora_config(values: dict[str, Any]) -> lora.LoraConfig:
    """Convert a client's `lora_config`. Raises RequestError if it is invalid."""
    fields = {k: v for k, v in values.items() if k in lora.LoraConfig._fields}
    config = lora.LoraConfig(**fields)
    if not 1 <= config.rank <= lora.MAX_RANK:
        raise RequestError(f"lora rank {config.rank}: it must be from 1 to {lora.MAX_RANK}")
    if not (config.train_attn or config.train_mlp or config.train_unembed):
        raise RequestError("nothing to train: train_attn, train_mlp and train_unembed are false")
    return config


def create(
    name: str, model: Model, config: lora.LoraConfig, user_metadata: dict[str, object] | None
) -> Run:
    """Create a training client with a new adapter."""
    return Run(name, Adapter(model, config, lora.create(model.shape, config)), user_metadata)


def one_pass(
    adapter: Adapter, data: Sequence[Datum], loss: losses.Loss, config: losses.LossConfig,
    *, train: bool
) -> tuple[list[Floats], float, Arrays]:  # fmt: skip
    network = adapter.network
    needed, gradients = lora.wanted(adapter.arrays), Arrays()
    out: list[Floats] = [np.empty(0)] * len(data)
    total = 0.0
    for batch in microbatches(data, loss):
        x, tapes = net.forward(network, batch.ids)
        logprobs, head = net.target_logprobs(network, x, batch.rows, batch.targets)
        values, slope = loss.compute(logprobs, batch.inputs, config)
        total += float(values.sum(dtype=np.float64))
        if train:
            net.backward(network, tapes, head, slope, needed, gradients)
        start = 0
        for i in batch.members:
            targets = data[i].inputs["target_tokens"]
            end = start + len(targets)
            width = targets.shape[1] if targets.ndim == 2 else 1
            out[i] = logprobs[start:end, :width].reshape(targets.shape)
            start = end
    return out, total, gradients


def forward_backward(
    run: Run, data: Sequence[Datum], name: str, config: losses.LossConfig, *, train: bool
) -> PassResult:
    """Do one pass over the data. If `train`, add the gradients of the data to the run's accumulated
    gradients. The loss is summed over tokens. A failed pass leaves the gradients unchanged."""
    loss = losses.find(name, config)
    if not data:
        raise RequestError("data is empty")
    for number, datum in enumerate(data):
        check(datum, number, loss, run.adapter.model.shape)
    with np.errstate(all="ignore"):  # a diverging run must see its infinities
        logprobs, total, gradients = one_pass(run.adapter, data, loss, config, train=train)
    for key, gradient in gradients.items():
        held = run.gradients.get(key)
        run.gradients[key] = gradient if held is None else held + gradient
    return PassResult(logprobs, {"loss:sum": total})


def step(run: Run, params: optimizer.AdamParams) -> dict[str, float]:
    """Update the run's adapter with the accumulated gradients, and clear the gradients. Return
    metrics. Without gradients, the weights do not change."""
    adapter = run.adapter
    with np.errstate(all="ignore"):
        scale = adapter.config.scale
        gradients = lora.project(run.gradients, adapter.model.shape, adapter.arrays, scale)
        arrays, run.moments, norm = optimizer.step(adapter.arrays, gradients, run.moments, params)
    run.adapter = Adapter(adapter.model, adapter.config, arrays)
    run.gradients = {}
    return {"unclipped_grad_l2:mean": norm}


def check_ttl(ttl_seconds: int | None) -> None:
    """Raise RequestError for a time to live that Tinker rejects: less than an hour, or more than
    ten years. None (no limit) is valid."""
    if ttl_seconds is not None and not 3600 <= ttl_seconds <= 315_360_000:
        raise RequestError(f"ttl_seconds is {ttl_seconds}: it must be from 3600 to 315360000")


class SaveRequest(NamedTuple):
    """A client's request to save weights under a name. `kind` is one of `checkpoints.KINDS`."""

    kind: str
    name: str
    overwrite: bool
    ttl_seconds: int | None
    user_metadata: dict[str, object] | None


def save(vault: Vault, run: Run, request: SaveRequest) -> Place:
    """Write the run's adapter to disk, and also the optimizer if the request's kind is `weights`.
    Return the checkpoint's path."""
    check_ttl(request.ttl_seconds)
    adapter, place = run.adapter, Place(run.id, request.kind, request.name)
    moments = run.moments if request.kind == "weights" else None
    checkpoint = Checkpoint(
        adapter.model.name,
        adapter.config,
        adapter.arrays,
        moments,
        request.user_metadata,
        run.user_metadata,
    )
    vault.save(place, checkpoint, overwrite=request.overwrite, ttl_seconds=request.ttl_seconds)
    return place


def _moments(checkpoint: Checkpoint, place: Place, *, optimizer_too: bool) -> Moments:
    if not optimizer_too:
        return Moments({}, {}, 0)
    if checkpoint.moments is None:
        raise RequestError(
            f"{place} has no optimizer state: use a checkpoint at tinker://<run>/weights/<name>"
        )
    return checkpoint.moments


def restore(
    name: str, model: Model, place: Place, checkpoint: Checkpoint,
    *, optimizer_too: bool, user_metadata: dict[str, object] | None,
) -> Run:  # fmt: skip
    """Create a training client from a checkpoint, with the optimizer's state if `optimizer_too`."""
    adapter = Adapter(model, checkpoint.config, checkpoint.adapter)
    moments = _moments(checkpoint, place, optimizer_too=optimizer_too)
    return Run(name, adapter, user_metadata, moments)


def load_into(run: Run, place: Place, checkpoint: Checkpoint, *, optimizer_too: bool) -> None:
    """Load a checkpoint into an existing training client, and clear the accumulated gradients."""
    adapter = run.adapter
    same = {k: v.shape for k, v in adapter.arrays.items()} == {
        k: v.shape for k, v in checkpoint.adapter.items()
    }
    if checkpoint.base != adapter.model.name or not same:
        raise RequestError(
            f"{place} was saved from {checkpoint.base} with {checkpoint.config}, but this training "
            f"client trains {adapter.model.name} with {adapter.config}"
        )
    run.moments = _moments(checkpoint, place, optimizer_too=optimizer_too)
    run.adapter = Adapter(adapter.model, adapter.config, checkpoint.adapter)
    run.gradients = {}


Stop = str | Sequence[str] | Sequence[int] | None


class SamplingParams(TypedDict, total=False):
    """The SDK's `SamplingParams`, as the client sends them."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    stop: Stop


class SampleRequest(NamedTuple):
    """A sampling client's request."""

    prompt: list[int]
    n: int
    params: SamplingParams
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    last_n: int | None = None
    topk_sampled: int = 0
    targets: "Targets | None" = None


class Targets(NamedTuple):
    """The tokens whose logprobs a client requests: the cells of a matrix, with one row for each
    position of the prompt except the first. `rows` and `ids` have the row and the token id of each
    cell; the id -1 means no token. `sparse` has the row pointers and the columns of a CSR matrix;
    None if the matrix is dense."""

    rows: Ints
    ids: Ints
    shape: tuple[int, int]
    sparse: tuple[Ints, Ints] | None = None

    def check(self, vocab: int, length: int) -> None:
        """Raise RequestError if the targets do not match a prompt of `length` tokens."""
        if self.shape[0] != length - 1:
            raise RequestError(
                f"target_prompt_logprobs has {self.shape[0]} rows; the prompt needs {length - 1}"
            )
        if not (self.ids >= 0).any():
            raise RequestError("target_prompt_logprobs names no token")
        if self.ids.min() < -1 or self.ids.max() >= vocab:
            raise RequestError(
                f"target_prompt_logprobs has ids outside the vocabulary of {vocab} tokens"
            )

    @property
    def first(self) -> int:
        """The first row that has a requested token."""
        return int(self.rows[self.ids >= 0].min())


class PromptScores(NamedTuple):
    """The requested scores of a prompt. A field is None if the client did not request these scores.
    `logprobs` has NaN for tokens without a score. `topk` has the k likeliest tokens at each
    position. `targets` has the logprob of each cell of `Targets`, and 0 for the id -1."""

    logprobs: Floats | None = None
    topk: tuple[Ints, Floats] | None = None  # T x k token ids, T x k logprobs
    targets: Floats | None = None


class SampleResult(NamedTuple):
    """The sampled sequences, and the requested scores of the prompt."""

    sequences: list[sampling.Sampled]
    scores: PromptScores
    reused: int  # how many prompt tokens had been read before


def _stop(model: Model, stop: Stop) -> tuple[frozenset[int], Callable[[list[int]], bool] | None]:
    """Return the stop tokens, and a function that checks the end of a sequence for stop strings.
    The function is None if `stop` has no strings. If `stop` is None, the stop tokens are the
    model's end-of-text tokens."""
    if stop is None:
        return model.eos, None
    items: list[object] = [stop] if isinstance(stop, str) else list(stop)
    texts = [item for item in items if isinstance(item, str) and item]
    ids = frozenset(item for item in items if isinstance(item, int))
    if not texts:
        return ids, None
    # A token has at least one byte, so a text of m characters ends within 4 m tokens.
    reach = 4 * max(map(len, texts)) + 4

    def ended(tokens: list[int]) -> bool:
        tail = model.decode(tokens[-reach:])
        return any(text in tail for text in texts)

    return ids, ended


def _params(model: Model, request: SampleRequest) -> sampling.Params:
    sent = request.params
    tokens, text = _stop(model, sent.get("stop"))
    limit = sent.get("max_tokens")
    params = sampling.Params(
        max_tokens=model.shape.context if limit is None else int(limit),
        temperature=float(sent.get("temperature", 1.0)),
        top_k=int(sent.get("top_k", -1)),
        top_p=float(sent.get("top_p", 1.0)),
        seed=sent.get("seed"),
        stop_tokens=tokens,
        stop_text=text,
        topk=request.topk_sampled,
    )
    if params.max_tokens < 1 or not 1 <= request.n <= MAX_SAMPLES:
        raise RequestError(
            f"max_tokens must be at least 1, and num_samples must be from 1 to {MAX_SAMPLES}"
        )
    if not 0 <= params.topk <= model.shape.vocab:
        raise RequestError(f"topk_sample_logprobs must be from 0 to {model.shape.vocab}")
    if params.temperature < 0 or not 0 < params.top_p <= 1:
        raise RequestError("temperature must not be below 0, and top_p must be in (0, 1]")
    return params


def _first_scored(request: SampleRequest) -> int:
    n = len(request.prompt)
    return 1 if request.last_n is None else max(1, n - request.last_n)


def _prompt_scores(
    network: net.Network, prompt: sampling.Prompt, request: SampleRequest
) -> PromptScores:
    """Compute the requested scores of a prompt. The first position has no scores."""
    k, n, first = request.topk_prompt_logprobs, prompt.length, _first_scored(request)
    logprobs = np.full(n, np.nan, np.float32)
    best = np.full((n, k), sampling.EMPTY[0], np.int32)
    values = np.full((n, k), sampling.EMPTY[1], np.float32)
    ids, targets = np.array(request.prompt), request.targets
    result = None if targets is None else np.zeros(len(targets.ids), np.float32)
    for at in range(prompt.first, n - 1, BLOCK):  # in blocks, as when reading
        end = min(at + BLOCK, n - 1)
        rows = prompt.x[at - prompt.first : end - prompt.first]
        scores = net.log_softmax(net.logits(network, rows))
        place = slice(at + 1, end + 1)
        logprobs[place] = np.take_along_axis(scores, ids[place, None], -1)[:, 0]
        if k:
            best[place], values[place] = sampling.likeliest(scores, k)
        if targets is not None and result is not None:
            cells = (targets.rows >= at) & (targets.rows < end) & (targets.ids >= 0)
            result[cells] = scores[targets.rows[cells] - at, targets.ids[cells]]
    logprobs[:first] = np.nan
    best[:first], values[:first] = sampling.EMPTY
    return PromptScores(
        logprobs if request.prompt_logprobs else None, (best, values) if k else None, result
    )


def sample(adapter: Adapter, request: SampleRequest, prefixes: Prefixes | None) -> SampleResult:
    """Draw sequences, and score the prompt if requested. `prefixes` is the cache of prompts."""
    model, network = adapter.model, adapter.network
    params = _params(model, request)
    firsts = list[int]()  # the first position whose output is needed, for each kind of score
    if request.prompt_logprobs or request.topk_prompt_logprobs:
        firsts.append(_first_scored(request) - 1)
    if request.targets is not None:
        request.targets.check(model.shape.vocab, len(request.prompt))
        firsts.append(request.targets.first)
    with np.errstate(all="ignore"):
        prompt = sampling.read(
            network,
            request.prompt,
            first=min(firsts, default=None),
            prefixes=prefixes,
            owner=adapter.serial,
        )
        scores = _prompt_scores(network, prompt, request) if firsts else PromptScores()
        sequences = sampling.sample(network, prompt, request.n, params)
    return SampleResult(sequences, scores, prompt.reused)
