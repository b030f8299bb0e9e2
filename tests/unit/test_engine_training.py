"""Losses and the optimizer compared with their formulas; batches and their errors."""

import numpy as np
import pytest

from sweeper.engine import losses, optimizer
from sweeper.engine.array_types import Arrays
from sweeper.engine.batches import ROWS, Datum, check, microbatches
from sweeper.engine.errors import RequestError
from sweeper.engine.net import Shape
from sweeper.engine.optimizer import AdamParams, Moments

SHAPE = Shape(vocab=11, hidden=8, mlp=12, layers=2, heads=4, kv_heads=2, head=4, context=16)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def inputs_for(rng, size):
    return {
        "weights": rng.normal(size=size),
        "logprobs": rng.normal(size=size) - 2,
        "advantages": rng.normal(size=size),
        losses.RECORDED: rng.normal(size=size) - 2,
    }


def test_losses_match_their_closed_forms(rng):
    logprobs, inputs = rng.normal(size=(5, 1)) - 2, inputs_for(rng, (5, 1))
    loss, _ = losses.LOSSES["cross_entropy"].compute(logprobs, inputs, {})
    np.testing.assert_allclose(loss, -inputs["weights"] * logprobs)
    loss, _ = losses.LOSSES["importance_sampling"].compute(logprobs, inputs, {})
    ratio = np.exp(logprobs) / np.exp(inputs["logprobs"])
    np.testing.assert_allclose(loss, -inputs["weights"] * ratio * inputs["advantages"])


