"""The settings that recipes share, and functions that check or use them. `Place` has the model
and the folder, `Problems` the generated problems, `Training` how to train, `Settings` the data,
`ByOrder` sessions."""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import chz

from . import data_files, sandbox, tasks
from .service import RecipeError

C = TypeVar("C")

Auto = Literal["auto"]
AUTO: Auto = "auto"
"""The value of a setting whose number hyperparams.py chooses."""

# Settings that may change between a run's start and its resumption.
FREE = frozenset(
    {"log_path", "base_url", "save_every", "ttl_seconds", "wandb_project", "wandb_name"}
    | {"n_parallel_envs", "otlp"}
)


@chz.chz
class Place:
    """Settings for the model, initial weights, seed, service, log directory and W&B of a run."""

    model_name: str = chz.field(default="tiny/qwen3", doc="base model, as the service names it")
    load_checkpoint_path: str | None = chz.field(
        default=None, doc="start from these weights: tinker://..., or the log_path of another run"
    )
    seed: int = chz.field(
        default=0, doc="seed of the LoRA initialisation, and of the choice and order of data"
    )
    log_path: str = chz.field(default="runs/run", doc="directory for metrics and checkpoints")
    base_url: str | None = chz.field(
        default=None, doc="address of the service; default: $TINKER_BASE_URL, or the hosted one"
    )
    wandb_project: str | None = chz.field(
        default=None, doc="also log to this W&B project; default: $WANDB_PROJECT, if set"
    )
    wandb_name: str | None = chz.field(
        default=None, doc="the run's name at W&B; default: $WANDB_NAME, or chosen by W&B"
    )

    @chz.validate
    def _check_place(self) -> None:
        check_at_least(self, seed=0)
        if not self.log_path:
            raise ValueError("log_path must not be empty")


@chz.chz
class Problems(Place):
    """Settings of generated problems: the task, its difficulty, and the held-out problems."""

    task: Literal["addition", "reversal", "sorting"] = chz.field(
        default="sorting", doc="the kind of problems to generate"
    )
    digits: int = chz.field(default=1, doc="addition: digits of each number, 1 to 8")
    length: int = chz.field(default=5, doc="reversal, sorting: letters of a word, 1 to 12")
    letters: int = chz.field(default=8, doc="reversal, sorting: size of the alphabet, 2 to 26")
    test_size: int = chz.field(default=64, doc="examples held out, the same for every seed")

    @chz.validate
    def _check_problems(self) -> None:
        check_problems(self)


@chz.chz
class Thinking:
    """The setting `thinking`; see thinking.py."""

    thinking: Literal["on", "off"] | None = chz.field(
        default=None,
        doc="whether the model thinks before answers; default: as recorded with the initial "
        "weights, else the chat template's",
    )


@chz.chz
class Answering:
    """Settings for the answers to evaluation questions, and for grading these answers."""

    grader: str = chz.field(
        default="exact",
        doc="for lines without their own: exact, numeric, regex, choice, path/to/file.py:function",
    )
    samples: int = chz.field(default=1, doc="answers to each question; more than one gives pass@k")
    temperature: float = chz.field(default=0.0, doc="sampling temperature; 0: the likeliest token")
    max_tokens: int = chz.field(default=64, doc="longest answer, in tokens")
    in_flight: int = chz.field(default=32, doc="questions asked at once")
    function_seconds: float = chz.field(
        default=5.0, doc="time limit of a call of a grader's function"
    )
    function_megabytes: int = chz.field(default=512, doc="memory limit of a grader's function")
    renderer_name: str | None = chz.field(
        default=None, doc="renderer of tinker-cookbook's benchmarks; default: by the model's name"
    )

    @chz.validate
    def _check_answering(self) -> None:
        check_answering(self)


@chz.chz
class Infrequent:
    """A second evaluation during training, which takes place less often than the first."""

    suites: list[str] | None = chz.field(default=None, doc="default: eval.suites")
    every: int = chz.field(default=100, doc="steps between evaluations; 0: first and last only")
    items: int | None = chz.field(default=None, doc="only this many items of each suite")

    @chz.validate
    def _check_infrequent(self) -> None:
        check_tier(self)


