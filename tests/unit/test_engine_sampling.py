"""Generation: the sampler gives its tokens the same probabilities as training does."""

import numpy as np
import pytest

from sweeper.engine import lora, net, sampling
from sweeper.engine.errors import RequestError
from sweeper.engine.net import Shape
from sweeper.engine.sampling import Params

SHAPE = Shape(vocab=12, hidden=16, mlp=24, layers=2, heads=4, kv_heads=2, head=4, context=40)
ROTATION = net.rotary(SHAPE, np.float32)
PROMPT = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def network():
    rng = np.random.default_rng(0)
    base = {name: rng.normal(0, 0.4, size) for name, size in lora.maps(SHAPE).items()}
    base["embed"] = rng.normal(size=(SHAPE.vocab, SHAPE.hidden))
    ones = {"norm": SHAPE.hidden}
    for i in range(SHAPE.layers):
        ones |= {f"{i}.norm1": SHAPE.hidden, f"{i}.norm2": SHAPE.hidden}
        ones |= {f"{i}.q_norm": SHAPE.head, f"{i}.k_norm": SHAPE.head}
    base |= {name: np.ones(size) for name, size in ones.items()}
    base = {name: array.astype(np.float32) for name, array in base.items()}
    return lora.merge(base, SHAPE, ROTATION, {}, 1.0)


def draw(network, n=1, prompt=PROMPT, **params):
    params = Params(**{"max_tokens": 10, "seed": 5, **params})
    read = sampling.read(network, prompt)
    return sampling.sample(network, read, n, params)


def trained_logprobs(network, prompt, tokens):
    """Return the log-probabilities of the training pass for the same tokens."""
    whole = np.array([prompt + tokens])
    x, _ = net.forward(network, whole[:, :-1])
    rows = np.arange(len(prompt) - 1, whole.shape[1] - 1)
    targets = np.array(tokens)[:, None]
    return net.target_logprobs(network, x, rows, targets)[0][:, 0]


def test_logprobs_equal_those_of_training(network):
    for sequence in draw(network, n=5, stop_tokens=frozenset({0})):
        expected = trained_logprobs(network, PROMPT, sequence.tokens)
        np.testing.assert_allclose(sequence.logprobs, expected, atol=1e-5)


def test_the_prompts_logits_are_those_of_training(network):
    read = sampling.read(network, PROMPT, first=0)
    scores = net.log_softmax(net.logits(network, read.x))
    expected = trained_logprobs(network, PROMPT[:1], PROMPT[1:])
    np.testing.assert_allclose([scores[i, t] for i, t in enumerate(PROMPT[1:])], expected, 1e-5)


def test_a_seed_repeats_and_seeds_differ(network):
    assert draw(network, n=3) == draw(network, n=3)
    assert draw(network, n=3) != draw(network, n=3, seed=6)
    assert draw(network, seed=-1) != draw(network, seed=1)


def test_a_sequence_that_stops_does_not_change_the_others(network):
    free = draw(network, n=6)
    stop = free[0].tokens[2]
    for with_stop, without in zip(
        draw(network, n=6, stop_tokens=frozenset({stop})), free, strict=True
    ):
        if stop in without.tokens:
            end = without.tokens.index(stop) + 1
            assert with_stop.stopped
        else:
            end = 10
            assert not with_stop.stopped
        assert with_stop.tokens == without.tokens[:end]
        np.testing.assert_allclose(with_stop.logprobs, without.logprobs[:end], atol=1e-5)


def test_greedy_takes_the_likeliest(network):
    (sequence,) = draw(network, temperature=0.0, max_tokens=4)
    tokens = list(PROMPT)
    for token in sequence.tokens:
        x, _ = net.forward(network, np.array([tokens]))
        assert token == net.logits(network, x)[-1].argmax()
        tokens.append(token)


def frequencies(network, **params):
    drawn = draw(network, n=4000, max_tokens=1, **params)
    return np.bincount([s.tokens[0] for s in drawn], minlength=SHAPE.vocab) / 4000


def distribution(network, temperature=1.0):
    read = sampling.read(network, PROMPT)
    return np.exp(net.log_softmax(net.logits(network, read.x[-1]) / temperature))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_they_are_likely(network, temperature):
    observed = frequencies(network, temperature=temperature)
    expected = distribution(network, temperature)
    # five standard errors of a frequency among 4000
    assert (abs(observed - expected) <= 5 * np.sqrt(expected * (1 - expected) / 4000) + 1e-3).all()


def test_top_k_keeps_k(network):
    observed = frequencies(network, top_k=3)
    best = np.argsort(-distribution(network))[:3]
    assert set(np.flatnonzero(observed)) == set(best)


def test_top_p_keeps_the_fewest_that_reach_p(network):
    expected = distribution(network)
    order = np.argsort(-expected)
    reached = np.cumsum(expected[order])
    p = float(reached[1] + 0.3 * (reached[2] - reached[1]))  # needs the third token
    assert set(np.flatnonzero(frequencies(network, top_p=p))) == set(order[:3])
    assert set(np.flatnonzero(frequencies(network, top_p=1e-9))) == {order[0]}


def test_the_context_ends_a_sequence(network):
    (sequence,) = draw(network, max_tokens=1000)
    assert len(sequence.tokens) == SHAPE.context - len(PROMPT) and not sequence.stopped
    (drawn,) = draw(network, prompt=[3] * SHAPE.context)
    assert (len(drawn.tokens), drawn.stopped) == (1, False)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([0] * 41, "context has room for 40"), ([12], "outside")],
)
def test_invalid_prompts_are_refused(network, prompt, message):
    with pytest.raises(RequestError, match=message):
        draw(network, prompt=prompt)


def test_a_diverged_model_is_an_error(network):
    broken = network._replace(head=network.head * np.float32("nan"))
    with pytest.raises(RequestError, match="diverged"):
        draw(broken)