# p / q, the advantage, and (by hand, clipped to 0.8 and 1.2) the loss and its slope in log p
PPO = [
    (1.0, 2.0, -2.0, -2.0), (1.5, 2.0, -2.4, 0.0), (0.5, 2.0, -1.0, -1.0), (1.5, -2.0, 3.0, 3.0),
    (0.5, -2.0, 1.6, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("ratio", "advantage", "expected", "slope"), PPO)
def test_ppo_clips_what_would_go_too_far(ratio, advantage, expected, slope):
    sampled = np.array([[-1.0]])
    inputs = {"weights": np.ones((1, 1)), "logprobs": sampled, "advantages": sampled * -advantage}
    loss, gradient = losses.LOSSES["ppo"].compute(sampled + np.log(ratio), inputs, {})
    assert (loss.item(), gradient.item()) == pytest.approx((expected, slope))


def test_ppo_and_cispo_heed_their_thresholds():
    sampled = np.array([[-1.0]])
    inputs = {"weights": np.ones((1, 1)), "logprobs": sampled, "advantages": np.ones((1, 1))}
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    far = sampled + np.log(1.5)
    assert losses.LOSSES["ppo"].compute(far, inputs, config)[0].item() == pytest.approx(-1.1)
    assert losses.LOSSES["cispo"].compute(far, inputs, config)[1].item() == pytest.approx(-1.1)
    low = sampled + np.log(0.5)
    assert losses.LOSSES["cispo"].compute(low, inputs, config)[1].item() == pytest.approx(-0.9)


@pytest.mark.parametrize(("ratio", "coefficient"), [(0.1, 0.1), (1.0, 1.0), (9.0, 4.0)])
def test_cispo_holds_its_clipped_ratio_constant(ratio, coefficient):
    sampled, logprobs = np.array([[-3.0]]), np.array([[-3.0 + np.log(ratio)]])
    inputs = {
        "weights": np.full((1, 1), 0.5),
        "logprobs": sampled,
        "advantages": np.full((1, 1), 3),
    }
    loss, slope = losses.LOSSES["cispo"].compute(logprobs, inputs, {})
    assert loss.item() == pytest.approx(-coefficient * 3 * logprobs.item() * 0.5)
    assert slope.item() == pytest.approx(-coefficient * 3 * 0.5)


def test_dro_is_quadratic_in_the_log_ratio(rng):
    logprobs, inputs = rng.normal(size=(5, 1)) - 2, inputs_for(rng, (5, 1))
    for config, beta in (({}, 0.05), ({"beta": 2.0}, 2.0)):
        loss, _ = losses.LOSSES["dro"].compute(logprobs, inputs, config)
        penalty = beta / 2 * (logprobs - inputs["logprobs"]) ** 2
        expected = -inputs["weights"] * (logprobs * inputs["advantages"] - penalty)
        np.testing.assert_allclose(loss, expected)


def test_stable_reinforce_is_bounded_far_from_the_sampler_and_returns_to_it(rng):
    logprobs, inputs = rng.normal(size=(5, 1)) - 2, inputs_for(rng, (5, 1))
    inputs["weights"] = np.ones((5, 1))
    for config, strength in (({}, 0.01), ({"kl_coeff": 3.0}, 3.0)):
        loss, slope = losses.LOSSES["stable_reinforce"].compute(logprobs, inputs, config)
        apart = logprobs - inputs[losses.RECORDED]
        np.testing.assert_allclose(loss, strength / 2 * apart**2 - inputs["advantages"] * logprobs)
        np.testing.assert_allclose(slope, strength * apart - inputs["advantages"])
    near, far, advantage = np.array([[-1.0]]), np.array([[-9.0]]), np.ones((1, 1))
    stale: Arrays = {
        "weights": advantage, "advantages": advantage, "logprobs": far, losses.RECORDED: far,
    }  # fmt: skip
    slopes = {name: loss.compute(near, stale, {})[1].item() for name, loss in losses.LOSSES.items()}
    assert slopes["importance_sampling"] < -1000
    assert slopes["stable_reinforce"] == pytest.approx(0.01 * 8 - 1)


def test_losses_agree_where_the_policy_is_the_sampler(rng):
    logprobs, inputs = rng.normal(size=(6, 1)) - 2, inputs_for(rng, (6, 1))
    inputs["logprobs"] = inputs[losses.RECORDED] = logprobs
    for name in ("importance_sampling", "ppo", "cispo", "dro", "stable_reinforce"):
        slope = losses.LOSSES[name].compute(logprobs, inputs, {})[1]
        np.testing.assert_allclose(slope, -inputs["advantages"] * inputs["weights"])


# Part of the loss `cispo` is held constant: its slope is not the derivative.
@pytest.mark.parametrize("name", sorted(losses.LOSSES.keys() - {"cispo"}))
def test_slopes_match_finite_differences(rng, name):
    logprobs, inputs = rng.normal(size=(7, 2)) - 2, inputs_for(rng, (7, 2))
    compute = losses.LOSSES[name].compute
    measured = (
        compute(logprobs + 1e-6, inputs, {})[0] - compute(logprobs - 1e-6, inputs, {})[0]
    ) / 2e-6
    np.testing.assert_allclose(compute(logprobs, inputs, {})[1], measured, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("nonsense", {}, "use cross_entropy"),
        ("cross_entropy", {"beta": 1.0}, "does not use these keys of loss_fn_config: beta"),
        ("ppo", {"clip_low_threshold": 1.3}, "clip_low_threshold 1.3 is above"),
        ("cispo", {"clip_high_threshold": float("nan")}, "is nan"),
        ("dro", {"beta": "much"}, "'much'; it must be a number"),
        ("ppo", {"beta": 0.1}, "does not use these keys of loss_fn_config: beta"),
    ],
)
def test_an_unknown_loss_or_a_bad_configuration_is_refused(name, config, message):
    with pytest.raises(RequestError, match=message):
        losses.find(name, config)


def reference_adamw(weight, gradients, params):
    """Return one scalar weight after the steps, by the formulas of the paper."""
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m = params.beta1 * m + (1 - params.beta1) * g
        v = params.beta2 * v + (1 - params.beta2) * g * g
        m_hat, v_hat = m / (1 - params.beta1**t), v / (1 - params.beta2**t)
        weight -= params.learning_rate * (
            m_hat / (v_hat**0.5 + params.eps) + params.weight_decay * weight
        )
    return weight


def test_adamw_follows_the_paper(rng):
    params = AdamParams(learning_rate=0.1, eps=1e-3, weight_decay=0.3)
    weights: Arrays = {"w": rng.normal(size=(2, 3))}
    moments = Moments({}, {}, 0)
    gradients = rng.normal(size=(6, 2, 3))
    expected = [
        reference_adamw(weights["w"][i, j], gradients[:, i, j], params)
        for i in range(2)
        for j in range(3)
    ]
    before = weights["w"].copy()
    first = weights
    for gradient in gradients:
        weights, moments, _ = optimizer.step(weights, {"w": gradient}, moments, params)
    np.testing.assert_allclose(weights["w"].ravel(), expected, rtol=1e-12)
    np.testing.assert_array_equal(first["w"], before)  # a snapshot of them never changes
    assert moments.steps == 6


