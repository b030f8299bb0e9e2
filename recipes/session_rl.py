"""GRPO by order: runs the steps of rl.py when a client requests them; see session.py."""

from collections.abc import Mapping, Sequence
from typing import Any

import chz

from . import estimates, rl, service, settings, tasks
from .rollouts import Problem
from .session import Refused, Session
from .trainer import run

lacks = rl.lacks


@chz.chz
class Config(rl.Config, settings.ByOrder):
    """Configuration of a session. The same orders give the same metrics."""

    log_path: str = chz.field(default="runs/session", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check_session(self) -> None:
        settings.check_by_order(self)
        if self.max_steps_off_policy:
            raise ValueError(
                "max_steps_off_policy must be 0, because orders are not known in advance"
            )


class GroupSession(Session, rl.GroupTrainer):
    """See `Session`."""

    config: Any
    ordered_problems: list[Problem] | None = None

    def begin(self) -> None:
        """Open a sampler."""
        self.begin_sampler()

    def take(self, conversations: Sequence[tasks.Conversation] | None) -> None:
        """Set the questions and right answers. Each step asks each question `group_size` times."""
        try:
            problems = None if conversations is None else self.problems(list(conversations))
        except service.RecipeError as error:
            raise Refused(str(error)) from None
        self.ordered_problems = problems

    def asked_at(self, step: int) -> list[Problem]:
        """Return the questions sent with the current order, else the recipe's questions."""
        return super().asked_at(step) if self.ordered_problems is None else self.ordered_problems

    def sampler_now(self) -> Any:
        """Return a future of the client with which the training steps sample."""
        return self.sampler


def notes(values: Mapping[str, Any]) -> list[str]:
    """See `rl.notes`."""
    return rl.notes(settings.without_order(values))


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a session that trains `max_steps` steps; see estimates.py."""
    return rl.estimate(settings.without_order(values))


def main(config: Config) -> None:
    """Execute a session's orders. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    run("rl", GroupSession, config)


if __name__ == "__main__":
    service.run_program(main, Config)
