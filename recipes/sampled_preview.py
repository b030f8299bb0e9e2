"""Shows samples of a checkpoint with their rewards, as they occur in a step of RL: the hook
`samples` of recipes."""

from collections.abc import Sequence
from typing import Any

import chz

from . import preview, rl, rollouts, samplers, service, thinking
from .policy_gradient import sampling_seed


class _Sampling(rl.GroupTrainer):
    """The loop of RL without training: it only samples and judges."""

    def __init__(
        self,
        config: Any,
        connection: service.Service,
        tokenizer: Any,
        questions: Sequence[rollouts.Problem],
    ) -> None:
        self.config, self.tokenizer, self.questions = config, tokenizer, list(questions)
        self.connection, self.wait = connection, connection.wait
        self.reward = self.open_reward()


def of_groups(config: Any, count: int, checkpoint: str) -> preview.Document:
    """Return the first prompts of an RL run, each with a group of samples from a checkpoint."""
    config = chz.replace(config, load_checkpoint_path=checkpoint)
    with preview.printed() as about:
        connection = service.connect(config.base_url, {"recipe": "data"})
        sampler = samplers.open_sampler(connection, config.model_name, checkpoint)
        thinks = thinking.resolved(connection, config, {})
        tokenizer = thinking.applied(service.tokenizer_of(sampler), thinks, config.model_name)
        document, questions = preview.of_questions(config, count, tokenizer)
        loop = _Sampling(config, connection, tokenizer, questions)
        try:
            requests = [
                loop.ask(
                    sampler,
                    question,
                    config.group_size,
                    max_tokens=config.max_tokens,
                    temperature=config.temperature,
                    seed=sampling_seed(config.seed, 0, number),
                )
                for number, question in enumerate(questions)
            ]
            pairs = zip(questions, requests, strict=True)
            groups = [judged() for judged in [loop.begin_group(*pair) for pair in pairs]]
        finally:
            loop.close()
            connection.close()
    for shown, group in zip(document["examples"], groups, strict=True):
        shown["samples"] = [
            {"text": r.text, "reward": r.reward, "ended": r.ended} for r in group.rollouts
        ]
    document["about"] += about
    return document
