import os
import signal

import numpy as np
import pytest

from sweeper.recipes import service, settings, sft


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("learning_rate", 0.0, "learning_rate must be positive, not 0.0"),
        ("learning_rate", float("nan"), "learning_rate must be positive, not nan"),
        ("lora_rank", 0, "lora_rank must be at least 1, not 0"),
        ("batch_size", -1, "batch_size must be at least 1, not -1"),
        ("max_steps", 0, "max_steps must be at least 1, not 0"),
        ("digits", 9, "digits must be 1 to 8, not 9"),
        ("letters", 27, "letters must be 2 to 26, not 27"),
        ("ttl_seconds", 60, "ttl_seconds must be at least 3600, not 60"),
        ("log_path", "", "log_path must not be empty"),
    ],
)
def test_bad_values_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        sft.Config(**{field: value})


def test_mean_nll_weighs_every_answer_token_alike():
    import tinker

    def tensor(values):
        return tinker.TensorData.from_numpy(np.array(values, np.float32))

    def datum(weights):
        tokens = tinker.ModelInput.from_ints([1] * len(weights))
        return tinker.Datum(model_input=tokens, loss_fn_inputs={"weights": tensor(weights)})

    data = [datum([0, 1, 1]), datum([0, 1])]
    outputs = [{"logprobs": tensor([-9, -1, -2])}, {"logprobs": tensor([-9, -6])}]
    assert sft.mean_nll(outputs, data) == pytest.approx((1 + 2 + 6) / 3)


@pytest.mark.parametrize("task", ["addition", "reversal", "sorting"])
def test_every_task_of_the_configuration_has_data(task):
    split = settings.load_data(sft.Config(task=task, test_size=8))
    assert len(split.test) == 8
    assert split.train


def test_a_signal_is_remembered_once_there_is_something_to_save():
    with service.stop_on_signals() as stop:
        stop.graceful = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
        assert stop.exit_code == 143
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGINT)
        assert ended.value.code == 130


def test_a_signal_before_that_ends_the_program():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, service.stop_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
