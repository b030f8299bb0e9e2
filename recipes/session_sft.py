"""SFT by order: runs the steps of sft.py when a client requests them; see session.py."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import chz

from . import chat, estimates, service, settings, sft, tasks
from .session import Refused, Session
from .trainer import run

if TYPE_CHECKING:
    import tinker


@chz.chz
class Config(sft.Config, settings.ByOrder):
    """Configuration of a session. The same orders give the same metrics."""

    log_path: str = chz.field(default="runs/session", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check_session(self) -> None:
        settings.check_by_order(self)
        if self.checkpoint_reward is not None:
            raise ValueError("checkpoint_reward is for sessions that have a reward")


class SupervisedSession(Session, sft.SupervisedTrainer):
    """See `Session`."""

    config: Any
    ordered_data: "list[tinker.Datum] | None" = None

    def begin(self) -> None:
        """Do nothing, because the steps need no sampler."""

    def advance(self, step: int) -> None:
        """Run a step and wait for it."""
        self.complete(self.submit(step))

    def take(self, conversations: Sequence[tasks.Conversation] | None) -> None:
        """Set the conversations to train on. Each step trains on all of them."""
        if conversations is None:
            self.ordered_data = None
            return
        try:
            examples = chat.render_all(
                self.tokenizer, conversations, self.config.max_length, self.learn
            )
        except service.RecipeError as error:
            raise Refused(str(error)) from None
        self.ordered_data = [chat.to_datum(example) for example in examples]

    def shown_at(self, step: int) -> "list[tinker.Datum]":
        """Return the examples sent with the current order, else the recipe's examples."""
        return super().shown_at(step) if self.ordered_data is None else self.ordered_data

    def sampler_now(self) -> Any:
        """Return a future of a client that samples with the current weights."""
        return self.training.save_weights_and_get_sampling_client()


lacks = sft.lacks


def notes(values: Mapping[str, Any]) -> list[str]:
    """See `sft.notes`."""
    return sft.notes(settings.without_order(values))


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a session that trains `max_steps` steps; see estimates.py."""
    return sft.estimate(settings.without_order(values))


def main(config: Config) -> None:
    """Execute a session's orders. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    run("sft", SupervisedSession, config)


if __name__ == "__main__":
    service.run_program(main, Config)
