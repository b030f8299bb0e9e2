"""tinker-cookbook's own unmodified programs, launched through this repository's grids."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.real import until  # pyright: ignore[reportMissingImports]
from support.environments import environment, needs
from support.typed import Typed

from sweeper import Registry
from sweeper.engine import lifecycle
from sweeper.recipes.hyperparams import SHAPES, learning_rate
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.tracking import run_id

ROOT = Path(__file__).parents[2]
COOKBOOK = environment("cookbook")
SWEEPER = str(Path(sys.executable).parent / "sweeper")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    needs("cookbook", "tinker-cookbook"),
]


class Shell(Typed):
    """`sweeper` in this repository's folder, since paths in its grids are relative to it."""

    seconds = 600.0

    def __init__(self, folder: Path) -> None:
        self.home, self.root = folder / "home", folder / "sweeps"
        super().__init__(ROOT, ("HF_", "TINKER_", "WANDB_"), SWEEPER_HOME=str(self.home))
        self.environment |= {"SWEEPER_ROOT": str(self.root), "HF_HOME": str(folder / "hf")}

    def runs(self, verb: str, sweep: str) -> list[dict[str, Any]]:
        return self.json(verb, sweep)["runs"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    lifecycle.stop(str(made.home))


REWARD = "env/all/reward/total"


@pytest.mark.parametrize(
    ("grid", "count", "metric", "others"),
    [
        ("math_rl", 4, REWARD, ["env/all/format", "optim/kl_sample_train_v1", "tokens/sampled"]),
        ("sl_loop", 2, "train_mean_nll", ["num_tokens", "learning_rate"]),
        ("rl_loop", 2, "reward/total", ["progress/done_frac"]),
        ("sl_basic", 4, "train_mean_nll", ["tokens/trained", "train_mean_bpb", "test/bpb"]),
        ("rl_basic", 2, REWARD, ["tokens/sampled", "time/total"]),
        ("async_rl", 6, REWARD, ["tokens/sampled", "optim/entropy"]),
        ("dpo", 2, "dpo_loss", ["accuracy", "margin", "chosen_reward"]),
        ("rlhf", 2, REWARD, ["env/all/win_minus_loss", "tokens/trained"]),
        ("guess_number", 2, REWARD, ["env/all/turns_per_episode"]),
        ("twenty_questions", 2, REWARD, ["env/all/turns_per_episode"]),
        ("distillation", 2, "teacher_kl", ["optim/entropy"]),
    ],
)
def test_its_programs_run_as_they_are(
    shell: Shell, grid: str, count: int, metric: str, others: list[str]
) -> None:
    sweep = f"cookbook-{grid.replace('_', '-')}"
    shell.run("launch", f"grids/cookbook_{grid}.yaml", "--wait")
    for verb in ("status", "ls"):
        listed = shell.runs(verb, sweep)
        assert [(run["state"], run["attempts"]) for run in listed] == [("succeeded", 1)] * count
        assert {run["metric"] for run in listed} == {metric}
        assert all(isinstance(run["value"], float) for run in listed)
    registry = Registry(str(shell.root))
    runs = registry.runs(sweep=sweep)
    frame = registry.metrics(runs, keys=[metric, *others])
    for _, rows in frame.groupby("run"):
        steps = rows["step"].astype(int).tolist()
        assert steps == list(range(len(steps)))
        assert rows[metric].notna().all()
        assert all(rows[key].notna().any() for key in others)
    if grid == "sl_loop":
        first, last = (frame[frame["step"] == step][metric] for step in (0, 23))
        assert last.max() < first.min() / 2  # each learning rate learns
    if grid in ROLLOUTS:
        for run in shell.runs("ls", sweep):
            _check_rollouts(shell, run, *ROLLOUTS[grid])


ROLLOUTS: dict[str, tuple[str, str]] = {
    "math_rl": ("assistant", "order"),
    "rl_basic": ("assistant", "order"),
    "rlhf": ("assistant", "trajectory"),
    "guess_number": ("guess", "trajectory"),
    "twenty_questions": ("Turn 20 - Player", "group"),
}
"""The speaker of the model's turns, and the least specific value of `whose`."""


def _check_rollouts(shell: Shell, run: dict[str, Any], who: str, least: str) -> None:
    """Assert that each logged rollout has as many of the model's messages as turns."""
    read = json.loads(shell.run("rollouts", run["id"], "--limit", "0", "--json"))["rollouts"]
    conversations = [rollout for rollout in read if rollout["conversation"]]
    assert conversations
    for rollout in conversations:
        turns = [turn for turn in rollout["conversation"] if turn["who"] == who]
        if rollout["whose"] == "group":
            assert least == "group"
            assert len(turns) > 1
        else:
            assert rollout["whose"] in ("trajectory", least)
            # A prompt may contain example answers.
            assert len(turns) >= (1 if who.startswith("Turn") else rollout["turns"])
    alone = run["config"].get("group_size") == 1
    if least == "trajectory" or alone:
        assert {rollout["whose"] for rollout in conversations} == {"trajectory"}


def test_learning_rates_are_those_that_it_recommends() -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if shape.family != "tiny"}
    program = (
        "import json, sys\n"
        "from tinker_cookbook.hyperparam_utils import get_lr\n"
        "def rate(name):\n"
        "    try:\n"
        "        return get_lr(name)\n"
        "    except Exception:  # a model that this version asks the hub about\n"
        "        return None\n"
        "print(json.dumps([rate(name) for name in json.loads(sys.argv[1])]))"
    )
    process = subprocess.run(
        [COOKBOOK / "bin" / "python", "-c", program, json.dumps(list(shapes))],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    theirs = dict(zip(shapes, json.loads(process.stdout), strict=True))
    assert sum(rate is not None for rate in theirs.values()) >= 16
    for name, rate in theirs.items():
        assert rate is None or learning_rate("sft", name, 0.0).value == pytest.approx(
            rate, rel=2e-3
        )


_ITS_OWN_RUN = """
import asyncio, sys
import tinker
from tinker_cookbook.eval.benchmarks import BenchmarkConfig, run_benchmark
from tinker_cookbook import renderers

sampler = tinker.ServiceClient().create_sampling_client(base_model="tiny/teacher")
renderer = renderers.get_renderer("qwen3", sampler.get_tokenizer())
config = BenchmarkConfig(max_examples=24, max_tokens=12, temperature=0.0, save_dir=sys.argv[1])
result = asyncio.run(run_benchmark("gsm8k", sampler, renderer, config))
print(result.score)
"""


def test_its_benchmarks_are_items_of_an_evaluation(shell: Shell, tmp_path: Path) -> None:
    """Each item is asked once despite kills, with the answers of its own runner."""
    shell.run("engine", "start")
    info = lifecycle.find(str(shell.home))
    assert info is not None
    environment = {
        **shell.environment,
        **lifecycle.client_environment(info),
        "PYTHONPATH": str(ROOT),
    }
    python, data = str(COOKBOOK / "bin" / "python"), str(COOKBOOK / "data")
    folder = tmp_path / "plain" / "asked"

    def start(count: int) -> "subprocess.Popen[str]":
        settings = {
            "suite": "cookbook:gsm8k", "model_name": "tiny/teacher", "renderer_name": "qwen3",
            "max_items": count, "max_tokens": 12, "in_flight": 2, "log_path": folder,
        }  # fmt: skip
        given = [f"{key}={value}" for key, value in settings.items()]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [python, "-m", "sweeper.recipes.eval", *given],
            cwd=data, env=environment, stdout=pipe, stderr=pipe, text=True,
        )  # fmt: skip

    first = start(24)
    path = folder / "items.jsonl"
    until(lambda: (path.exists() and path.read_text().count("\n") > 3) or first.poll() is not None)
    first.kill()
    first.communicate()
    lines_before = path.read_text().count("\n")
    assert lines_before > 3
    again = start(24)
    output, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert f"items to ask: {24 - lines_before} of 24" in output
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["item"] for row in rows}) == len(rows) == 24
    store = tmp_path / "plain" / "its"
    process = subprocess.run(
        [python, "-c", _ITS_OWN_RUN, str(store)],
        cwd=data, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    lines = (store / "gsm8k/trajectories.jsonl").read_text().splitlines()
    trajectories = [json.loads(line) for line in lines]
    answers = {t["example_id"]: t["turns"][-1]["content"] for t in trajectories}
    assert {row["id"] for row in rows} == set(answers)
    assert all(answers[row["id"]].replace("<|im_end|>", "") == row["text"] for row in rows)
    assert float(process.stdout.split()[-1]) == sum(row["score"] for row in rows) / 24
    (store / "metrics.jsonl").write_text('{"step": 0, "x": 1}\n')
    registry = Registry(str(tmp_path / "plain"))
    items = registry.items(registry.runs())
    assert sorted(len(group) for _, group in items.groupby("run")) == [24, 24]
    assert items["score"].notna().all()


def test_its_benchmarks_are_evaluated_while_a_recipe_trains(shell: Shell, tmp_path: Path) -> None:
    """`launch.python` has the package; the data set is a local folder."""
    suites = {"suites": ["cookbook:gsm8k"], "every": 3, "items": 6, "max_tokens": 12}
    grid = {
        "name": "taught", "recipe": "sweeper.recipes.sft", "service": "local",
        "base": {
            "task": "addition", "max_steps": 6, "train_size": 64, "test_size": 8,
            "eval": {**suites, "renderer_name": "qwen3", "infrequent": {"every": 0, "items": 10}},
        },
        "metric": {"name": "eval/gsm8k/score", "goal": "maximize"},
        "launch": {
            "backend": "local", "cwd": str(COOKBOOK / "data"), "env": {"PYTHONPATH": str(ROOT)},
            "python": str(COOKBOOK / "bin" / "python"),
        },
    }  # fmt: skip
    path = tmp_path / "grid.yaml"
    path.write_text(json.dumps(grid))
    shell.run("launch", str(path), "--wait")
    [run] = shell.runs("ls", "taught")
    assert run["metric"] == "eval/gsm8k/score"
    registry = Registry(str(shell.root))
    frame = registry.metrics(registry.runs(), keys=["eval/gsm8k/score", "eval/gsm8k-10/score"])
    scored = frame.set_index("step").notna()
    assert scored.index[scored["eval/gsm8k/score"]].tolist() == [0, 3, 6]
    assert scored.index[scored["eval/gsm8k-10/score"]].tolist() == [0, 6]
    items = registry.items(registry.runs())
    assert len(items) == 10  # the last evaluation's items
    assert set(items["task"]) == {"gsm8k"}
    assert set(items["step"]) == {6}


BOTH = """
name: both
recipe: {writer}
grid: {{bonus: [0, 1], model_name: [a/b, c/d]}}
launch: {{backend: local, python: .venv-cookbook/bin/python}}
"""


@pytest.mark.skipif(
    not (COOKBOOK / "bin" / "sweeper").exists(),
    reason="an earlier `make cookbook` installed no sweeper: run it again",
)
def test_its_interpreter_has_sweeper_too(tmp_path: Path) -> None:
    both = "import sweeper, sweeper.recipes.sft, tinker_cookbook; sweeper.Registry('.')"
    subprocess.run([COOKBOOK / "bin" / "python", "-P", "-c", both], check=True, cwd=tmp_path)
    listed = [COOKBOOK / "bin" / "sweeper", "ls", "--json", "--root", "."]
    subprocess.run(listed, check=True, cwd=tmp_path)


def test_stores_that_runs_of_a_sweep_write_are_read(shell: Shell, tmp_path: Path) -> None:
    grid = tmp_path / "both.yaml"
    grid.write_text(BOTH.format(writer=ROOT / "tests" / "support" / "write_eval_store.py"))
    shell.run("launch", str(grid), "--wait")
    table = json.loads(shell.run("ls", "both", "--by", "checkpoint,suite", "--json"))
    assert [(row["run"][:7], row["value"], row["scores"]["gsm8k"]["score"])
            for row in table["rows"]] == [
        (f"bonus={bonus}", name, (right + bonus) / 4)
        for bonus in (0, 1) for _ in "bd"
        for name, right in (("base", 0), ("000010", 1), ("final", 2))
    ]  # fmt: skip
    table = json.loads(shell.run("ls", "both", "--by", "model_name,bonus,suite", "--json"))
    assert [(row["value"], row["scores"]["ifeval"]["score"]) for row in table["rows"]] == [
        ([model, bonus], (3 + bonus) / 4) for model in ("a/b", "c/d") for bonus in (0, 1)
    ]


CAPTURED = """
name: captured
recipe: {writer}
service: local
grid: {{sink: [daemon, lines]}}
launch: {{backend: local, python: .venv-cookbook/bin/python}}
"""


def test_captured_tokens_are_read_as_rollouts(shell: Shell, tmp_path: Path) -> None:
    """From the daemon's database, which may be in use, and from the exporter's files."""
    grid = tmp_path / "captured.yaml"
    grid.write_text(CAPTURED.format(writer=ROOT / "tests" / "support" / "write_captures.py"))
    shell.run("launch", str(grid), "--wait")
    for run in shell.runs("ls", "captured"):
        (folder,) = (shell.root / "captured/runs").glob(f"{run['id']}.*")
        drawn = json.loads((folder / "drawn.json").read_text())
        assert all(len(turn["sampled_tokens"]) == len(turn["logprobs"]) for turn in drawn)
        # Two summaries, the second for the first captured trajectory; then a captured group of two.
        exported = shell.run("rollouts", run["id"], "--export", "-", "--limit", "0")
        steps = [json.loads(line) for line in exported.splitlines()]
        places = [(s["iteration"], s["group"], s["trajectory"], s["step"]) for s in steps]
        assert places[:3] == [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 1, 1)]
        assert [place[2:] for place in places[3:]] == [(0, 0), (1, 0)]
        assert "sampled_tokens" not in steps[0]
        assert [{key: step[key] for key in drawn[0]} for step in steps[1:]] == drawn
        assert [step["reward"] for step in steps] == [0.5, 1.0, 1.0, None, None]
        listed = json.loads(shell.run("rollouts", run["id"], "--iteration", "1", "--json"))
        shown = listed["rollouts"]
        assert [rollout["tokens"] for rollout in shown] == [[turn] for turn in drawn[2:]]
        assert [(rollout["turns"], rollout["ob_len"], rollout["tags"]) for rollout in shown] == [
            (1, 3, ["rollout"])
        ] * 2
        full = shell.run("rollouts", run["id"], "--iteration", "1", "--full")
        assert " ".join(map(str, drawn[3]["sampled_tokens"])) in full


