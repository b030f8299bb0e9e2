"""`sweeper plan --manifest`: what a launch would submit, in the format of each backend."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from sweeper.backends import every_backend
from sweeper.backends.slurm.sbatch import script
from sweeper.cli import main
from sweeper.planner.plan import plan
from sweeper.store.documents import encode
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

JOB = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[1] / "support" / "kubernetes_job.json").read_text())
)
CANARY = "tml-canary-41d2c0"
GRID: dict[str, Any] = {
    "name": "toys",
    "command": ["/bin/echo", "{lr}", "{word}", "{log_path}"],
    "grid": {"lr": [0.1, 0.2], "word": ["on", "1e3: {a}"]},
    "secrets": ["KEY"],
    "launch": {
        "max_parallel": 3,
        "env": {"MODE": "quick"},
        "kubernetes": {
            "image": "sweeper",
            "secrets": {"KEY": "keys/wandb"},
            "labels": {"team": "no", "empty": ""},
            "pod": {"securityContext": {"runAsNonRoot": True}, "hostAliases": []},
            "overrides": [{"if": {"lr": [0.2]}, "memory": "8Gi", "queue": "team"}],
        },
        "beaker": {"image": "lab/sweeper", "secrets": {"KEY": "WANDB"}, "gpus": 2},
        "aws_batch": {
            **{"queue": "q", "image": "i", "region": "eu-central-1", "array": 2},
            "secrets": {"KEY": "arn:aws:ssm:eu-central-1:1:parameter/k"},
        },
        "slurm": {
            **{"mem": "2G", "setup": ["module load 'x'"], "extra": ["--comment2=a b"]},
            "overrides": [{"if": {"lr": [0.2]}, "mem": "8G"}],
        },
    },
}
ROOT = "memory://manifests"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make clusters unreachable and set the secrets of a launch."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("KEY", CANARY)
    monkeypatch.setenv("BEAKER_TOKEN", CANARY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")


@pytest.fixture
def manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that returns the printed manifests of the grid for a backend."""

    def of(backend: str, *more: str, code: int = 0, root: str = ROOT) -> str:
        path = tmp_path / "g.json"
        path.write_text(json.dumps(GRID))
        argv = ["plan", str(path), "--backend", backend, "--root", root, "--manifest", *more]
        assert main(argv) == code
        printed = capsys.readouterr()
        assert CANARY not in printed.out + printed.err
        return printed.err if code else printed.out

    return of


def _documents(text: str) -> list[Any]:
    """Read documents as a YAML 1.1 program does, such as kubectl."""
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)
    return list(yaml.load_all(text))


def test_manifests_of_kubernetes_are_jobs(manifests: Any) -> None:
    text = manifests("kubernetes")
    jobs = _documents(text)
    assert len(jobs) == 4
    for job in jobs:
        JOB.validate(job)
    last = jobs[3]
    assert jobs[2]["metadata"]["annotations"]["sweeper/run"] == "lr=0.2,word=on"
    assert last["metadata"]["labels"]["team"] == "no"
    assert last["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    pod = last["spec"]["template"]["spec"]
    assert (pod["hostAliases"], pod["securityContext"]) == ([], {"runAsNonRoot": True})
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "8Gi"}
    assert container["command"][-2] == f"{ROOT}/toys"
    name = {"secretKeyRef": {"name": "keys", "key": "wandb"}}
    assert container["env"] == [{"name": "KEY", "valueFrom": name}]
    assert jobs[0]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "memory": "2Gi"
    }


def test_manifests_of_beaker_are_experiments(manifests: Any) -> None:
    text = manifests("beaker")
    experiments = _documents(text)
    assert [experiment["version"] for experiment in experiments] == ["v2"] * 4
    (task,) = experiments[0]["tasks"]
    assert task["envVars"] == [{"name": "KEY", "secret": "WANDB"}]
    assert task["resources"] == {"cpuCount": 1.0, "memory": "2GiB", "gpuCount": 2}
    token = task["command"][-1]
    assert f"-{token}: lr=0.1,word=on\n" in text  # the name is not in the spec


def test_manifests_of_aws_batch_are_submissions(manifests: Any) -> None:
    """Three jobs are submitted as an array, then the fourth alone."""
    definition, array, alone = _documents(manifests("aws-batch"))
    assert definition["containerProperties"]["secrets"][0]["name"] == "KEY"
    assert array["arrayProperties"] == {"size": 3}
    assert "arrayProperties" not in alone
    assert array["jobDefinition"] == alone["jobDefinition"] == definition["jobDefinitionName"]
    assert alone["containerOverrides"]["command"][-2] == f"{ROOT}/toys"


