"""Users' programs with their own interpreters and folders, launched by the example grids."""

import json
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.typed import Typed

from sweeper.engine import lifecycle

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


class Shell(Typed):
    """A user's folder with the grids and a cache of the hub."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("HF_", "TINKER_"), HF_HOME=str(folder / "hf"))
        shutil.copytree(ROOT / "grids", folder / "grids")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    lifecycle.stop(str(tmp_path / "home"))


def test_a_module_in_a_folder_and_an_interpreter_of_its_own(shell: Shell) -> None:
    """The interpreter has chz but not sweeper."""
    folder = shell.folder / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    borrowed = sysconfig.get_path("purelib")
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name in ("chz", "typing_extensions.py"):
        (site / name).symlink_to(Path(borrowed, name))
    shell.run("launch", "grids/module.yaml", "launch.python=own/bin/python", "seeds=1", "--wait")
    runs = shell.runs_of("module")
    assert [run["state"] for run in runs] == ["succeeded"] * 6
    heights = {(r["config"]["learning_rate"], r["config"]["noise"]): r["value"] for r in runs}
    assert heights[0.03, 0.1] > 100 * heights[0.3, 0.1]
    plan = json.loads((shell.folder / "sweeps/module/sweep.json").read_text())
    assert plan["recipe"]["python"] == str(folder / "bin" / "python")
    assert plan["recipe"]["cwd"] == str(shell.folder / "grids" / "examples")
    assert "lowest point" in shell.run("logs", "module/lr=0.3,noise=0.1,seed=0")


STAGES = """
import json, os, pathlib, random, sys
import chz

@chz.chz
class CLIConfig:
    rate: float = 1.0

def main(config: CLIConfig) -> None:
    top = pathlib.Path(os.environ["RUNS_DIR"], "both")
    for stage in ("first", "second"):
        folder = top / stage
        folder.mkdir(parents=True, exist_ok=True)
        done = folder / "checkpoints.jsonl"
        if done.exists():
            print("found", stage)
            continue
        with open(folder / "metrics.jsonl", "a") as file:
            value = config.rate * random.random() + (10 if stage == "first" else 0)
            file.write(json.dumps({"step": 0, "loss": value}) + "\\n")
        done.write_text(json.dumps({"name": "final", "batch": 1}) + "\\n")
        if os.environ["SWEEPER_ATTEMPT"] == "1":
            sys.exit("stopped after " + stage)

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
STAGED = """
name: staged
recipe: stages.py
grid: {rate: [1.0, 2.0]}
seeds: {field: none, values: 2}
metric: {name: loss, goal: minimize}
launch:
  backend: local
  retries: 1
  env: {RUNS_DIR: "{log_path}/all"}
  metrics_dir: "{log_path}/all/both/second"
"""


def test_a_program_of_stages_without_a_field_for_its_folder_or_a_seed(shell: Shell) -> None:
    """Its folder comes from a variable, its metrics are in a subfolder; replicates have no seed."""
    (shell.folder / "stages.py").write_text(STAGES)
    (shell.folder / "staged.yaml").write_text(STAGED)
    shell.run("launch", "staged.yaml", "--wait")
    runs = shell.runs_of("staged")
    assert [(run["state"], run["attempts"]) for run in runs] == [("succeeded", 2)] * 4
    assert all(0 <= run["value"] < 2 for run in runs)  # the second stage's, not the first's
    assert len({run["value"] for run in runs}) == 4
    log = shell.run("logs", runs[0]["id"])
    assert "found first" in log
    assert "found second" not in log
    listed = shell.run("ls", "staged")
    assert "staged: no seeds are set" in listed
    shown = json.loads(shell.run("show", runs[0]["id"], "--json"))
    assert [record["name"] for record in shown["checkpoints"]] == ["final"]
    assert any("/both/first/metrics.jsonl" in file["path"] for file in shown["files"])
    assert "Seeds are not set" in shell.run("analyze", "staged")


def test_a_command_in_another_language(shell: Shell) -> None:
    shell.run("launch", "grids/command.yaml", "--wait")
    values = {run["config"]["learning_rate"]: run["value"] for run in shell.runs_of("command")}
    expected = {rate: (5 * (1 - 2 * rate) ** 29) ** 2 for rate in (0.03, 0.1, 0.3)}
    assert values == {rate: pytest.approx(height) for rate, height in expected.items()}
    assert "lowest point at 0.000" in shell.run("logs", "command/lr=0.3")


ASK = """
import json, os, sys
import tinker
from transformers import AutoTokenizer

named = [name.rpartition("=")[2] for name in sys.argv[2:]]
service = tinker.ServiceClient()
found = {"step": 0, "loss": 0.5}
for name in named:
    sampler = service.create_sampling_client(base_model=name).result()
    tokens = AutoTokenizer.from_pretrained(name).encode("2+2=4")
    assert tokens == sampler.get_tokenizer().encode("2+2=4")
    found[name] = len(tokens)
found["mine"] = AutoTokenizer.from_pretrained("me/mine").encode("2+2=4")[:5]
found["home"] = os.environ["HF_HOME"]
service.close("success").result()
with open(os.path.join(sys.argv[1], "metrics.jsonl"), "w") as file:
    file.write(json.dumps(found) + "\\n")
"""
NAMES = """
name: names
command: [{python}, ask.py, "{{log_path}}", tiny/qwen3, "a={{a}}", "b={{b}}"]
service: local
base: {{a: Qwen/Qwen3.5-9B-Base, b: somebody/else, model_name: nobody/has-it}}
launch: {{backend: local}}
"""


