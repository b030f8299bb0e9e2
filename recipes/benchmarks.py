"""Benchmarks of tinker-cookbook as items of an evaluation: `suite=cookbook:gsm8k`. The package's
environments make the prompts and grade the answers. Needs tinker-cookbook in the same
interpreter."""

import hashlib
import importlib
import importlib.util
import pkgutil
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from . import graders, settings
from .data_files import Checked
from .service import RecipeError
from .suites import Item

PREFIX = "cookbook:"
"""The prefix of suites that are benchmarks of tinker-cookbook."""

GRADER = "tinker-cookbook"
"""The name of the grader in the rows of benchmarks."""


class Played(NamedTuple):
    """The result of an episode: its first prompt, the text of all answers, and the number of
    their tokens. `ended` says whether the model ended the last answer. `expected` is the right
    answer ("" if unknown). `error` is set if the environment raised an error."""

    prompt: str
    text: str
    tokens: int
    ended: bool
    score: float
    expected: str
    error: str | None = None

    def row(self) -> dict[str, Any]:
        """Return the fields that the result adds to a row of `items.jsonl`."""
        row = {"sample": 0, "text": self.text, "tokens": self.tokens, "ended": self.ended}
        answer = {"answer": self.expected} if self.expected else {}
        judged = {"score": self.score, "grader": GRADER, "error": self.error}
        return {"prompt": self.prompt, **row, **answer, **judged}


class Waited(NamedTuple):
    """Pending episodes, with the interface of the SDK's futures."""

    played: "Future[list[Played]]"

    def result(self, timeout: float | None = None) -> list[Played]:
        """Wait for the results of all episodes."""
        return self.played.result(timeout)

    def future(self) -> "Future[list[Played]]":
        """Return the future of the results."""
        return self.played


def split(suite: str) -> tuple[str, list[str]]:
    """Split the setting `suite`, a list of names with commas. Return the names of sweeper's suites,
    joined by commas, and a list of the names of benchmarks."""
    parts = [part.strip() for part in suite.split(",") if part.strip()]
    built_in = [part for part in parts if not part.startswith(PREFIX)]
    return ",".join(built_in), [part.removeprefix(PREFIX) for part in parts if part not in built_in]


def _cookbook(module: str) -> Any:
    return importlib.import_module(f"tinker_cookbook.{module}")


def _not_installed(name: str) -> str:
    return (
        f"{PREFIX}{name} needs tinker-cookbook, which this interpreter does not have: run `pip "
        f"install tinker-cookbook`, or set launch.python to an interpreter that has it"
    )


def check(suite: str) -> Checked:
    """Check that tinker-cookbook is installed, while a grid with a benchmark is planned. The
    benchmark's name is checked when the run starts."""
    if importlib.util.find_spec("tinker_cookbook") is None:
        return Checked(_not_installed(suite.removeprefix(PREFIX)))
    return Checked(None)


def benchmark_of(name: str) -> Any:
    """Return the benchmark `name`. Raises RecipeError if the benchmark or the package does not
    exist."""
    try:
        package = _cookbook("eval.benchmarks")
    except ImportError as error:
        raise RecipeError(f"{_not_installed(name)} ({error})") from None
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            try:
                importlib.import_module(f"{package.__name__}.{module.name}")
            except ImportError:  # the benchmark needs an optional package
                continue
    if name not in package.REGISTRY:
        names = ", ".join(sorted(package.REGISTRY))
        raise RecipeError(f"suite={PREFIX}{name}: unknown benchmark; use one of {names}")
    return package.REGISTRY[name]


class About(NamedTuple):
    """The model of an evaluation, its `thinking` mode (None: tinker-cookbook's default), and the
    maximum number `most` of examples per benchmark (None: all)."""

    model_name: str
    thinking: str | None
    most: int | None


def _renderer_of(about: About) -> str:
    try:
        names = _cookbook("model_info").get_recommended_renderer_names(about.model_name)
    except (ValueError, KeyError):
        names = []
    for name in names:
        if about.thinking is None or ("disable_thinking" in name) == (about.thinking == "off"):
            return name
    model = about.model_name + (f" with thinking={about.thinking}" if names else "")
    raise RecipeError(f"tinker-cookbook knows no renderer for {model}: set renderer_name")