def test_the_manifest_of_slurm_is_a_script(manifests: Any, tmp_path: Path) -> None:
    """Run by a shell, it submits an array of two jobs with 2G and two jobs with 8G."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$0.$$.args"\n/bin/cat > "$0.$$.script"\n')
    sbatch.chmod(0o755)
    text = manifests("slurm", root=str(tmp_path))
    environment = {"PATH": str(tmp_path)}
    subprocess.run(["/bin/sh", "-e"], input=text, text=True, env=environment, check=True)
    calls = [path.read_text().splitlines() for path in tmp_path.glob("sbatch.*.args")]
    assert sorted(next(a for a in call if a.startswith("--mem=")) for call in calls) == [
        "--mem=2G",
        "--mem=8G",
        "--mem=8G",
    ]
    (array,) = [call for call in calls if "--array=0-1" in call]
    assert {"--comment2=a b", f"--chdir={tmp_path}/toys"} <= set(array)
    table = str(tmp_path / "toys" / "slurm" / "TABLE.json")
    for path in tmp_path.glob("sbatch.*.script"):
        assert path.read_text() == script(["module load 'x'"], table)
    tasks = [line for line in text.splitlines() if line.startswith("# task ")]
    assert len(tasks) == 4
    assert shlex.split(tasks[0].partition(": ")[2])[-2] == f"{tmp_path}/toys"
    assert not (tmp_path / "toys").exists()


def test_a_backend_without_manifests_is_refused(manifests: Any) -> None:
    have = {backend.name for backend in every_backend() if backend.manifests is not None}
    for backend in every_backend():
        if backend.manifests is None:
            hosts = ["launch.ssh={hosts: [a]}"] if backend.name == "ssh" else []
            (line,) = manifests(backend.name, *hosts, code=2).splitlines()
            assert f"jobs of {backend.name} have no manifests" in line
            assert all(name in line for name in have)


def _at_several(*places: str | dict[str, Any]) -> dict[str, Any]:
    sections = {key: value for key, value in GRID["launch"].items() if isinstance(value, dict)}
    shares = [
        place
        if isinstance(place, str)
        else {name: {**sections[name], **more} for name, more in place.items()}
        for place in places
    ]
    return GRID | {"launch": {"env": sections["env"], "backends": shares}}


def test_each_of_several_places_has_its_manifests(tmp_path: Path, capsys: Any) -> None:
    """They use the options and the share of the place."""
    path = tmp_path / "g.json"
    aws = {"aws_batch": {"max_parallel": 2, "array": 2}}
    grid = _at_several("tmux", {"beaker": {"max_parallel": 1}}, aws, {"kubernetes": {}})
    path.write_text(json.dumps(grid))
    argv = ["plan", str(path), "--root", ROOT, "--manifest"]
    assert main(argv) == 0
    whole = capsys.readouterr().out
    heads = [
        line for line in whole.splitlines() if ": shown as if all" in line or ": jobs of" in line
    ]
    assert [head[2:].partition(":")[0] for head in heads] == [
        *("tmux", "beaker", "aws-batch", "kubernetes")
    ]
    assert heads[0] == "# tmux: jobs of this backend have no manifests"
    documents = _documents(whole)
    first, *arrays = [d for d in documents if "containerProperties" in d or "jobQueue" in d]
    assert first["containerProperties"]["image"] == "i"
    assert [document["arrayProperties"]["size"] for document in arrays] == [2, 2]
    assert [d.get("kind") for d in documents].count("Job") == 4
    assert main([*argv, "--backend", "beaker"]) == 0  # the manifests of one
    alone = capsys.readouterr().out
    assert [document["version"] for document in _documents(alone)] == ["v2"] * 4
    assert "as if" not in alone and alone in whole
    path.write_text(json.dumps(_at_several("tmux", "local")))
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "jobs of tmux and local have no manifests" in line


@pytest.mark.parametrize(
    ("more", "root", "message"),
    [
        ((), "here", "jobs cannot read the folder"),
        (("launch.kubernetes.secrets={}",), ROOT, "say where jobs find KEY"),
        (("launch.kubernetes.image=null",), ROOT, "no image is given"),
        (("--json",), ROOT, "use either --manifest or --json"),
    ],
)
def test_what_a_launch_refuses_has_no_manifest(
    manifests: Any, tmp_path: Path, more: tuple[str, ...], root: str, message: str
) -> None:
    where = str(tmp_path / root) if root == "here" else root
    (line,) = manifests("kubernetes", *more, code=2, root=where).splitlines()
    assert message in line


def test_finished_runs_have_no_manifest(manifests: Any, tmp_path: Path) -> None:
    planned = plan(GRID | {"launch": {}})
    store, (first, *_) = LocalStore(str(tmp_path)), planned.runs
    for event in (Event.INTENT, Event.SUBMITTED, Event.CLAIMED, Event.SUCCEEDED):
        store.create(SweepFolder(store, "toys").event(first.id, 1, event), encode({"schema": 1}))
    text = manifests("slurm", root=str(tmp_path))
    assert first.id not in text
    assert text.count("# task ") == len(planned.runs) - 1