def test_clipping_scales_all_gradients_to_the_norm():
    weights: Arrays = {"a": np.zeros(2), "b": np.zeros(2)}
    gradients: Arrays = {"a": np.array([3.0, 0.0]), "b": np.array([0.0, 4.0])}
    params = AdamParams(beta1=0.0, beta2=0.0, grad_clip_norm=1.0)
    _, moments, norm = optimizer.step(weights, gradients, Moments({}, {}, 0), params)
    assert norm == pytest.approx(5.0)
    np.testing.assert_allclose(moments.first["a"], [0.6, 0.0])
    np.testing.assert_allclose(moments.first["b"], [0.0, 0.8])
    loose = params._replace(grad_clip_norm=6.0)
    _, moments, _ = optimizer.step(weights, gradients, Moments({}, {}, 0), loose)
    np.testing.assert_allclose(moments.first["a"], [3.0, 0.0])


def test_no_gradient_moves_nothing():
    weights: Arrays = {"w": np.ones(2)}
    moments = Moments({"w": np.ones(2)}, {"w": np.ones(2)}, 3)
    assert optimizer.step(weights, {}, moments, AdamParams()) == (weights, moments, 0.0)
    zero: Arrays = {"w": np.zeros(2)}
    moved, _, _ = optimizer.step(weights, zero, Moments({}, {}, 0), AdamParams(eps=0.0))
    np.testing.assert_array_equal(moved["w"], [1, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": None}, "learning_rate is NaN or infinite"),  # the SDK sends them as null
        ({"eps": "1"}, "eps is 1"),
        ({"beta1": 1.0}, "below 1"),
        ({"momentum": 0.9}, "unknown momentum"),
    ],
)
def test_bad_adam_parameters_are_refused(given, message):
    with pytest.raises(RequestError, match=message):
        optimizer.parse(given)


def datum(n, **inputs):
    tokens = np.arange(n) % 11
    return Datum(tokens, {"target_tokens": tokens, **inputs})


def test_microbatches_hold_every_position_once_and_little_padding():
    data = [datum(n * ROWS // 20) for n in (3, 9, 1, 8, 3, 2)]
    seen = []
    for batch in microbatches(data, losses.LOSSES["cross_entropy"]):
        assert batch.ids.size <= ROWS or len(batch.members) == 1
        flat = batch.ids.ravel()[batch.rows]
        np.testing.assert_array_equal(flat, batch.targets[:, 0])
        assert batch.inputs["weights"].sum() == len(batch.rows)  # weight 1 is the default
        seen += batch.members
    assert sorted(seen) == list(range(6))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (datum(0), "model_input is empty"),
        (datum(17), "17 tokens, but the model's context is 16"),
        (Datum(np.arange(3), {}), "'target_tokens'\\] is missing"),
        (Datum(np.arange(3), {"target_tokens": np.arange(2)}), "model_input has 3 tokens"),
        (Datum(np.arange(3), {"target_tokens": np.ones(3)}), "float64"),
        (Datum(np.array([11]), {"target_tokens": np.array([1])}), "outside the vocabulary"),
        (Datum(np.array([1]), {"target_tokens": np.array([-1])}), "outside the vocabulary"),
        (datum(3, weights=np.ones(4), logprobs=np.ones(3), advantages=np.ones(3)),
         "weights has shape"),
        (datum(3, clip_low_threshold=np.ones(3)), "set thresholds in loss_fn_config"),
        (datum(3), "needs loss_fn_inputs\\['logprobs'\\]"),
    ],
)  # fmt: skip
def test_bad_data_are_refused_with_their_number(bad, message):
    loss = losses.LOSSES["importance_sampling"]
    with pytest.raises(RequestError, match=f"data\\[4\\].*{message}"):
        check(bad, 4, loss, SHAPE)
