import json

import pytest

from sweeper.recipes import rundir
from sweeper.recipes.service import RecipeError

CONFIG = {"learning_rate": 0.001, "seed": 0, "log_path": "a", "data": None}
FREE = frozenset({"log_path"})


def state(batch):
    return {"name": f"{batch:06d}", "batch": batch, "state_path": f"tinker://x/weights/{batch}"}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def run(tmp_path):
    return rundir.open_run(str(tmp_path), CONFIG, FREE)


def test_a_new_directory_starts_at_step_0(tmp_path):
    run = rundir.open_run(str(tmp_path / "a" / "b"), CONFIG, FREE)
    assert (run.start_step, run.last_state, run.finished) == (0, None, False)


def test_a_run_resumes_from_its_last_state(tmp_path, run):
    run.record_checkpoint(state(10))
    run.record_checkpoint(state(20))
    run.record_checkpoint({"name": "000025", "batch": 25, "sampler_path": "tinker://x/s/25"})
    again = rundir.open_run(str(tmp_path), CONFIG, FREE)
    assert again.start_step == 20
    assert again.last_state["state_path"] == "tinker://x/weights/20"
    assert not again.finished


def test_a_run_with_a_final_state_is_finished(tmp_path, run):
    run.record_checkpoint({"name": "final", "batch": 9, "final": True, "state_path": "tinker://x"})
    assert rundir.open_run(str(tmp_path), CONFIG, FREE).finished


def test_a_directory_means_its_last_weights(tmp_path, run):
    run.record_checkpoint(state(10))
    run.record_checkpoint(state(20))
    run.record_checkpoint({"name": "000025", "batch": 25, "sampler_path": "tinker://x/s/25"})
    with open(tmp_path / "checkpoints.jsonl", "a") as file:
        file.write('{"name": "000030", "batch": 30, "state_path": "tinker://x/wei')
    before = (tmp_path / "checkpoints.jsonl").read_bytes()
    assert rundir.state_path(str(tmp_path)) == "tinker://x/weights/20"
    assert rundir.state_path("tinker://x/weights/final") == "tinker://x/weights/final"
    # Another process may be writing the file.
    assert (tmp_path / "checkpoints.jsonl").read_bytes() == before


@pytest.mark.parametrize("content", [None, "", '{"name": "a", "batch": 1}\n', "[]\nnull\n{\n"])
def test_a_directory_without_weights_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "checkpoints.jsonl").write_text(content)
    with pytest.raises(RecipeError) as caught:
        rundir.state_path(str(tmp_path))
    assert str(caught.value) == f"no checkpoint in {tmp_path}/checkpoints.jsonl"


def test_a_torn_checkpoint_is_cut_before_the_next_is_appended(tmp_path, run):
    run.record_checkpoint(state(10))
    with open(tmp_path / "checkpoints.jsonl", "a") as file:
        file.write('{"name": "000020", "bat')
    again = rundir.open_run(str(tmp_path), CONFIG, FREE)
    assert again.start_step == 10
    again.record_checkpoint(state(20))
    assert [record["batch"] for record in read(tmp_path / "checkpoints.jsonl")] == [10, 20]


def test_steps_to_be_trained_again_are_dropped_from_the_metrics(tmp_path, run):
    run.drop_steps_from(0)
    assert list(tmp_path.iterdir()) == []
    for step in range(5):
        run.log_metrics(step, {"train_mean_nll": 0.1 * step})
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 5, "tra')
    run.drop_steps_from(3)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(lines[:3])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl"]


def test_nan_is_written_as_json_does(tmp_path, run):
    run.log_metrics(0, {"train_mean_nll": float("nan")})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "train_mean_nll": NaN}\n'


def test_another_run_s_directory_is_refused(tmp_path, run):
    run.write_config(CONFIG)
    assert json.loads((tmp_path / "config.json").read_text()) == CONFIG
    rundir.open_run(str(tmp_path), {**CONFIG, "log_path": "b"}, FREE)
    with pytest.raises(RecipeError, match=r"holds a run with learning_rate=0\.001, not 0\.01"):
        rundir.open_run(str(tmp_path), {**CONFIG, "learning_rate": 0.01}, FREE)


def test_an_unusable_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match=r"cannot write to log_path=.*Not a directory"):
        rundir.open_run(str(tmp_path / "file" / "run"), CONFIG, FREE)
