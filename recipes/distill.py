"""Distillation: learn from a teacher, which is another model or a trained checkpoint: `python -m
sweeper.recipes.distill teacher=tiny/teacher mode=on_policy log_path=/tmp/distill`."""

# `on_policy`: the student answers, and the teacher computes the logprob of each token. A token's
# advantage is log teacher - log student. Its mean is minus the reverse KL divergence, which
# training reduces (Agarwal et al. 2023, arXiv:2306.13649). Rewards are not used for training; the
# metrics report them for information. With `kl_top_k` the divergence is taken over the likeliest
# tokens at each position instead of the sampled token alone (top_k.py).
#
# `off_policy`: the teacher answers, and the student is trained on the answers as in sft.py (Kim and
# Rush 2016, arXiv:1606.07947). The teacher's answers to the training questions are sampled at the
# start.
#
# Several teachers have weights: `teacher=0.7*tiny/teacher,0.3*/runs/sft`. On-policy, the teachers'
# logprobs are averaged with these weights. Off-policy, each teacher answers its share of the
# questions.

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import chz

from . import (
    chat,
    estimates,
    evaluating,
    hyperparams,
    policy_gradient,
    preview,
    rl,
    samplers,
    service,
    settings,
    sft,
    tasks,
    top_k,
)
from .rollouts import Group, Problem, Rollout
from .trainer import Trainer, run

if TYPE_CHECKING:
    import tinker


