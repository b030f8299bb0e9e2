"""`launch.kubernetes`: what a grid may say of Kubernetes, its mistakes, the Job that it becomes."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sweeper.backends.base import JobSpec
from sweeper.backends.kubernetes.manifest import Names, manifest
from sweeper.backends.kubernetes.options import Options
from sweeper.errors import GridError
from sweeper.fields.options import read_options
from sweeper.grid import parse_grid

ROOT = Path(__file__).parents[2]
JOB = jsonschema.Draft202012Validator(
    json.loads((ROOT / "tests" / "support" / "kubernetes_job.json").read_text())
)
WHOLE = """{image: 'registry/sweeper@sha256:00', namespace: research, context: lab, python: python3,
  cpus: 0.5, memory: 4Gi, gpus: 2, resources: {ephemeral-storage: 10Gi, amd.com/gpu: "1"},
  node_selector: {pool: spot}, tolerations: ['spot=true:NoSchedule', gpu, 'lab:NoExecute'],
  priority_class: low, service_account: runs, queue: team, pull_secrets: [registry],
  secrets: {TINKER_API_KEY: tinker/api-key}, labels: {team: post-training}, timeout: 2h, ttl: 1d,
  pod: {securityContext: {runAsNonRoot: true}, container: {imagePullPolicy: Always}},
  overrides: [{if: {x: [1]}, memory: 8Gi}]}"""
RIGHT = [WHOLE, "{}", "null", "{image: sweeper, pod: {}}", "{labels: {example.com/a: ''}}"]
WRONG = [
    "[image]",
    "{imge: sweeper}",
    "{image: 'a b'}",
    "{namespace: Research}",
    "{cpus: 0}",
    "{cpus: 500m}",
    "{memory: 4 GB}",
    "{memory: 4096}",
    "{gpus: 0}",
    "{resources: {gpu: 1}}",
    "{node_selector: [spot]}",
    "{node_selector: {pool: 'a b'}}",
    "{tolerations: spot}",
    "{tolerations: ['spot=true:Never']}",
    "{priority_class: ''}",
    "{queue: Team}",
    "{pull_secrets: [A B]}",
    "{secrets: [TINKER_API_KEY]}",
    "{secrets: {TINKER_API_KEY: tml-the-value}}",
    "{secrets: {1A: tinker/api-key}}",
    "{labels: {sweeper/token: x}}",
    "{labels: {a: 3}}",
    "{timeout: 30 s}",
    "{ttl: week}",
    "{pod: [x]}",
    "{pod: {restartPolicy: Always}}",
    "{pod: {container: {env: []}}}",
]


def _grid(section: str) -> str:
    return f"recipe: r\ngrid: {{x: [1, 2]}}\nlaunch: {{kubernetes: {section}}}"


def _made(section: str) -> dict[str, Any]:
    options = parse_grid(_grid(section), "g.yaml").launch.options["kubernetes"]
    argv = ["python", "-c", "$(HOME)", "0123456789ab-a1"]
    job = JobSpec(argv[-1], "x=1", argv, "/", {}, grace_s=44.5)
    whole = read_options(Options, options, "launch.kubernetes")
    return manifest(job, whole, Names("s", "/nowhere/s"), "one")


@pytest.mark.parametrize("section", RIGHT)
def test_both_take_it(grid_readers: Any, section: str) -> None:
    grid_readers.take(_grid(section))


@pytest.mark.parametrize("section", WRONG)
def test_both_refuse_it(grid_readers: Any, section: str) -> None:
    error = grid_readers.refuse(_grid(section))
    assert re.match(r"g\.yaml:3:\d+: ", error)
    assert "tml-the-value" not in error


def test_what_holds_for_a_sweep_is_no_override() -> None:
    with pytest.raises(GridError, match="namespace must be the same for all runs of a sweep"):
        parse_grid(_grid("{overrides: [{if: {x: [1]}, namespace: other}]}"), "g.yaml")


@pytest.mark.parametrize("section", [WHOLE, "{image: sweeper}"])
def test_the_job_is_one_of_kubernetes(section: str) -> None:
    JOB.validate(_made(section))


def test_what_is_given_arrives() -> None:
    job = _made(WHOLE)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert (spec["suspend"], spec["backoffLimit"]) == (True, 0)
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (7200, 86400)
    assert pod["terminationGracePeriodSeconds"] == 65  # the recipe's own 44.5, and the worker's
    assert container["command"][2] == "$$(HOME)"
    assert container["resources"]["requests"]["cpu"] == "0.5"
    assert container["resources"]["limits"] == {
        "memory": "4Gi",
        "ephemeral-storage": "10Gi",
        "amd.com/gpu": "1",
        "nvidia.com/gpu": "2",
    }
    reference = {"secretKeyRef": {"name": "tinker", "key": "api-key"}}
    assert container["env"] == [{"name": "TINKER_API_KEY", "valueFrom": reference}]
    assert container["imagePullPolicy"] == "Always"
    assert pod["securityContext"] == {"runAsNonRoot": True}
    assert pod["tolerations"] == [
        {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
        {"key": "lab", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert len(job["metadata"]["name"]) <= 63


def test_the_documented_role_is_what_doctor_asks_for() -> None:
    from sweeper.backends.kubernetes.doctor import NEEDED, OF_USE

    text = (ROOT / "docs" / "kubernetes.md").read_text()
    for verb, group, resource in (*NEEDED, *(what for what, _ in OF_USE)):
        (rule,) = [
            line
            for line in text.splitlines()
            if f'apiGroups: ["{group}"]' in line and f'"{resource}"' in line
        ]
        assert f'"{verb}"' in rule
