"""Fixtures of the tests that drive whole programs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.recipe_forks import Forks
from support.shell import Shell, ShellElsewhere, SweepElsewhere
from support.worker_bench import Bench

from sweeper.engine import lifecycle
from sweeper.results.step_times import StepTimes, of_rows

# fmt: off
_LONGEST = (
    "readme", "launch", "steering", "logs", "grid_language", "stacks", "mcp", "recipe_rl",
    "engine_sdk", "recipe_sft", "init", "pipeline", "data", "fork_client",
    "engine_lifecycle", "worker_trouble", "notify", "bootstrap_run", "engine_calls", "tui_app",
)
"""Files of `make test` that take longest: if they started last, they would run alone while the
other processors wait."""
_SLOW = (
    "elsewhere", "remote", "aws_batch", "slurm", "watch",
    "bare_jobs", "quickstart_elsewhere", "doctor_try", "places_elsewhere", "costs", "executed",
    "places", "somebody_elses_sweep", "alarms", "recipe_terminal", "recipe_wandb", "sessions",
    "recipe_eval", "weights", "report_blocks", "report_pages",
    "recipe_reward", "report_browser", "own_programs", "recipe_distill", "report_commands",
    "outside", "grpo_grid", "recipe_dpo", "surroundings", "windows", "report_files",
    "recipe_wandb_online", "matrix", "terminal_killed", "skill", "engine_limits", "fuzz",
    "grid_corpus", "sweep_wandb", "recipe_ref_found", "wherever_started",
    "registry_processes", "recipe_isolated", "recipe_ref_checked", "export_wandb",
    "ray", "image", "worker_elsewhere", "harbor", "slurm_accounting", "cookbook",
    "cookbook_readers", "cookbook_weights", "agent_start", "containers", "gpus", "debug",
    "doctor_service", "ssh", "dotenv", "csv_metrics",
)
"""Files that only `make test-all` runs, the longest first: other backends than `local` and tmux,
which the contract tests cover too; containers, browsers, S3; long kills; other recipes."""
# fmt: on


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow files, and run the files that take longest first."""
    here = Path(__file__).parent
    lost = [name for name in (*_SLOW, *_LONGEST) if not (here / f"test_{name}.py").exists()]
    assert not lost, f"named in {__file__}, and not there: {', '.join(lost)}"
    order = {name: place for place, name in enumerate((*_SLOW, *_LONGEST))}
    items.sort(key=lambda item: order.get(_subject(item), len(order)))
    for item in items:
        if _subject(item) in _SLOW and item.path.parent == here:
            item.add_marker(pytest.mark.slow)


def _subject(item: pytest.Item) -> str:
    return item.path.stem.removeprefix("test_")


