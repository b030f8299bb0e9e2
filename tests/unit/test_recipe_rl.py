import statistics

import numpy as np
import pytest

from sweeper.recipes import policy_gradient, rl
from sweeper.recipes.rollouts import Rollout


def test_advantages_are_rewards_minus_the_mean_of_the_group():
    advantages = policy_gradient.advantages([0.0, 1.0, 0.5, 0.5], normalize_std=False)
    assert advantages == [-0.5, 0.5, 0.0, 0.0]


def test_normalized_advantages_have_unit_deviation():
    rewards = [0.1, 0.9, 0.4, 0.4, 0.7]
    normalized = policy_gradient.advantages(rewards, normalize_std=True)
    assert statistics.fmean(normalized) == pytest.approx(0.0, abs=1e-12)
    assert statistics.pstdev(normalized) == pytest.approx(1.0, abs=1e-5)
    plain = policy_gradient.advantages(rewards, normalize_std=False)
    assert np.sign(normalized).tolist() == np.sign(plain).tolist()


def test_kl_estimates_match_gaussians_of_known_kl():
    # q = N(0, 1), p = N(m, 1): KL(q || p) = m^2 / 2, the mean of k2 is m^2 / 2 + m^4 / 8.
    m = 0.3
    x = np.random.default_rng(0).normal(size=200_000)
    estimates = policy_gradient.kl_sample_train(
        (-(x**2) / 2).tolist(), (-((x - m) ** 2) / 2).tolist()
    )
    assert estimates["optim/kl_sample_train_v1"] == pytest.approx(m**2 / 2, abs=3e-3)
    assert estimates["optim/kl_sample_train_v2"] == pytest.approx(m**2 / 2 + m**4 / 8, abs=1e-3)


def test_the_entropy_bonus_favours_unlikely_tokens():
    logprobs = [-1.0, -2.0, -6.0]
    bonus = policy_gradient.entropy_bonus(logprobs, statistics.fmean(logprobs), coef=0.1)
    assert bonus == pytest.approx([-0.2, -0.1, 0.3])


def test_a_datum_pairs_sampled_tokens_with_logprobs_and_advantages():
    rollout = Rollout([7, 8], [-0.5, -1.5], "x", True, 1.0, True)
    datum = policy_gradient.to_datum([1, 2, 3], rollout, [0.25, 0.75])
    inputs = {key: value.to_numpy().tolist() for key, value in datum.loss_fn_inputs.items()}
    assert datum.model_input.to_ints() == [1, 2, 3, 7]
    assert inputs == {
        "target_tokens": [2, 3, 7, 8],
        "logprobs": [0.0, 0.0, -0.5, -1.5],
        "advantages": [0.0, 0.0, 0.25, 0.75],
    }


@pytest.mark.parametrize(("count", "parts"), [(8, 3), (9, 3), (2, 4), (5, 1), (0, 3)])
def test_substeps_share_a_batch_evenly(count, parts):
    batches = rl.split_evenly(list(range(count)), parts)
    assert [item for part in batches for item in part] == list(range(count))
    assert len(batches) == min(count, parts)
    sizes = {len(part) for part in batches}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert 0 not in sizes


def test_each_sample_has_a_reproducible_seed():
    keys = [(seed, step, n) for seed in range(3) for step in range(20) for n in range(16)]
    seeds = [rl.sampling_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert seeds == [rl.sampling_seed(*key) for key in keys]
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_kl_penalty_is_relative_to_the_mean():
    sampled, reference = [[-1.0, -2.0], [-3.0]], [[-1.5, -2.0], [-4.0]]
    penalty, metrics = policy_gradient.kl_penalty(sampled, reference, 0.1)
    assert metrics == {"kl_policy_base": pytest.approx(0.5)}
    assert penalty == [[pytest.approx(0.0), pytest.approx(0.05)], [pytest.approx(-0.05)]]


def ahead(steps, **settings):
    """Return the step whose weights sample each batch."""
    trainer = object.__new__(rl.GroupTrainer)
    trainer.config = rl.Config(max_steps=steps, **settings)
    trainer.under_way, begun = {}, {}
    for step in range(steps):
        trainer.begin_sampling = lambda batch, at=step: begun.setdefault(batch, at)
        trainer.sample_ahead(step)
    return [begun[batch] for batch in range(steps)]


def test_samples_are_never_older_than_allowed_and_restart_at_checkpoints():
    assert ahead(6) == [0, 1, 2, 3, 4, 5]
    assert ahead(7, max_steps_off_policy=2) == [0, 0, 0, 1, 2, 3, 4]
    assert ahead(9, max_steps_off_policy=2, save_every=4) == [0, 0, 0, 1, 4, 4, 4, 5, 8]
    for settings in ({"save_every": 4}, {"save_every": 1}, {}):
        at = ahead(12, max_steps_off_policy=3, **settings)
        assert all(0 <= step - begun <= 3 for step, begun in enumerate(at))
