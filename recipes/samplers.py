"""Models that are asked and not trained: a reference, a teacher, a judge, a model to evaluate.

Each is a base model, or weights trained before: an address of the service, or the `log_path` of a
run, whose last checkpoint is meant.
"""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import chat, rundir
from .service import Service

if TYPE_CHECKING:
    import tinker

_STATES = "/weights/"
"""What addresses of weights to train on have in their path; those to sample from have another."""


def seed_of(request: str) -> int:
    """The seed of a request for samples, by a text that names the request."""
    return random.Random(request).getrandbits(31)


def open_sampler(
    connection: Service, model_name: str, checkpoint: str | None
) -> "tinker.SamplingClient":
    """A client that samples from the checkpoint, else from the base model as it is.

    What is saved to be trained on cannot be sampled from on every service: it is opened for
    training, and a sampler made of that. Raises RecipeError when a directory has no checkpoint.
    """
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
    """A client that samples from a base model or a checkpoint by its name; without one from
    `parent`, or from the base model where there is none."""
    if name is None:
        return open_sampler(connection, model_name, parent)
    checkpoint = name if is_checkpoint(name) else None
    return open_sampler(connection, model_name if checkpoint else name, checkpoint)


def is_checkpoint(name: str) -> bool:
    """Whether a name means weights trained before rather than a base model: an address, or a
    directory with checkpoints."""
    return name.startswith("tinker://") or rundir.has_checkpoint(name)


def begin_logprobs(
    connection: Service, sampler: "tinker.SamplingClient", tokens: Sequence[int], last: int
) -> Callable[[], list[float]]:
    """Ask for the logprobs of the `last` tokens; the function returned waits for them."""
    import tinker

    prompt = tinker.ModelInput.from_ints(list(tokens))
    request: Any = sampler.compute_logprobs(prompt, prompt_logprobs_last_n=last)
    return lambda: [float(value) for value in connection.wait(request)[-last:]]


def begin_answer_logprobs(
    connection: Service, sampler: "tinker.SamplingClient", example: chat.Example
) -> Callable[[], list[float]]:
    """Ask for the logprobs of an example's last answer; the function returned waits for them."""
    last = len(example.tokens) - example.answer
    return begin_logprobs(connection, sampler, example.tokens, last)
