"""A sweep's options for Slurm, and the environment of a job."""

import os
from pathlib import Path

import pytest

from sweeper.backends import aws_batch, slurm
from sweeper.backends.configuration import configured, defaults_of
from sweeper.backends.slurm import job as slurm_job
from sweeper.backends.slurm import sbatch
from sweeper.errors import EnvironmentFailure, GridError
from sweeper.fields.nodes import Problems
from sweeper.grid import parse_grid
from sweeper.grid.run_overrides import asked_by, unmatched
from sweeper.launcher import environment_cleanup
from sweeper.sweep import environment_file


def test_a_configuration_nested_too_deep_is_refused(config_file: Path) -> None:
    config_file.write_text(f"a = {'[' * 5000}{']' * 5000}")
    with pytest.raises(EnvironmentFailure, match=r"config\.toml: .*recursion"):
        configured(slurm.BACKEND)
    problems = Problems()
    assert defaults_of(aws_batch.BACKEND, problems) == {}
    assert "recursion" in str(problems.error())


def _arguments(**given: object) -> list[str]:
    return sbatch.arguments_of(sbatch.asked_of({}, given))


def test_options_become_arguments_of_sbatch() -> None:
    assert _arguments(partition="gpu", cpus=4, time_s=5400.0, extra=["--nice=3"]) == [
        *("--partition=gpu", "--cpus-per-task=4", "--time=1:30:00", "--signal=B:TERM@120"),
        *("--requeue", "--nice=3"),
    ]
    short = _arguments(time_s=60.0, requeue=False)
    assert short == ["--time=0:01:00", "--signal=B:TERM@15", "--no-requeue"]
    assert "--signal=B:TERM@30" in _arguments(signal_s=30.0)


def test_a_configured_signal_is_at_most_half_of_a_grids_time() -> None:
    options = sbatch.asked_of({"signal_s": 600.0, "mem": "1G"}, {"time_s": 120.0, "mem": "2G"})
    assert (options.signal_s, options.mem) == (60.0, "2G")


def test_the_script_contains_only_setup_of_a_grid() -> None:
    text = sbatch.script(["module load 'a b' \\"], "/s/it's a folder/t.json")
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash" and lines[2:4] == ["module load 'a b' \\", ""]
    assert lines[-1].startswith("exec ") and lines[-1].endswith("'/s/it'\"'\"'s a folder/t.json'")
    assert len(sbatch.script([], "/t").splitlines()) == 2


def test_overrides_apply_to_matching_runs() -> None:
    options = {
        "mem": "4G",
        "overrides": [
            {"if": {"rank": [64], "opt.name": ["adam", "sgd"]}, "mem": "32G"},
            {"if": {"rank": [8.0]}, "cpus": 2},
        ],
    }
    merge = slurm.BACKEND.merge
    assert asked_by(options, {"rank": 64, "opt.name": "sgd"}, merge) == {"mem": "32G"}
    assert asked_by(options, {"rank": 64}, merge) == {"mem": "4G"}
    assert asked_by(options, {"rank": 8}, merge) == {"mem": "4G", "cpus": 2}
    (unused,) = unmatched(options, [{"rank": 8}, {"rank": 64}])
    assert unused == "overrides: no run has rank, opt.name"


def test_a_job_passes_on_variables_that_it_changed() -> None:
    import base64

    before = base64.b64encode(b"A=1\0B=2\0").decode()
    ours = {"A": "1", "B": "3", "C": "4", "SLURM_JOB_ID": "7", "SWEEPER_BEFORE": before}
    environment = slurm_job.environment(ours)
    assert environment["SWEEPER_KEEP"].split("\n") == ["B", "C", "SLURM_JOB_ID"]
    assert (environment["SWEEPER_DROP"], environment["SWEEPER_SIGNALS"]) == ("SLURM_", "everybody")
    assert "SWEEPER_BEFORE" not in environment and environment["A"] == "1"


def test_an_environment_beside_the_sweep_is_private_and_collected(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "the value of it")
    sweep = tmp_path / "sweeps" / "s"
    place = sweep / "launcher" / "environment.json"
    written = environment_file.write(str(sweep), {}, str(place))
    assert written == str(place) and place.stat().st_mode & 0o777 == 0o600
    assert "the value of it" in place.read_text()
    (note,) = (home / "environments").iterdir()
    assert "the value of it" not in note.read_text()
    os.utime(note, (0, 0))
    assert list(environment_cleanup.unused_files(but=str(sweep))) == []
    assert list(environment_cleanup.unused_files()) == [str(place)]
    environment_file.forget(str(place))
    # No file of the sweep is there: its disk may not be mounted.
    assert list(environment_cleanup.unused_files()) == []
    (place.parent / "lock").touch()
    assert list(environment_cleanup.unused_files()) == [str(note)]


def test_options_are_merged_from_command_line_and_extended_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("recipe: r\nlaunch: {slurm: {mem: 4G, qos: low, cpus: 2}}")
    text = "extends: a.yaml\nlaunch: {slurm: {mem: 8G, qos: null}}"
    given = ["launch.slurm.partition=gpu", "launch.slurm.cpus=4"]
    grid = parse_grid(text, str(tmp_path / "b.yaml"), given)
    assert grid.launch.options["slurm"] == {"mem": "8G", "cpus": 4, "partition": "gpu"}
    grid = parse_grid(text, str(tmp_path / "b.yaml"), [*given, "~launch.slurm.mem"])
    assert grid.launch.options["slurm"] == {"cpus": 4, "partition": "gpu"}
    with pytest.raises(GridError, match=r"no launch.slurm.time to drop"):
        parse_grid(text, str(tmp_path / "b.yaml"), ["~launch.slurm.time"])
    with pytest.raises(GridError, match=r"launch.slurm.cpus must be 1 to 1000000, not 0"):
        parse_grid(text, str(tmp_path / "b.yaml"), ["launch.slurm.cpus=0"])
