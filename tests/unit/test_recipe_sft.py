import os
import signal

import numpy as np
import pytest

from sweeper.recipes import service, settings, sft


def test_the_mean_loss_weighs_every_answer_token_alike():
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


def test_a_first_signal_is_remembered_and_a_second_ends():
    with service.stop_on_signals() as stop:
        stop.graceful = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
        assert stop.exit_code == 143
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGINT)
        assert ended.value.code == 130


def test_a_signal_before_training_ends_the_program():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, service.stop_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
