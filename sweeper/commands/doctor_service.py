"""`sweeper doctor --service`: tests whether the model service works, without a recipe."""

import os
import statistics
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLong
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sweeper.errors import EnvironmentFailure, SweeperError
from sweeper.results.service_models import Model, offered, smallest
from sweeper.results.service_requests import Service, of_service
from sweeper.sweep.labels import first_of
from sweeper.terminal import print_json, say, warn
from sweeper.worker.service_errors import meaning

if TYPE_CHECKING:
    from tinker import ServiceClient

T = TypeVar("T")
_TRIES = 5
_ANSWER_SECONDS = 20.0
_SHOWN = 40
_RANK = 8
_TOKENS = 16


class Step(NamedTuple):
    """A finished check: name, duration in seconds, and result."""

    name: str
    seconds: float
    found: str


def run(arguments: Namespace) -> int:
    """Check the model service, and print the result of each check. Stop at the first failure."""
    steps: list[Step] = []
    error: str | None = None
    models: list[Model] = []
    try:
        for step in _steps(arguments, models):
            steps.append(step)
            if not arguments.json:
                say(f"{step.name:<8}{step.seconds:>9.2f} s  {step.found}", flush=True)
    except SweeperError as failure:
        error = str(failure)
    if arguments.json:
        listed = [model._asdict() for model in models]
        document = {"schema": 1, "steps": [step._asdict() for step in steps], "models": listed}
        print_json(document | {"error": error})
    elif error is not None:
        warn(error)
    return 0 if error is None else EnvironmentFailure.exit_code


def _steps(arguments: Namespace, models: list[Model]) -> Iterator[Step]:
    """Run the checks, and yield the result of each. Add the service's models to `models`. Raises
    `SweeperError`."""
    plan = None
    if arguments.grid is not None:
        from sweeper.planner.plan import plan as make_plan

        plan = make_plan(arguments.grid)
    name = arguments.service
    if name == "auto":
        name = _usual() if plan is None else plan.service
    service = of_service(name)
    yield _reach(service)
    begun = time.monotonic()
    models += offered(service, _ANSWER_SECONDS)
    names = [model.model_name for model in models]
    yield _step("models", begun, f"{len(names)}: {first_of(names, _SHOWN)}")
    if plan is not None:
        from sweeper.launcher.preflight import models_of

        needed = models_of(plan)
        if missing := sorted(needed - set(names)):
            raise EnvironmentFailure(f"{plan.name}: the service has no model {', '.join(missing)}")
        text = f"the service has {', '.join(sorted(needed))}" if needed else "needs no model"
        yield _step("grid", begun, f"{plan.name}: {text}")
    model = smallest(tuple(models))
    if model is None:
        raise EnvironmentFailure(f"{service.url}: no model supports both training and sampling")
    yield from _trained(service, model.model_name, arguments.timeout)


def _usual() -> str:
    return "tinker" if os.environ.get("TINKER_API_KEY") else "local"


def _reach(service: Service) -> Step:
    """Measure how long the service takes to answer small requests. Raises `EnvironmentFailure`."""
    begun, times = time.monotonic(), list[float]()
    for _ in range(_TRIES):
        started = time.monotonic()
        offered(service, _ANSWER_SECONDS)
        times.append(time.monotonic() - started)
    middle, worst = statistics.median(times) * 1000, max(times) * 1000
    return _step("reach", begun, f"{service.url}: median {middle:.0f} ms, longest {worst:.0f} ms")


def _step(name: str, begun: float, found: str) -> Step:
    return Step(name, time.monotonic() - begun, found)


def _trained(service: Service, model: str, seconds: float) -> Iterator[Step]:
    """Train a model for one step, and sample from the trained model. Each operation may take at
    most `seconds`. Raises `EnvironmentFailure`."""
    import tinker

    client = tinker.ServiceClient(
        base_url=service.url, api_key=service.key, display_name="sweeper doctor"
    )
    yield from _first_steps(client, model, seconds)


def _within(name: str, seconds: float, act: Callable[[], T]) -> T:
    """Return the result of `act`. Raises `EnvironmentFailure` for errors of the SDK, and if there
    is no result after `seconds`. (The SDK may retry for minutes, so `act` runs in a thread.)"""
    answer: Future[T] = Future()

    def call() -> None:
        try:
            answer.set_result(act())
        except Exception as error:  # noqa: BLE001 - raised below
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        return answer.result(seconds)
    except TooLong as error:
        message = f"{name}: no answer within {seconds:g} s: the service is not working now"
        raise EnvironmentFailure(message) from error
    except Exception as error:
        text = f"{type(error).__module__.split('.')[0]}.{type(error).__name__}: {error}"
        text = " ".join(text.split())[:200]
        advice = meaning(text) or "there is a problem with the service or with this key"
        raise EnvironmentFailure(f"{name}: {text}: {advice}") from error


def _first_steps(client: "ServiceClient", model: str, seconds: float) -> Iterator[Step]:
    from tinker import types

    begun = time.monotonic()
    training = _within(
        "session",
        seconds,
        lambda: client.create_lora_training_client(base_model=model, rank=_RANK).result(),
    )
    yield _step("session", begun, f"{model}, rank {_RANK}")
    tokens = list(range(1, _TOKENS + 2))
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * _TOKENS},  # pyright: ignore[reportArgumentType]
    )

    def train() -> object:
        training.forward_backward([datum], "cross_entropy").result()
        return training.optim_step(types.AdamParams(learning_rate=1e-5)).result()

    begun = time.monotonic()
    _within("train", seconds, train)
    yield _step("train", begun, f"one step of {_TOKENS} tokens")

    def sample() -> types.SampleResponse:
        sampler = training.save_weights_and_get_sampling_client().result()
        prompt, parameters = types.ModelInput.from_ints(tokens), types.SamplingParams(max_tokens=4)
        return sampler.sample(prompt, 1, parameters).result()

    begun = time.monotonic()
    _within("sample", seconds, sample)
    yield _step("sample", begun, "four tokens from the trained weights: the service works")