@chz.chz
class Suites(Answering):
    """Evaluation of suites in a run that trains; see evaluating.py."""

    suites: list[str] = chz.field(doc="tasks, arithmetic, JSONL files, cookbook:gsm8k")
    every: int = chz.field(default=20, doc="steps between evaluations; 0: first and last only")
    items: int | None = chz.field(
        default=100, doc="use only this many items of each suite, the first ones; None: all"
    )
    infrequent: Infrequent | None = chz.field(
        default=None, doc="a rarer evaluation: its own suites, every and items"
    )

    @chz.validate
    def _check_suites(self) -> None:
        check_answering(self)
        check_tier(self)


@chz.chz
class Evaluated:
    """The setting `eval`: suites that are evaluated during training."""

    eval: Suites | None = chz.field(
        default=None, doc="evaluate while training: {suites: [...], every: 20, items: 100}"
    )


@chz.chz
class Training(Place, Thinking):
    """Optimizer, evaluation and checkpoints of a run that trains."""

    learning_rate: float | Auto = chz.field(
        default=8e-3, doc="Adam's initial rate; auto: by the model (hyperparams.py)"
    )
    lr_schedule: Literal["constant", "linear"] = chz.field(
        default="linear", doc="linear: falls to zero over max_steps"
    )
    warmup_steps: int = chz.field(
        default=0, doc="number of steps over which the rate rises to learning_rate"
    )
    lora_rank: int | Auto = chz.field(
        default=16, doc="rank of a new LoRA adapter; auto: by the amount of data"
    )
    max_steps: int = chz.field(default=80, doc="steps to train")
    eval_every: int = chz.field(default=20, doc="steps between evaluations; 0: first and last only")
    save_every: int = chz.field(default=0, doc="steps between checkpoints; 0: the final one only")
    ttl_seconds: int | None = chz.field(
        default=604800, doc="seconds that the service keeps checkpoints other than the final one"
    )

    @chz.validate
    def _check_training(self) -> None:
        check_at_least(self, max_steps=1, eval_every=0, save_every=0, warmup_steps=0)
        if self.lora_rank != AUTO:
            check_at_least(self, lora_rank=1)
        if self.learning_rate != AUTO:
            check_positive(self, "learning_rate")
        if self.ttl_seconds is not None and self.ttl_seconds < 3600:
            raise ValueError(f"ttl_seconds must be at least 3600, not {self.ttl_seconds}")


