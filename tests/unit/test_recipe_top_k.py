import types

import numpy as np
import pytest

from sweeper.recipes import top_k
from sweeper.recipes.rollouts import Rollout
from sweeper.recipes.service import RecipeError

TOKENS, VALUES = 5, 11


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def lumped(ours, theirs, ids):
    """Return the divergence by its definition, with all values but `ids` merged into one."""
    p, q = np.exp(ours), np.exp(theirs)
    rows = np.arange(len(ours))[:, None]
    top_p, top_q = p[rows, ids], q[rows, ids]
    rest_p, rest_q = 1 - top_p.sum(-1), 1 - top_q.sum(-1)
    divergence = (top_p * np.log(top_p / top_q)).sum(-1)
    return divergence + np.where(rest_p > 1e-9, rest_p * np.log(rest_p / rest_q), 0)


@pytest.fixture
def models():
    draw = np.random.default_rng(3)
    student, first, second = draw.normal(size=(3, TOKENS, VALUES)) * 1.5
    return student, log_softmax(first), log_softmax(second)


@pytest.mark.parametrize("k", [1, 4, VALUES - 1])
def test_the_weights_make_the_divergence_s_own_gradient(models, k):
    logits, first, second = models
    ours = log_softmax(logits)
    ids = np.argsort(-ours, axis=-1)[:, :k]
    rows = np.arange(TOKENS)[:, None]
    parts = [(0.7, first[rows, ids]), (0.3, second[rows, ids])]
    slopes = top_k.slopes(ours[rows, ids], parts)

    def whole(at):
        values = log_softmax(at)
        return 0.7 * lumped(values, first, ids) + 0.3 * lumped(values, second, ids)

    np.testing.assert_allclose(slopes.divergence, whole(logits), rtol=1e-9)
    # cross_entropy is -sum(weight * logprob); the slope of logprob i by logit j is [i=j] - p_j.
    weights = -slopes.by_value
    placed = np.zeros((TOKENS, VALUES))
    placed[rows, ids] = weights
    gradient = -(placed - weights.sum(-1, keepdims=True) * np.exp(ours))
    step = 1e-5
    for value in range(VALUES):
        ahead, behind = logits.copy(), logits.copy()
        ahead[:, value] += step
        behind[:, value] -= step
        slope = (whole(ahead) - whole(behind)) / (2 * step)
        np.testing.assert_allclose(gradient[:, value], slope, rtol=1e-5, atol=1e-8)


def test_of_all_values_it_is_the_whole_divergence(models):
    logits, teacher, _ = models
    ours = log_softmax(logits)
    slopes = top_k.slopes(ours, [(1.0, teacher)])
    expected = (np.exp(ours) * (ours - teacher)).sum(-1)
    np.testing.assert_allclose(slopes.divergence, expected, atol=1e-5)
    fewer = [
        top_k.slopes(
            np.take_along_axis(ours, ids, -1), [(1.0, np.take_along_axis(teacher, ids, -1))]
        )
        for k in (1, 5)
        for ids in [np.argsort(-ours, axis=-1)[:, :k]]
    ]
    assert (fewer[0].divergence <= fewer[1].divergence + 1e-12).all()
    assert (fewer[1].divergence <= slopes.divergence + 1e-5).all()


def test_who_agrees_with_the_teacher_has_nothing_to_learn(models):
    ours = log_softmax(models[0])[:, :4]
    slopes = top_k.slopes(ours, [(1.0, ours)])
    assert np.abs(slopes.by_value).max() == np.abs(slopes.divergence).max() == 0


def test_what_is_sent_has_the_values_at_the_sampled_places():
    rows = (((7, -0.1), (3, -2.0)), ((8, -0.2), (5, -1.9)))
    rollout = Rollout([7, 8], [-0.1, -0.2], "x", True, 0.0, False)._replace(likeliest=rows)
    datum = top_k.to_datum([1, 2, 4], rollout, np.array([[0.5, -0.5], [0.25, 0.0]]))
    assert datum.model_input.to_ints() == [1, 2, 4, 7]
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    assert targets.tolist() == [[2, 0, 0], [4, 0, 0], [7, 7, 3], [8, 8, 5]]
    weights = datum.loss_fn_inputs["weights"].to_numpy()
    assert weights.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0.5, -0.5], [0, 0.25, 0]]


def test_a_service_that_does_not_tell_the_values_is_one_clear_line():
    with pytest.raises(RecipeError, match="kl_top_k: this service does not return"):
        top_k.begin(types.SimpleNamespace(), [1], Rollout([7], [-0.1], "x", True, 0.0, False))
