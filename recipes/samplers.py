"""Opens models that are sampled but not trained (a reference, a teacher, a judge, a model to
evaluate): base models or checkpoints, by address or by a run's `log_path`."""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import chat, rundir
from .service import Service

if TYPE_CHECKING:
    import tinker

_STATES = "/weights/"
"""The part that an address has if its weights were saved for training."""


def seed_of(request: str) -> int:
    """Return a sampling seed that depends only on the text `request`."""
    return random.Random(request).getrandbits(31)


def open_sampler(
    connection: Service, model_name: str, checkpoint: str | None
) -> "tinker.SamplingClient":
    """Return a client that samples from `checkpoint`, an address or a run's directory. None means
    the base model. If the weights were saved for training, a training client loads them first,
    because not every service can sample from them directly. Raises RecipeError if the directory
    has no checkpoint."""
    client, wait = connection.client, connection.wait
    if checkpoint is None:
        return wait(client.create_sampling_client(base_model=model_name))
    path = rundir.sampler_path(checkpoint)
    if _STATES in path:
        training = wait(client.create_training_client_from_state(path))
        return wait(training.save_weights_and_get_sampling_client())
    return wait(client.create_sampling_client(model_path=path))


def open_named(
    connection: Service, name: str | None, model_name: str, parent: str | None
) -> "tinker.SamplingClient":
    """Return a client that samples from the base model or checkpoint `name`. If `name` is None, the
    client samples from the checkpoint `parent`, or from `model_name` if `parent` is None too."""
    if name is None:
        return open_sampler(connection, model_name, parent)
    checkpoint = name if is_checkpoint(name) else None
    return open_sampler(connection, model_name if checkpoint else name, checkpoint)


def is_checkpoint(name: str) -> bool:
    """Return whether a name is an address of weights or a directory with a checkpoint."""
    return name.startswith("tinker://") or rundir.has_checkpoint(name)


def begin_logprobs(
    connection: Service, sampler: "tinker.SamplingClient", tokens: Sequence[int], last: int
) -> Callable[[], list[float]]:
    """Request the logprobs of the last `last` tokens. The returned function waits for them."""
    import tinker

    prompt = tinker.ModelInput.from_ints(list(tokens))
    request: Any = sampler.compute_logprobs(prompt, prompt_logprobs_last_n=last)
    return lambda: [float(value) for value in connection.wait(request)[-last:]]


def begin_answer_logprobs(
    connection: Service, sampler: "tinker.SamplingClient", example: chat.Example
) -> Callable[[], list[float]]:
    """Request the logprobs of an example's answer. The returned function waits for them."""
    last = len(example.tokens) - example.answer
    return begin_logprobs(connection, sampler, example.tokens, last)