TRACKED = """
name: cookbook-sl-loop
extends: {grid}
secrets: [WANDB_API_KEY]
wandb: {{project: demo, mode: offline}}
"""


def test_one_that_is_killed_resumes_from_its_checkpoint(
    shell: Shell, tmp_path: Path, wandb_records: Callable[[Path], list[dict[str, Any]]]
) -> None:
    """Worker, program and launcher are killed: one run resumes, the other continues."""
    grid, sweep = str(tmp_path / "tracked.yaml"), "cookbook-sl-loop"
    Path(grid).write_text(TRACKED.format(grid=ROOT / "grids/cookbook_sl_loop.yaml"))
    shell.environment["WANDB_API_KEY"] = "k" * 40
    shell.run("engine", "start", "--latency", "0.3")  # slow enough to kill it mid-run
    launcher = shell.start("launch", grid, "--wait")
    # With 23 lines of two runs, one run has at least 12.
    until(lambda: len(_rows(shell, "*.1")) > 22 or launcher.poll() is not None)
    assert launcher.returncode is None, launcher.communicate()
    listed = shell.runs("ls", sweep)
    killed, other = sorted(listed, key=lambda run: -len(_rows(shell, f"{run['id']}.1")))
    launcher.kill()
    launcher.communicate()
    _kill(json.loads((shell.root / sweep / f"state/{killed['id']}/1.claimed.json").read_text()))
    before = _rows(shell, f"{killed['id']}.1")
    assert 11 < len(before) < 24

    shell.run("launch", grid, "launch.lease=15s", "--wait")  # counts as lost after 15 s
    states = {run["id"]: (run["state"], run["attempts"]) for run in shell.runs("ls", sweep)}
    assert states == {killed["id"]: ("succeeded", 2), other["id"]: ("succeeded", 1)}
    checkpoints = shell.root / sweep / f"runs/{killed['id']}.1/checkpoints.jsonl"
    resumed = json.loads(checkpoints.read_text().splitlines()[-1])["batch"]
    assert resumed > 0
    assert f"Resuming from batch {resumed}" in shell.run("logs", killed["id"])
    after = _rows(shell, f"{killed['id']}.2")
    # The second attempt starts with the first one's rows, then runs every step from the checkpoint.
    assert after[: len(before)] == before
    done = after[len(before) :]
    assert [row["step"] for row in done] == list(range(resumed, 24))
    # Steps that both attempts ran have identical losses.
    losses = {row["step"]: row["train_mean_nll"] for row in done}
    for row in before[resumed:]:
        assert losses[row["step"]] == row["train_mean_nll"]
    registry = Registry(str(shell.root))
    runs = registry.runs(sweep=sweep)
    merged = registry.metrics(runs[runs["run"] == killed["id"]], keys=["train_mean_nll"])
    assert merged["step"].astype(int).tolist() == list(range(24))
    plan = SweepFolder(open_store(str(shell.root)), sweep).read_plan()
    for attempt in (1, 2):
        (folder,) = (shell.root / sweep / f"runs/{killed['id']}.{attempt}/wandb").glob("offline-*")
        records = wandb_records(folder)
        offline = [record["run"] for record in records if record["type"] == "run"]
        # W&B's process was also killed, and lost what it had not written yet.
        assert len(offline) == 1 or (attempt == 1 and not offline)
        expected = (run_id(plan, killed["id"]), True)
        assert [(run["run_id"], run["resume"]) for run in offline] == [expected] * len(offline)
        assert {(run["project"], run["run_group"]) for run in offline} <= {("demo", sweep)}
        steps = [r["history"]["item"]["_step"] for r in records if r["type"] == "history"]
        assert steps == list(range(resumed, 24)) if attempt == 2 else set(steps) <= set(range(24))


def _rows(shell: Shell, folder: str) -> list[dict[str, Any]]:
    """Return the complete lines of a run's metrics."""
    rows: list[dict[str, Any]] = []
    for path in shell.root.glob(f"cookbook-sl-loop/runs/{folder}/metrics.jsonl"):
        text = path.read_text()
        rows += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return rows


def _kill(claim: dict[str, Any]) -> None:
    """Kill a worker and its descendants with SIGKILL."""
    worker = psutil.Process(claim["pid"])
    for process in (worker, *worker.children(recursive=True)):
        process.kill()
    until(lambda: not psutil.pid_exists(claim["pid"]) or worker.status() == "zombie")