class Recipes:
    """Recipes in their own processes. The only service is the tests' engine."""

    def __init__(self, url: str, key: str, tokenizers: Mapping[str, str]) -> None:
        self.url = url
        self.key = key
        self.tokenizers = tokenizers
        self._forks = Forks(self.environment(None))

    def run(
        self,
        recipe: str,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        *,
        fresh: bool = False,
        **settings: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a recipe to its end, in a new interpreter if `fresh`, else forked."""
        command = self._command(recipe, log_path, settings)
        if not fresh:
            process = self.start(recipe, log_path, env, **settings)
            output, errors = process.communicate()
            return subprocess.CompletedProcess(command, process.returncode, output, errors)
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment(env),
            check=False,
        )

    def succeed(
        self,
        recipe: str,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a recipe, and assert that it exits with code 0 and prints nothing on stderr."""
        done = self.run(recipe, log_path, env, **settings)
        assert (done.returncode, done.stderr) == (0, "")
        return done

    def start(
        self,
        recipe: str,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        *,
        held_at: str | None = None,
        **settings: Any,
    ) -> Any:
        """Start a recipe and return a `Forked` of `tests/support/recipe_forks.py`."""
        _, _, module, *arguments = self._command(recipe, log_path, settings)
        return self._forks.start(module, arguments, self.environment(env), held_at)

    def disturbed(
        self,
        recipe: str,
        log_path: Path,
        step: int,
        action: Callable[[Any], object],
        env: Mapping[str, str] | None = None,
        *,
        held_at: str | None = None,
        **settings: Any,
    ) -> tuple[int, str]:
        """Start a recipe, act on it after `step`, and return its exit code and stderr."""
        process = self.start(recipe, log_path, env, held_at=held_at, **settings)
        try:
            for line in process.stdout:
                if line.startswith(f"step {step}/"):
                    action(process)
                    break
        finally:
            _, errors = process.communicate()
        return process.returncode, errors

    def close(self) -> None:
        """Stop the process that forks recipes."""
        self._forks.close()

    def stopped_after(
        self,
        recipe: str,
        log_path: Path,
        step: int,
        signum: int,
        env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> tuple[int, str]:
        """Send a signal after `step`, before the recipe passes the next step."""
        return self.disturbed(
            recipe,
            log_path,
            step,
            lambda process: process.send_signal(signum),
            env,
            held_at=f"step {step + 1}/",
            **settings,
        )

    def resumes(
        self, recipe: str, whole: Path, stopped: Path, step: int, signum: int, **settings: Any
    ) -> str:
        """Stop a run after `step` and resume it. Its metrics must equal those of the `whole` run.
        Return what the resumed run printed."""
        code = -signum if signum == signal.SIGKILL else 128 + signum
        assert self.stopped_after(recipe, stopped, step, signum, **settings) == (code, "")
        resumed = self.succeed(recipe, stopped, **settings)
        assert "resuming after " in resumed.stdout
        assert self.measured(stopped) == self.measured(whole)
        return resumed.stdout

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """Return the records of a file of JSON lines."""
        return [json.loads(line) for line in path.read_text().splitlines()]

    def measured(self, log_path: Path) -> list[dict[str, Any]]:
        """Return a run's metrics without the measured times."""
        lines = self.read(log_path / "metrics.jsonl")
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]

    def spent(self, log_path: Path) -> list[StepTimes | None]:
        """Return the times of each step of a run."""
        return [of_rows([line]) for line in self.read(log_path / "metrics.jsonl")]

    def _command(self, recipe: str, log_path: Path, settings: Mapping[str, Any]) -> list[str]:
        settings = {"base_url": self.url} | dict(settings)
        arguments = [f"{key}={value}" for key, value in settings.items()]
        return [
            sys.executable,
            "-m",
            f"sweeper.recipes.{recipe}",
            f"log_path={log_path}",
            *arguments,
        ]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "WANDB_"))}
        ours |= {"PYTHONUNBUFFERED": "1", "TINKER_API_KEY": self.key}  # as a worker does
        ours |= self.tokenizers
        return ours | dict(more or {})


@pytest.fixture(scope="session")
def recipes(engine: lifecycle.EngineInfo) -> Iterator[Recipes]:
    """Run recipes and read their files."""
    home = engine.home
    made = Recipes(engine.url, lifecycle.client_key(home), lifecycle.hub_environment(home))
    yield made
    made.close()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return the command line in a folder with a toy recipe, on the backend `local`."""
    return Shell(tmp_path, "local")


@pytest.fixture
def elsewhere(
    tmp_path: Path, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Any], Any]:
    """Return a function from backend and stand-in to a `SweepElsewhere` on S3."""

    def made(backend: str, service: Any) -> Any:
        monkeypatch.setenv("SWEEPER_ROOT", s3_root)
        aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        service.environment = aws
        shell = ShellElsewhere(tmp_path, backend, service.options(), s3_root)
        return SweepElsewhere(shell, backend, service)

    return made


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield `Taught` of `tests/support/taught.py`: a finished sweep and the command line."""
    from support.taught import Taught

    made = Taught(tmp_path_factory.mktemp("taught"))
    yield made
    lifecycle.stop(str(made.home))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Yield `Bench` of `tests/support/worker_bench.py`: a sweep with one run, and its workers."""
    (tmp_path / "root").mkdir()
    made = Bench(tmp_path / "root")
    yield made
    made.close()


@pytest.fixture
def wandb_records() -> Callable[[Path], list[dict[str, Any]]]:
    """Return a function that reads W&B's records in a folder with W&B's own program."""

    def records(folder: Path) -> list[dict[str, Any]]:
        done = subprocess.run(
            [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", folder],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"TERM": "dumb"},
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    return records


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield `Browser` of `tests/support/chromium.py`. Skip with a message without Chromium."""
    from support import chromium

    if chromium.PROGRAM is None:
        pytest.skip("chromium is not installed: the report is not tried in a browser")
    with chromium.Browser() as opened:
        yield opened
