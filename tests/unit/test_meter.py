"""The meter counts a recipe's use of the SDK in its process; its errors do not end the recipe."""

import concurrent.futures
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sweeper.common.sweeper_argv import BOOTSTRAP
from sweeper.testing import FakeClock
from sweeper.worker.usage import UsageFiles


@pytest.fixture
def meter() -> ModuleType:
    """Load `recipe/meter.py` as the bootstrap does."""
    path = Path(BOOTSTRAP).with_name("meter.py")
    spec = importlib.util.spec_from_file_location("meter_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Answer:
    """A future of the SDK; the test sets its result."""

    def __init__(self) -> None:
        self._future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def future(self) -> "concurrent.futures.Future[Any]":
        return self._future


def sdk() -> Any:
    """Return a fake SDK module; `waiting` lists the futures that it returned."""
    waiting: list[Answer] = []

    def answer() -> Answer:
        waiting.append(Answer())
        return waiting[-1]

    class TrainingClient:
        def forward(self, data: Any, loss_fn: str) -> Answer:
            return answer()

        def forward_backward(self, data: Any, loss_fn: str) -> Answer:
            return answer()

        def forward_backward_custom(self, data: Any, loss_fn: str) -> Answer:
            if loss_fn == "uploaded":  # the service computes it: one pass
                return self.forward_backward(data, "custom")
            return answer()

        def optim_step(self, params: Any) -> Answer:
            return answer()

        def get_info(self) -> Any:
            return SimpleNamespace(model_data=SimpleNamespace(model_name="asked/for"))

    class SamplingClient:
        def sample(self, prompt: Any, num_samples: int) -> Answer:
            return answer()

        def compute_logprobs(self, prompt: Any) -> Answer:
            return answer()

        def get_base_model(self) -> str:
            return "base/model"

    class ServiceClient:
        def __init__(self, user_metadata: Any = None, project_id: Any = None) -> None:
            self.user_metadata, self.project_id = user_metadata, project_id

        def create_lora_training_client(self, base_model: str) -> TrainingClient:
            return TrainingClient()

    return SimpleNamespace(
        TrainingClient=TrainingClient,
        SamplingClient=SamplingClient,
        ServiceClient=ServiceClient,
        waiting=waiting,
        __version__="9",
    )


def data(*lengths: int) -> list[Any]:
    return [SimpleNamespace(model_input=SimpleNamespace(length=length)) for length in lengths]


def drawn(*lengths: int, cached: int = 0) -> Any:
    sequences = [SimpleNamespace(tokens=[0] * length) for length in lengths]
    return SimpleNamespace(sequences=sequences, prompt_cache_hit_tokens=cached)


def counted(tmp_path: Path, made: Any) -> dict[str, Any]:
    made.write()
    return UsageFiles(str(tmp_path)).read().document()


def test_answers_are_counted_by_kind_and_model(meter: ModuleType, tmp_path: Path) -> None:
    tinker, made = sdk(), meter.Meter(str(tmp_path))
    meter.wrap(tinker, made, {"sweeper_run": "r"})
    service = tinker.ServiceClient({"mine": "1"}, "project")
    assert service.user_metadata == {"sweeper_run": "r", "mine": "1"}
    assert service.project_id == "project"
    training = service.create_lora_training_client("Qwen/Qwen3-8B")
    training.forward_backward(data(3, 4), loss_fn="x")
    training.forward_backward(loss_fn="x", data=data(5))
    training.forward(data(10), "x")
    training.forward_backward_custom(data(100), "mine")
    training.forward_backward_custom(data(1000), "uploaded")
    training.optim_step(None)
    for answer in tinker.waiting:
        answer.future().set_result(None)
    sampling = tinker.SamplingClient()
    sampling.sample(SimpleNamespace(length=7), 2).future().set_result(drawn(4, 5, cached=2))
    sampling.compute_logprobs(prompt=SimpleNamespace(length=20)).future().set_result([None])
    trained = {"prefill": 110, "cached": 0, "sample": 0, "train": 1112, "requests": 7, "steps": 1}
    read = {"prefill": 25, "cached": 2, "sample": 10, "train": 0, "requests": 2, "steps": 0}
    assert counted(tmp_path, made) == {"models": {"Qwen/Qwen3-8B": trained, "base/model": read}}


def test_the_imports_of_a_run_are_listed_once_it_trains(meter: ModuleType, tmp_path: Path) -> None:
    """Otherwise imports between the session and the first request would be missing."""
    listed = threading.Event()
    tinker, made = sdk(), meter.Meter(str(tmp_path), listed.set)
    meter.wrap(tinker, made, {})
    made.session("one")
    written = tmp_path / f"{os.getpid()}.json"
    while not written.exists():
        time.sleep(0.01)
    assert not listed.wait(0.2)
    tinker.ServiceClient().create_lora_training_client("a/b").optim_step(None)
    tinker.waiting[-1].future().set_result(None)
    assert listed.wait(60)


def test_only_answered_requests_count_as_they_were_submitted(
    meter: ModuleType, tmp_path: Path
) -> None:
    tinker, made = sdk(), meter.Meter(str(tmp_path))
    meter.wrap(tinker, made, {})
    client = tinker.TrainingClient()
    client.forward_backward(data(3), "x").future().set_exception(RuntimeError("no"))
    client.forward_backward(data(3), "x").future().cancel()
    client.forward_backward(data(3), "x")  # no answer yet
    assert counted(tmp_path, made) == {"models": {}}
    batch = data(5, 6)
    future = client.forward_backward(batch, "x").future()
    batch.clear()  # recipes may empty a batch once it is submitted
    future.set_result(None)
    assert counted(tmp_path, made)["models"]["asked/for"]["train"] == 11


def test_an_unexpected_sdk_is_reported_and_left_alone(meter: ModuleType, tmp_path: Path) -> None:
    tinker, made = sdk(), meter.Meter(str(tmp_path))
    del tinker.SamplingClient.compute_logprobs
    before = tinker.TrainingClient.forward
    meter.wrap(tinker, made, {})
    assert tinker.TrainingClient.forward is before
    assert counted(tmp_path, made) == {
        "models": {},
        "unknown": "tinker 9 has no SamplingClient.compute_logprobs: usage is not counted",
    }
    other = sdk()
    meter.wrap(other, made := meter.Meter(str(tmp_path)), {})
    future = other.TrainingClient().forward(["no datum"], "x").future()
    future.set_result("the recipe has its answer")
    assert future.result() == "the recipe has its answer"
    assert "AttributeError" in counted(tmp_path, made)["unknown"]


@pytest.fixture
def hook(meter: ModuleType) -> Iterator[Callable[..., Any]]:
    """Yield a function that installs an import hook."""
    before = sys.meta_path[:]

    def install(*given: Any) -> Any:
        finder = meter.ImportHook(*given)
        sys.meta_path.insert(0, finder)
        return finder

    yield install
    sys.meta_path[:] = before


def test_each_process_writes_its_own_file(meter: ModuleType, tmp_path: Path) -> None:
    tinker, made = sdk(), meter.Meter(str(tmp_path))
    meter.wrap(tinker, made, {})
    client = tinker.TrainingClient()
    client.forward_backward(data(3), "x").future().set_result(None)
    made.write()
    child = os.fork()
    if not child:
        client.forward_backward(data(4), "x").future().set_result(None)
        made.write()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert UsageFiles(str(tmp_path)).read().counts.train == 7


@pytest.mark.parametrize("text", ["", "[]", '{"models": 3}', '{"models": {"m": {"train": "x"}}}'])
def test_a_malformed_file_of_counts_is_ignored(tmp_path: Path, text: str) -> None:
    files = UsageFiles(str(tmp_path))
    good = {"models": {"m": {"train": 5}}}
    (tmp_path / "1.json").write_text(json.dumps(good))
    assert files.read().counts.train == 5
    (tmp_path / "1.json").write_text(text)
    assert files.read().counts.train == 5
    assert UsageFiles(str(tmp_path / "none")).read().models == {}


def test_the_hook_waits_for_the_import_itself(
    hook: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that only checks whether the SDK is installed does not disable the hook."""
    (tmp_path / "made_up_sdk.py").write_text("class TrainingClient: pass\n")
    seen: list[ModuleType] = []
    finder = hook("made_up_sdk", seen.append)
    assert importlib.util.find_spec("made_up_sdk") is None  # the path comes later
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.util.find_spec("made_up_sdk") is not None
    importlib.import_module("made_up_sdk")
    assert [module.TrainingClient.__name__ for module in seen] == ["TrainingClient"]
    assert finder not in sys.meta_path
    sys.modules.pop("made_up_sdk")


def test_pauses_are_read_from_the_sdks_own_observers(
    meter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tinker, clock, files = sdk(), FakeClock(), UsageFiles(str(tmp_path))
    made = meter.Meter(str(tmp_path), clock=clock)
    heard: list[tuple[str, object]] = []

    class Observer:
        def on_queue_state_change(self, state: Any, reason: str | None) -> None:
            heard.append((state.value, reason))

    tinker.SamplingClient.on_queue_state_change = Observer.on_queue_state_change
    tinker.__name__ = "made_up"
    logger = SimpleNamespace(QueueStateLogger=Observer)
    monkeypatch.setitem(sys.modules, "made_up.lib.queue_state_logger", logger)
    meter.wrap(tinker, made, {})

    def tell(who: Any, state: str) -> str | None:
        who.on_queue_state_change(SimpleNamespace(value=state), "because")
        made.write()
        files.read()
        return files.paused

    training, sampling = Observer(), tinker.SamplingClient()
    assert tell(training, "active") is None
    assert tell(training, "paused_rate_limit") == "rate_limit"
    assert tell(sampling, "paused_capacity") is not None
    assert tell(training, "active") == "capacity"
    assert tell(sampling, "active") is None
    assert heard[1] == ("paused_rate_limit", "because")
    tell(training, "paused_rate_limit")
    clock.sleep(1000.0)
    assert tell(sampling, "active") is None  # the other pause was not repeated


def test_a_pause_of_a_dead_process_ends(tmp_path: Path) -> None:
    now = [0.0]
    files = UsageFiles(str(tmp_path), lambda: now[0])
    (tmp_path / "1.json").write_text('{"models": {}, "paused": "capacity"}')
    files.read()
    assert files.paused == "capacity"
    now[0] = 100.0
    files.read()
    assert files.paused is None
