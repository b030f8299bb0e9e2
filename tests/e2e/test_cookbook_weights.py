"""A winner's weights as PEFT and transformers load them, and pushed to a stand-in for the hub."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import hub as hubs
from support.environments import environment, needs

from sweeper import paths
from sweeper.engine import checkpoints, lora, net
from sweeper.engine.models import usual_models

PYTHON = str(environment("cookbook") / "bin" / "python")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    needs("cookbook", "tinker-cookbook"),
]
WINNER = "taught/lr=1e-2"
TOKENS = [*range(3, 131), 256, 258, 65, 65, 10]

# Logits


def _engine_logits(home: str, address: str, *, trained: bool = True) -> Any:
    """Return the logits of the engine's network for one of its checkpoints."""
    checkpoint = checkpoints.Vault(paths.checkpoints(home)).load(checkpoints.parse(address))
    model = usual_models(home).get(checkpoint.base)
    scale = checkpoint.config.scale if trained else 0.0
    network = lora.merge(model.base, model.shape, model.rotation, checkpoint.adapter, scale)
    return net.logits(network, net.forward(network, np.array([TOKENS]))[0])


_LOGITS = """
import importlib, sys
import numpy, torch

loader, folder, tokens, out = sys.argv[1:]
package, name = loader.split(".")
kind = getattr(importlib.import_module(package), name)
model = kind.from_pretrained(folder, dtype=torch.float32)
with torch.no_grad():
    logits = model(torch.tensor([list(map(int, tokens.split()))])).logits[0]
numpy.save(out, logits.numpy())
print(type(model).__name__, sum("lora" in name for name, _ in model.named_parameters()))
"""


@pytest.mark.parametrize(
    ("form", "loader", "loaded"),
    [
        ("peft", "peft.AutoPeftModelForCausalLM", "PeftModelForCausalLM 30"),
        ("merged", "transformers.AutoModelForCausalLM", "Qwen3ForCausalLM 0"),
    ],
)
def test_it_has_the_logits_of_the_engine(
    taught: Any, tmp_path: Path, form: str, loader: str, loaded: str
) -> None:
    target, out = tmp_path / form, tmp_path / "logits.npy"
    how = ("--format", form, "--python", PYTHON, "--json")
    done = taught("weights", "taught", "--to", str(target), *how)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["run"] == WINNER
    ours = _engine_logits(str(taught.home), facts["path"])
    tokens = " ".join(map(str, TOKENS))
    process = subprocess.run(
        [PYTHON, "-c", _LOGITS, loader, str(target), tokens, str(out)],
        env={**taught.environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == loaded
    theirs = np.load(out)
    assert theirs.shape == ours.shape == (len(TOKENS), 261)
    untrained = _engine_logits(str(taught.home), facts["path"], trained=False)
    off, moved = (float(np.abs(other - ours).max()) for other in (theirs, untrained))
    print(f"{form} by {loader}: off by {off:.2g} at most; training moved logits by {moved:.2g}")
    assert off < 1e-3 < moved / 100


# Pushes

LARGE = "adapter_model.safetensors"


@pytest.fixture
def hub() -> Iterator[Any]:
    """Yield the stand-in for the hub (`tests/support/hub.py`). `good` is the token of `me`."""
    made = hubs.Hub({"good": "me", "other": "you"})
    with hubs.serve(made):
        yield made


def _pushing(target: Path, *more: str, to: str = "me/winner") -> list[str]:
    how = ("--format", "peft", "--python", PYTHON)
    return ["weights", "taught", "--to", str(target), *how, "--push", to, *more]


def _at(hub: Any, token: str = "good") -> dict[str, str]:  # noqa: S107 - of a stand-in
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}


def _same(repo: Any, target: Path) -> bool:
    return repo.files == {path.name: path.read_bytes() for path in target.iterdir()}


def test_a_folder_is_pushed_and_pushed_again(taught: Any, hub: Any, tmp_path: Path) -> None:
    """Into a new private repository. An equal push adds no commit; other files stay."""
    target = tmp_path / "winner"
    done = taught(*_pushing(target, "--json"), **_at(hub))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pushed"] == "me/winner"
    repo = hub.repos["me/winner"]
    assert (repo.private, repo.commits) == (True, 1)
    assert set(repo.files) == {"README.md", "adapter_config.json", LARGE}
    assert _same(repo, target)
    again = taught(*_pushing(target), **_at(hub))
    assert again.returncode == 0, again.stderr
    assert again.stdout.endswith("pushed to me/winner\n")
    assert (repo.commits, len(hub.sent)) == (1, 1)
    repo.files |= {"notes.md": b"mine", "README.md": b"old"}
    for _ in range(2):
        assert taught(*_pushing(target), **_at(hub)).returncode == 0
    assert repo.files.pop("notes.md") == b"mine"
    assert _same(repo, target)
    assert (repo.commits, len(hub.sent)) == (2, 1)


@pytest.mark.parametrize(
    ("token", "to", "reason"),
    [("bad", "me/winner", "401"), ("other", "me/winner", "403"), ("good", "a b/c", "Repo id")],
)
def test_a_refused_push_says_why_and_keeps_the_folder(
    taught: Any, hub: Any, tmp_path: Path, token: str, to: str, reason: str
) -> None:
    target = tmp_path / "winner"
    done = taught(*_pushing(target, to=to), **_at(hub, token))
    assert done.returncode == 6
    [line] = done.stderr.splitlines()
    assert "tinker-cookbook: push failed: " in line and reason in line
    assert line.endswith("is complete: repeat the command to push it again")
    assert (hub.repos, hub.objects) == ({}, {})
    before = (target / LARGE).stat().st_mtime_ns
    done = taught(*_pushing(target), **_at(hub))
    assert done.returncode == 0, done.stderr
    assert (target / LARGE).stat().st_mtime_ns == before  # not downloaded again
    assert _same(hub.repos["me/winner"], target)


def test_a_push_that_is_killed_is_completed_by_the_same_command(
    taught: Any, hub: Any, tmp_path: Path
) -> None:
    target = tmp_path / "winner"
    hub.hold.set()
    first = taught.start(*_pushing(target), group=True, **_at(hub))
    assert hub.held.wait(300)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    hub.hold.clear()
    hub.go_on.set()
    assert hub.repos["me/winner"].commits == 0
    assert hub.objects == {}
    again = taught(*_pushing(target), **_at(hub))
    assert again.returncode == 0, again.stderr
    repo = hub.repos["me/winner"]
    assert (repo.commits, len(hub.sent)) == (1, 1)
    assert _same(repo, target)


def test_a_folder_of_something_else_is_neither_pushed_nor_replaced(
    taught: Any, hub: Any, tmp_path: Path
) -> None:
    target = tmp_path / "winner"
    assert taught("weights", WINNER, "--which", "000002", "--to", str(target)).returncode == 0
    before = load_file(target / LARGE)
    for other in (_pushing(target), _pushing(target, "--which", "000002")):
        done = taught(*other, **_at(hub))
        assert done.returncode == 2
        assert "exists already; name a new folder" in done.stderr
    assert hub.repos == {}
    after = load_file(target / LARGE)
    assert all((after[name] == array).all() for name, array in before.items())
