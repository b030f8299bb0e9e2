"""The settings of `launch` in the description of a job."""

from sweeper.sweep.job import read
from sweeper.sweep.launch_settings import Launch

BARE = {
    "run": "a", "attempt": 2, "name": "lr=1", "config": {"lr": 1},
    "recipe": {"cwd": "/", "kind": "command", "command": ["true"], "python": "python"}, "cwd": "/",
}  # fmt: skip


def test_every_setting_that_is_not_a_backends_reaches_the_worker():
    launch = Launch(
        timeout_s=90.0, env={"A": "1"}, resume="never", warm=False, metrics_dir="{log_path}/m",
        options={"slurm": {"mem": "3G"}},
    )  # fmt: skip
    job = read(BARE, "job.json")._replace(settings=launch.for_worker())
    assert "slurm" not in job.document()["settings"]  # pyright: ignore[reportOperatorIssue]
    assert read(job.document(), "job.json").settings == launch._replace(options={})