def test_names_of_models_lead_to_the_engines_tokenizers(
    shell: Shell, engine: lifecycle.EngineInfo
) -> None:
    """Aliases of the engine take precedence over the user's cache, which does not change."""
    cache = shell.folder / "hf" / "hub"
    cache.mkdir(parents=True)
    theirs = Path(engine.home, "hub", "models--tiny--qwen3")
    shutil.copytree(theirs, cache / "models--me--mine")
    shutil.copytree(theirs, cache / "models--Qwen--Qwen3.5-9B-Base")
    for broken in (cache / "models--Qwen--Qwen3.5-9B-Base").rglob("tokenizer*.json"):
        broken.write_text("not for this model")
    before = _contents(cache)
    (shell.folder / "ask.py").write_text(ASK)
    (shell.folder / "names.yaml").write_text(NAMES.format(python=sys.executable))
    shell.run("engine", "start", "--alias", "somebody/else=tiny/qwen3")
    assert "an engine is already running" in shell.run("engine", "start", code=6)
    output = shell.run("launch", "names.yaml", "--wait")
    assert "tiny/qwen3 stands in for Qwen/Qwen3.5-9B-Base" in output
    assert "tiny/qwen3 stands in for somebody/else" in output
    assert "no model nobody/has-it" in output
    assert "--alias nobody/has-it=tiny/qwen3" in output
    metrics = (
        shell.folder / "sweeps/names/runs" / f"{shell.runs_of('names')[0]['id']}.1/metrics.jsonl"
    )
    row = json.loads(metrics.read_text())
    models = ("tiny/qwen3", "Qwen/Qwen3.5-9B-Base", "somebody/else")
    assert [row[name] for name in models] == [5, 5, 5]
    assert len(row["mine"]) == 5
    assert row["home"] == str(shell.folder / "hf")
    assert _contents(cache) == before
    # After its removal from the user's cache, the next launch does not find the model.
    shutil.rmtree(cache / "models--me--mine")
    shell.run("launch", "names.yaml", "b=tiny/qwen3", "--wait", "--drop", code=3)
    (failed,) = [run for run in shell.runs_of("names") if run["state"] == "failed"]
    assert "me/mine" in shell.run("logs", failed["id"])


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


TRAIN = """
import json, os, sys, time
import tinker

service = tinker.ServiceClient()
training = service.create_lora_training_client("tiny/qwen3", rank=4, seed=int(sys.argv[2])).result()
while not os.path.exists(sys.argv[3]):  # until others wait for a seat
    time.sleep(0.05)
target = tinker.TensorData(data=[20, 30, 40], dtype="int64")
example = tinker.Datum(
    model_input=tinker.ModelInput.from_ints([10, 20, 30]), loss_fn_inputs={"target_tokens": target}
)
with open(os.path.join(sys.argv[1], "metrics.jsonl"), "w") as file:
    for step in range(3):
        passed = training.forward_backward([example], "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
        loss = passed.result().metrics["loss:sum"]
        file.write(json.dumps({"step": step, "loss": loss}) + "\\n")
service.close("success").result()
"""
MANY = """
name: many
command: [{python}, train.py, "{{log_path}}", "{{seed}}", {go}]
service: local
seeds: 16
metric: {{name: loss, goal: minimize}}
launch: {{backend: local, max_parallel: 8}}
"""


@pytest.mark.timeout(600)
def test_sixteen_runs_share_an_engine_with_four_seats(
    shell: Shell, metered: Callable[[lifecycle.EngineInfo], dict[str, Any]]
) -> None:
    shell.run("engine", "start", "--max-sessions", "4")
    (shell.folder / "train.py").write_text(TRAIN)
    go = shell.folder / "go"
    (shell.folder / "many.yaml").write_text(MANY.format(python=sys.executable, go=go))
    info = lifecycle.wait(str(shell.folder / "home"), timeout=120)
    launcher = shell.start("launch", "many.yaml", "--wait")
    deadline = time.monotonic() + 200
    while not metered(info)["total"]["paused"]:  # until a run has no seat
        assert time.monotonic() < deadline and launcher.poll() is None
        time.sleep(0.2)
    go.touch()
    output, errors = launcher.communicate(timeout=240)
    assert launcher.returncode == 0, output + errors
    runs = shell.runs_of("many")
    assert [(run["state"], run["attempts"]) for run in runs] == [("succeeded", 1)] * 16
    assert all(run["value"] < 8.0 for run in runs)  # from 16, by two steps
    report = metered(info)
    assert report["total"]["steps"] == 48
    tags = {tag for line in report["sessions"] for tag in line["tags"]}
    assert {f"run:{run['id']}.1" for run in runs} <= tags