class Benchmarks:
    """The benchmarks of an evaluation, which run on their own event loop."""

    def __init__(
        self, names: Sequence[str], how: settings.Answering, about: About, tokenizer: Any
    ) -> None:
        import asyncio  # imported late: it takes ten milliseconds, and every plan loads this file

        renderer = how.renderer_name or _renderer_of(about)
        self._how, self._most, self._tokenizer = how, about.most, tokenizer
        self._renderer = _cookbook("renderers").get_renderer(renderer, tokenizer)
        self._named = {name: benchmark_of(name) for name in names}
        self._made: dict[tuple[str, int], dict[str, Any]] = {}
        self._where: dict[str, tuple[str, str]] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def items(self, taken: Collection[str] = ()) -> list[Item]:
        """Return the examples of all benchmarks in order, as items. `taken` has names that other
        suites already have. If a benchmark has one of these names, its items get the suite
        cookbook-NAME. Raises RecipeError if a data set cannot be loaded or has no examples."""
        items: list[Item] = []
        for name in self._named:
            for example in self._environments(name, 0):
                key = hashlib.sha256(f"{name}/{example}".encode()).hexdigest()[:16]
                self._where[key] = name, example
                empty = graders.Question("", "", ())
                suite = f"cookbook-{name}" if name in taken else name
                items.append(Item(key, suite, [], empty, GRADER, "", example))
        return items

    def name_of(self, item: Item) -> str:
        """Return the name of an item's benchmark."""
        return self._where[item.key][0]

    def begin(self, sampler: Any, item: Item, first: int, seeds: Sequence[int]) -> Waited:
        """Start an episode of an example for each seed, and return the pending episodes. They are
        the item's samples with the numbers `first`, `first` + 1 and so on."""
        import asyncio

        name, example = self._where[item.key]
        plays: list[Callable[[], Coroutine[Any, Any, Played]]] = []
        for number, seed in enumerate(seeds, first):
            if example not in self._environments(name, number):  # used up by earlier weights
                del self._made[name, number]
            environment = self._environments(name, number).pop(example)  # each plays one episode
            plays.append(lambda e=environment, s=seed: self._play(sampler, e, s))

        async def every() -> list[Played]:
            return [await play() for play in plays]

        return Waited(asyncio.run_coroutine_threadsafe(every(), self._loop))

    def close(self) -> None:
        """Stop the event loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _environments(self, name: str, sample: int) -> dict[str, Any]:
        if (name, sample) not in self._made:
            benchmark = self._named[name]
            benchmark_config = _cookbook("eval.benchmarks").BenchmarkConfig(
                max_examples=self._most,
                max_tokens=self._how.max_tokens,
                temperature=self._how.temperature,
                system_prompt=benchmark.recommended_system_prompt,
            )
            try:
                environments = benchmark.make_envs(self._renderer, benchmark_config)
            except Exception as error:
                reason = " ".join(str(error).split())[:300]
                message = f"suite={PREFIX}{name}: {type(error).__name__}: {reason}"
                raise RecipeError(message) from error
            if not environments:  # some benchmarks only log the reason
                raise RecipeError(f"suite={PREFIX}{name}: its data set has no examples here")
            self._made[name, sample] = {
                str(getattr(environment, "example_id", None) or place): environment
                for place, environment in enumerate(environments)
            }
        return self._made[name, sample]

    async def _play(self, sampler: Any, environment: Any, seed: int) -> Played:
        """Play one episode, turn by turn, until the environment ends it or raises an error."""
        import tinker

        begun: Any = await environment.initial_observation()
        if not isinstance(begun, tuple):  # a prompt that is too long
            return Played("", "", 0, False, 0.0, "")
        seen, stop = begun
        prompt = self._tokenizer.decode(seen.to_ints())
        texts: list[str] = []
        tokens, reward, turn = 0, 0.0, 0
        while True:
            params = tinker.SamplingParams(
                max_tokens=self._how.max_tokens,
                temperature=self._how.temperature,
                stop=stop,
                seed=(seed + turn) % 2**31,
            )
            answer = await sampler.sample(seen, 1, params)
            [sequence] = answer.sequences
            texts.append(self._tokenizer.decode(list(sequence.tokens), skip_special_tokens=True))
            extra = {"stop_reason": sequence.stop_reason}
            tokens += len(sequence.tokens)
            try:
                step = await environment.step(list(sequence.tokens), extra=extra)
            except Exception as error:  # noqa: BLE001  (tinker-cookbook's runner also gives up such an example)
                message = f"{type(error).__name__}: {error}"[:300]
                return Played(prompt, "\n".join(texts), tokens, False, 0.0, "", message)
            reward, turn = reward + step.reward, turn + 1
            if step.episode_done:
                ended = sequence.stop_reason == "stop"
                expected = str(step.logs.get("expected", ""))
                return Played(prompt, "\n".join(texts), tokens, ended, float(reward > 0), expected)
            seen, stop = step.next_observation, step.next_stop_condition


def wanted(suite: str | None) -> tuple[str | None, list[str]]:
    """Split the setting `suite` as `split` does, and check that the benchmarks exist. If `suite` is
    None, return None and no benchmarks. Raises RecipeError for an unknown benchmark."""
    if suite is None or PREFIX not in suite:
        return suite, []
    built_in, names = split(suite)
    for name in names:
        benchmark_of(name)
    return built_in, names