@chz.chz
class Config(rl.Config):
    """Configuration of a run. The same configuration gives the same metrics."""

    teacher: str = chz.field(
        default="tiny/teacher",
        doc="base model, log_path or tinker://...; several: 0.7*one,0.3*another",
    )
    mode: Literal["on_policy", "off_policy"] = chz.field(
        default="on_policy", doc="which model answers: the student or the teacher"
    )
    kl_penalty_coef: float = chz.field(
        default=1.0, doc="on-policy: factor of the advantages, which are log teacher - log student"
    )
    kl_discount_factor: float = chz.field(
        default=0.0, doc="on-policy: discount factor of later tokens' advantages, 0 to 1"
    )
    kl_top_k: int = chz.field(
        default=0,
        doc="on-policy: compare this many of the likeliest tokens; 0: only the sampled token",
    )
    teacher_temperature: float = chz.field(
        default=1.0, doc="off-policy: temperature of the teacher's samples; 0: greedy"
    )
    batch_size: int = chz.field(default=32, doc="off-policy: examples per step")
    log_path: str = chz.field(default="runs/distill", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check_teacher(self) -> None:
        settings.check_at_least(self, batch_size=1, kl_top_k=0)
        if self.kl_top_k:
            _check_top_k(self)
        teachers_of(self.teacher)
        if not 0 <= self.kl_discount_factor <= 1:
            raise ValueError(
                f"kl_discount_factor must be from 0 to 1, not {self.kl_discount_factor}"
            )
        temperature = self.teacher_temperature
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ValueError(f"teacher_temperature must be at least 0, not {temperature}")


def _check_top_k(config: Config) -> None:
    """Raise ValueError for settings that conflict with `kl_top_k`."""
    fixed = {"temperature": 1.0, "kl_discount_factor": 0.0, "loss_fn": "importance_sampling"}
    for key, usual in fixed.items():
        if (value := getattr(config, key)) != usual:
            raise ValueError(f"kl_top_k={config.kl_top_k} needs {key}={usual}, not {value}")


lacks = rl.lacks


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run: the values chosen for `auto`, and notes on its data."""
    return [
        *hyperparams.notes("distill", Config, values),
        *settings.notes(values),
        *evaluating.notes(values),
    ]


def main(config: Config) -> None:
    """Train or resume. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    kinds: dict[str, type[Trainer]] = {"on_policy": OnPolicy, "off_policy": OffPolicy}
    run("distill", kinds[config.mode], config)


def examples(values: Mapping[str, Any], count: int) -> preview.Document:
    """Return the first questions of a run; see preview.py."""
    return preview.of_questions(settings.made(Config, values), count)[0]


def samples(values: Mapping[str, Any], count: int, checkpoint: str) -> preview.Document:
    """Return the first questions of a run, with answers sampled from `checkpoint` and the rewards
    of the answers."""
    from .sampled_preview import of_groups  # imported late, since it imports this module

    return of_groups(settings.made(Config, values), count, checkpoint)


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a run with these values; see estimates.py."""
    config = settings.made(Config, values)
    train, test = estimates.split_sizes(config)
    teachers = [estimates.model_of(config, name) for _, name in teachers_of(config.teacher)]
    size = estimates.sampled_size(config, train)
    if config.mode == "on_policy":
        tally = estimates.tally_groups(config)
        evaluating.tally(tally, config)
        answers = config.max_steps * config.groups_per_batch * config.group_size
        passes = 2 if config.kl_top_k else 1
        for teacher in teachers:
            tally.add(teacher, "prefill", passes * answers * (train.prompt + size))
        return tally.counts()
    tally = estimates.Tally()
    for teacher in teachers:
        tally.add(teacher, "prefill", train.number / len(teachers) * train.prompt)
        tally.add(teacher, "sample", train.number / len(teachers) * size)
    passed = config.max_steps * config.batch_size * (train.prompt + size - 1)
    tally.add(config.model_name, "train", passed)
    sft.tally_evaluation(tally, config.model_name, test, estimates.evaluations(config))
    evaluating.tally(tally, config)
    return tally.counts()


def teachers_of(text: str) -> list[tuple[float, str]]:
    """Parse the setting `teacher`. Return the weight and the name of each teacher. The weights
    add up to 1. Raises ValueError for an invalid text."""
    teachers: list[tuple[float, str]] = []
    for part in text.split(","):
        before, star, name = part.strip().rpartition("*")
        try:
            weight = float(before) if star else 1.0
        except ValueError:
            weight = math.nan
        if not name.strip() or not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"teacher={text}: write a name, or 0.7*one,0.3*another")
        teachers.append((weight, name.strip()))
    total = sum(weight for weight, _ in teachers)
    return [(weight / total, name) for weight, name in teachers]


class Teacher(NamedTuple):
    """A teacher and its weight."""

    weight: float
    sampler: "tinker.SamplingClient"


def open_teachers(connection: service.Service, config: Config) -> list[Teacher]:
    """Open the configured teachers."""
    return [
        Teacher(weight, samplers.open_named(connection, name, config.model_name, None))
        for weight, name in teachers_of(config.teacher)
    ]


class OnPolicy(rl.GroupTrainer):
    """The loop of RL, with advantages from the teacher's logprobs of the student's tokens."""

    shown: ClassVar = ("teacher_kl", "env/all/correct", "test/accuracy")

    def prepare(self, data: tasks.Split) -> None:
        """Render the questions, and open the teachers."""
        super().prepare(data)
        self.teachers = open_teachers(self.connection, self.config)

    def open_reference(self) -> "tinker.SamplingClient | None":
        """Return None: the teachers are the only references."""
        return None

    @property
    def drops_constant(self) -> bool:
        """Whether groups whose rewards are all equal are dropped. By default they are kept,
        because training does not use the rewards."""
        return bool(self.config.remove_constant_reward_groups)

    def token_advantages(self, groups: list[Group]) -> tuple[list[Any], dict[str, float]]:
        """Return the advantage of each sampled token, and the metric `teacher_kl`. A token's gap
        is the weighted mean of the teachers' logprobs minus the student's logprob. The advantage
        is `kl_penalty_coef` times the discounted sum of the gaps of the token and all later
        tokens. With `kl_top_k`, return the result of the method `top_k`."""
        config = self.config
        if config.kl_top_k:
            return self.top_k(groups)
        sampled = [rollout.logprobs for group in groups for rollout in group.rollouts]
        taught = [self.logprobs_by(teacher.sampler, groups) for teacher in self.teachers]
        weights = [teacher.weight for teacher in self.teachers]
        gaps = [
            [
                sum(w * logprob for w, logprob in zip(weights, by_teacher, strict=True)) - student
                for student, *by_teacher in zip(*logprobs, strict=True)
            ]
            for logprobs in zip(sampled, *taught, strict=True)
        ]
        count = sum(map(len, gaps))
        later = (policy_gradient.discounted(values, config.kl_discount_factor) for values in gaps)
        advantages = [[config.kl_penalty_coef * gap for gap in of_rollout] for of_rollout in later]
        return advantages, {"teacher_kl": -sum(map(sum, gaps)) / count} if count else {}

    def ask(
        self, sampler: "tinker.SamplingClient", problem: Problem, count: int, **params: Any
    ) -> rl.SampleRequest:
        """Submit a request for answers. If `kl_top_k` is set and the temperature is not 0, also
        request the student's likeliest tokens at each position."""
        k = self.config.kl_top_k
        if not k or not params["temperature"]:
            return super().ask(sampler, problem, count, **params)
        import tinker

        prompt = tinker.ModelInput.from_ints(problem.prompt)
        parameters = tinker.SamplingParams(stop=[problem.end], **params)
        return sampler.sample(prompt, count, parameters, topk_sample_logprobs=k)

    def top_k(self, groups: list[Group]) -> tuple[list[Any], dict[str, float]]:
        """Return the loss weights of the student's likeliest tokens at each position, and two
        metrics of the student's divergence from the teachers. `teacher_kl` is computed from the
        sampled tokens, and `teacher_kl_top_k` from the likeliest tokens."""
        import numpy as np

        answers = [(group.problem.prompt, r) for group in groups for r in group.rollouts]
        samplers = [teacher.sampler for teacher in self.teachers]
        pending = [[top_k.begin(sampler, *answer) for sampler in samplers] for answer in answers]
        weights: list[Any] = []
        apart: list[float] = []
        nearer: list[float] = []
        for (prompt, rollout), requests in zip(answers, pending, strict=True):
            taught = [top_k.taught(self.wait(request), prompt, rollout) for request in requests]
            parts = [teacher.weight for teacher in self.teachers]
            student = [[value for _, value in row] for row in rollout.likeliest]
            by_teacher = list(zip(parts, (values for _, values in taught), strict=True))
            slopes = top_k.slopes(student, by_teacher)
            weights.append(-self.config.kl_penalty_coef * slopes.by_value)
            nearer += slopes.divergence.tolist()
            by_teachers = np.average([sampled for sampled, _ in taught], axis=0, weights=parts)
            apart += (np.array(rollout.logprobs) - by_teachers).tolist()
        if not apart:
            return weights, {}
        return weights, {
            "teacher_kl": sum(apart) / len(apart),
            "teacher_kl_top_k": sum(nearer) / len(nearer),
        }

    @property
    def loss_fn(self) -> Any:
        """The name of the loss function. With `kl_top_k` it is `cross_entropy`: a weighted sum
        of logprobs."""
        return "cross_entropy" if self.config.kl_top_k else super().loss_fn

    def to_datum(self, prompt: list[int], rollout: Rollout, by_token: Any) -> "tinker.Datum":
        """Return a training datum, whose targets are the likeliest tokens if `kl_top_k` is set."""
        if self.config.kl_top_k:
            return top_k.to_datum(prompt, rollout, by_token)
        return super().to_datum(prompt, rollout, by_token)


class OffPolicy(sft.SupervisedTrainer):
    """SFT on the teachers' answers."""

    config: Any
    shown: ClassVar = ("train_mean_nll", "test/nll", "test/accuracy")

    @property
    def learn(self) -> chat.Learned:
        """An evaluation scores all messages of the assistant in held-out conversations."""
        return "all_assistant_messages"

    def render_train(self, data: tasks.Split) -> list[chat.Example]:
        """Return the training questions with the teachers' answers. A question is left out if
        its prompt plus `max_tokens` exceeds `max_length`, or if its answer was cut off. A resumed
        run asks the teachers again and gets the same answers."""
        import tinker

        config: Config = self.config
        teachers = open_teachers(self.connection, config)
        draw = random.Random(f"teachers/{config.seed}")
        requests: list[tuple[list[int], Any]] = []
        for number, conversation in enumerate(data.train):
            [teacher] = draw.choices(teachers, [teacher.weight for teacher in teachers])
            prompt, end = chat.render_prompt(self.tokenizer, conversation[:-1])
            if len(prompt) + config.max_tokens > config.max_length:
                continue
            params = tinker.SamplingParams(
                max_tokens=config.max_tokens,
                temperature=config.teacher_temperature,
                stop=[end],
                seed=policy_gradient.sampling_seed(config.seed, 0, number),
            )
            request = teacher.sampler.sample(tinker.ModelInput.from_ints(prompt), 1, params)
            requests.append((prompt, request))
        examples: list[chat.Example] = []
        for prompt, request in requests:
            sequence = self.wait(request).sequences[0]
            if sequence.stop_reason == "stop":
                tokens = list(sequence.tokens)
                weights = [0.0] * len(prompt) + [1.0] * len(tokens)
                examples.append(chat.Example(prompt + tokens, weights, len(prompt)))
        every = len(data.train)
        for count, reason in (
            (every - len(requests), f"left out: longer than max_length={config.max_length}"),
            (
                len(requests) - len(examples),
                f"left out: their answers did not end within max_tokens={config.max_tokens}",
            ),
            (len(examples), "answered by the teacher"),
        ):
            if count:
                print(f"{count} of {every} questions {reason}", flush=True)
        if not examples:
            raise service.RecipeError(
                f"the teacher completed no answer within max_tokens={config.max_tokens}"
            )
        return examples


if __name__ == "__main__":
    service.run_program(main, Config)