@chz.chz
class Policy(Training):
    """Sampling and training of a policy."""

    groups_per_batch: int = chz.field(default=16, doc="questions per step")
    group_size: int = chz.field(default=16, doc="answers sampled for each question")
    max_tokens: int = chz.field(default=16, doc="longest answer sampled, in tokens")
    temperature: float = chz.field(
        default=1.0, doc="sampling temperature; other than 1.0 changes the model's distribution"
    )
    normalize_std: bool = chz.field(
        default=False, doc="divide advantages by the standard deviation of their group"
    )
    entropy_coef: float = chz.field(
        default=0.0, doc="bonus for unlikely tokens, in reward per nat: keeps the model exploring"
    )
    kl_penalty_coef: float = chz.field(
        default=0.0, doc="penalty for leaving the reference, in reward per nat"
    )
    kl_reference: str | None = chz.field(
        default=None, doc="base model, log_path or tinker://...; default: the initial weights"
    )
    remove_constant_reward_groups: bool | None = chz.field(
        default=None,
        doc="drop groups whose rewards are all equal; default: yes, unless entropy_coef or "
        "kl_penalty_coef is set",
    )
    max_steps_off_policy: int = chz.field(
        default=0, doc="sample ahead, from weights at most this many steps old; 0: do not"
    )
    loss_fn: Literal["importance_sampling", "ppo", "cispo"] = chz.field(
        default="importance_sampling", doc="the service's loss"
    )
    num_substeps: int = chz.field(default=1, doc="optimizer steps that a batch is divided into")
    max_steps: int = chz.field(default=60, doc="steps to train")
    num_groups_to_log: int = chz.field(default=4, doc="groups in each transcript; 0: none")
    otlp: str | None = chz.field(
        default=None, doc="send each episode to this OpenTelemetry collector: http://HOST:4318"
    )

    @chz.validate
    def _check_policy(self) -> None:
        check_at_least(self, groups_per_batch=1, group_size=2, max_tokens=1)
        check_at_least(self, num_substeps=1, num_groups_to_log=0, max_steps_off_policy=0)
        check_positive(self, "temperature")
        if self.otlp is not None:
            from sweeper.telemetry import check_collector

            check_collector(self.otlp)
        for key in ("entropy_coef", "kl_penalty_coef"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{key} must be at least 0, not {value}")


@chz.chz
class Tasks:
    """Settings that choose a run's terminal tasks; see sweeper.sandbox.tasks.Choice."""

    tasks: str = chz.field(
        doc="folder of the tasks (sweeper doctor tasks); with dataset, a checkout of its repository"
    )
    task_ids: str | None = chz.field(
        default=None, doc="only these: names and globs, separated by commas; !NAME leaves one out"
    )
    dataset: str | None = chz.field(
        default=None, doc="tasks of this data set in the registry: NAME@VERSION"
    )
    registry: str | None = chz.field(
        default=None,
        doc="registry file of Harbor or Terminal-Bench; default: registry.json in the folder tasks",
    )


@chz.chz
class ByOrder:
    """Settings of a run whose steps a client requests one after the other; see session.py."""

    checkpoint_steps: int = chz.field(
        default=10, doc="automatic checkpoint after this many unsaved steps; 0: never"
    )
    checkpoint_reward: float | None = chz.field(
        default=None, doc="automatic checkpoints only if a step's reward is at least this"
    )
    idle_minutes: float = chz.field(
        default=60.0, doc="finish after this many minutes without an order"
    )


@chz.chz
class Settings(Training, Problems):
    """Training data of a run that trains on questions and answers, and how it trains."""

    train_size: int = chz.field(default=1000, doc="maximum number of problems to train on")
    wrong_share: float = chz.field(
        default=0.0, doc="share of generated training problems with a wrong answer, such as 0.1"
    )
    data: str | None = chz.field(
        default=None,
        doc='JSONL of {"messages": [{"role", "content"}]} or {"prompt", "answer"}; '
        "default: problems of the task",
    )
    max_length: int = chz.field(
        default=1024, doc="longest example, in tokens; longer ones are left out"
    )

    @chz.validate
    def _check_settings(self) -> None:
        check_settings(self)


def check_problems(config: Problems) -> None:
    """Raise ValueError for invalid problem settings. Classes with several base classes call this in
    their own check, because chz would run only the checks of the first base class."""
    check_at_least(config, test_size=1)
    for key, low, high in (("digits", 1, 8), ("length", 1, 12), ("letters", 2, 26)):
        if not low <= getattr(config, key) <= high:
            raise ValueError(f"{key} must be from {low} to {high}, not {getattr(config, key)}")


def check_answering(config: Answering) -> None:
    """Raise ValueError for invalid settings of answers; see `check_problems`."""
    check_at_least(config, samples=1, max_tokens=1, in_flight=1, function_megabytes=32)
    check_positive(config, "function_seconds")
    if not (math.isfinite(config.temperature) and config.temperature >= 0):
        raise ValueError(f"temperature must be at least 0, not {config.temperature}")
    if config.samples > 1 and config.temperature == 0:
        raise ValueError(
            "all samples are the same at temperature 0: set samples to 1, or raise temperature"
        )


def check_tier(tier: Suites | Infrequent) -> None:
    """Raise ValueError if `suites`, `items` or `every` is invalid."""
    check_at_least(tier, every=0)
    if tier.items is not None:
        check_at_least(tier, items=1)
    if tier.suites is not None and not (tier.suites and all(map(str.strip, tier.suites))):
        raise ValueError("suites must name at least one suite, as in [gsm8k.jsonl, cookbook:gsm8k]")


def due(every: int, step: int) -> bool:
    """Return whether `step` is 0 or, if `every` is not 0, a multiple of `every`."""
    return step == 0 or bool(every and step % every == 0)


def made(config_class: type[C], values: Mapping[str, Any]) -> C:
    """Build a `config_class` from a run's values. A key such as `eval.every` sets the field `every`
    of the setting `eval`."""
    if not any("." in key for key in values):
        return config_class(**values)
    return chz.Blueprint(config_class).apply(dict(values)).make()


def check_settings(config: Settings) -> None:
    """Raise ValueError for invalid data settings; see `check_problems`."""
    check_problems(config)
    check_at_least(config, train_size=1, max_length=2)
    if not 0 <= config.wrong_share <= 1:
        raise ValueError(f"wrong_share must be from 0 to 1, not {config.wrong_share}")
    if config.wrong_share and config.data is not None:
        raise ValueError(
            "wrong_share works only for generated problems: remove wrong_share or data"
        )


def without_order(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a session without the settings of `ByOrder`, which rl.py and sft.py do
    not have."""
    return {key: value for key, value in values.items() if key not in chz.chz_fields(ByOrder)}


def check_by_order(config: ByOrder) -> None:
    """Raise ValueError for invalid session settings; see `check_problems`."""
    check_at_least(config, checkpoint_steps=0)
    check_positive(config, "idle_minutes")


def check_at_least(config: object, **minimums: int) -> None:
    """Raise ValueError for the first field in `minimums` that is smaller than its minimum."""
    for key, value in minimums.items():
        if getattr(config, key) < value:
            raise ValueError(f"{key} must be at least {value}, not {getattr(config, key)}")


def check_positive(config: object, key: str) -> None:
    """Raise ValueError if a field is not a finite number above zero."""
    value = getattr(config, key)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{key} must be positive, not {value}")


def check_data(
    values: Mapping[str, Any],
    parse: Callable[[data_files.Row], Any] = tasks.conversation,
    split: data_files.Split = tasks.split,
) -> data_files.Checked:
    """Check the file `data` of a run while its grid is planned."""
    if values.get("data") is None or comes_later(values["data"]):
        return data_files.Checked(None)
    test_size = values.get("test_size", chz.chz_fields(Settings)["test_size"]._default)
    checked = data_files.check(str(values["data"]), parse, split, test_size)
    return checked if checked.mistake is None else data_files.Checked(f"data: {checked.mistake}")


def lacks(
    values: Mapping[str, Any], parse: Callable[[data_files.Row], Any] = tasks.conversation
) -> list[str]:
    """Return a list with the mistake in the file `data` of a run; empty if the file has no
    mistake."""
    mistake = check_data(values, parse).mistake
    return [] if mistake is None else [mistake]


def notes(values: Mapping[str, Any], checked: data_files.Checked | None = None) -> list[str]:
    """Return the plan's notes on a run's data, and on missing folders of other runs."""
    return [*(checked or check_data(values)).notes, *missing_folders(values)]


def comes_later(value: object) -> bool:
    """Return whether a value is still a reference (`${...}`) to a run of an earlier stage."""
    return "${" in str(value)


def lacking_function(values: Mapping[str, Any], key: str) -> list[str]:
    """Return a list with the mistake in the file of a user function; empty if the file has no
    mistake. The file is not executed."""
    if comes_later(values[key]):
        return []
    try:
        sandbox.check_source(str(values[key]))
    except RecipeError as error:
        return [f"{key}: {error}"]
    return []


def missing_folders(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting that names another run's folder, if this folder is missing."""
    missing: list[str] = []
    for key in ("load_checkpoint_path", "reward_model", "kl_reference"):
        path = str(values.get(key) or "tinker://")
        may_be_model = key == "kl_reference" and not path.startswith(("/", "."))
        elsewhere = path.startswith("tinker://") or comes_later(path)
        if not (elsewhere or may_be_model or os.path.isdir(path)):
            missing.append(f"{key}={path} does not exist yet: a run needs a checkpoint there")
    return missing


def load_data(
    config: Settings,
    parse: Callable[[data_files.Row], data_files.Conversation] = tasks.conversation,
) -> tasks.Split:
    """Return the conversations of `data`, or of the generated task if `data` is None."""
    if config.data is not None:
        return tasks.load(config.data, config.test_size, parse)
    data = tasks.generate(task_of(config), config.train_size, config.test_size, config.seed)
    return data._replace(train=tasks.with_wrong(data.train, config.wrong_share, config.seed))


def task_of(config: Problems) -> tasks.Task:
    """Return the configured task."""
    return task_named(config, config.task)


def task_named(config: Problems, name: str) -> tasks.Task:
    """Return the task `name` with the configured digits, length and letters."""
    if name == "addition":
        return tasks.addition(config.digits)
    if name == "reversal":
        return tasks.reversal(config.length, config.letters)
    return tasks.sorting(config.length, config.letters)


def learning_rate_at(config: Training, step: int) -> float:
    """Return the learning rate of a step (0 <= step < max_steps).

    A run that starts from another run's checkpoint has a new optimizer. In its first steps, a
    new optimizer does not know how large the gradients are, and moves all weights equally far. A
    warm-up makes these steps smaller, so that they preserve what was learned.
    """
    rate = float(config.learning_rate) * min(1.0, (step + 1) / (config.warmup_steps + 1))
    if config.lr_schedule == "constant":
        return rate
    return rate * (1.0 - step / config.max_steps)
