"""Sections of backends in a grid: what is accepted and refused, and the job made of them."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.beaker_service import unknown

from sweeper.backends import aws_batch, backend_type
from sweeper.backends.aws_batch.options import RESTARTS
from sweeper.backends.base import Counter, JobSpec
from sweeper.backends.beaker import options as beaker_options
from sweeper.backends.beaker import spec as beaker_spec
from sweeper.backends.kubernetes import doctor, manifest
from sweeper.backends.kubernetes.options import Options as KubernetesOptions
from sweeper.backends.modal import spec as modal_spec
from sweeper.backends.modal.options import Options as ModalOptions
from sweeper.backends.secret_references import where_to_say
from sweeper.common.json_values import table_of
from sweeper.errors import GridError, UsageError
from sweeper.fields.options import over, read_options
from sweeper.grid import parse_grid

ROOT = Path(__file__).parents[2]
JOB = jsonschema.Draft202012Validator(
    json.loads((ROOT / "tests" / "support" / "kubernetes_job.json").read_text())
)
SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:tinker-AbCdEf"
PARAMETER = "arn:aws:ssm:eu-central-1:123456789012:parameter/wandb/key"
FULL = {
    "aws_batch": f"""{{queue: q, image: '123456789012.dkr.ecr.eu-central-1.amazonaws.com/sweeper:1',
  role: arn:x, execution_role: r, vcpus: 0.5, memory: 2048, gpus: 1, timeout: 2h, profile: lab,
  region: eu-central-1, secrets: {{TINKER_API_KEY: '{SECRET}', K: '{PARAMETER}'}}, array: 0,
  tags: {{team: post training}}, retries_on_interruption: 9, python: python3.12}}""",
    "beaker": """{image: lab/sweeper, workspace: lab/sweeps, budget: lab/training, python: python3,
  clusters: [lab/a100, 'lab/h100-*'], hostnames: [node-3.lab.org], priority: high,
  min_runtime: 1h, cpus: 0.5, memory: 4GiB, gpus: 2, shared_memory: 10GiB,
  datasets: {/data: lab/prompts}, weka: {/weka/models: models}, timeout: 2h,
  secrets: {TINKER_API_KEY: TINKER_API_KEY}, overrides: [{if: {x: [1]}, memory: 8GiB}]}""",
    "kubernetes": """{image: 'registry/sweeper@sha256:00', namespace: research, context: lab,
  python: python3, cpus: 0.5, memory: 4Gi, gpus: 2, queue: team, pull_secrets: [registry],
  resources: {ephemeral-storage: 10Gi, amd.com/gpu: "1"}, node_selector: {pool: spot},
  tolerations: ['spot=true:NoSchedule', gpu, 'lab:NoExecute'], priority_class: low,
  secrets: {TINKER_API_KEY: tinker/api-key}, labels: {team: post-training}, timeout: 2h, ttl: 1d,
  pod: {securityContext: {runAsNonRoot: true}, container: {imagePullPolicy: Always}},
  service_account: runs, overrides: [{if: {x: [1]}, memory: 8Gi}]}""",
    "modal": """{image: 'registry/sweeper@sha256:00', app: sweeps, environment: research,
  python: python3, cpus: 0.5, memory: 4096, region: [us-east, eu], cloud: aws, timeout: 2h,
  secrets: {TINKER_API_KEY: tinker, WANDB_API_KEY: keys, OTHER: keys},
  overrides: [{if: {x: [1]}, memory: 8192}]}""",
}

RIGHT = {
    "aws_batch": """{} | null | {queue: q}
  | {queue: 'arn:aws:batch:eu-central-1:1:job-queue/q', job_definition: 'd:3', image: null}""",
    "beaker": """{} | null | {image: 01JABC} | {image: null, docker_image: sweeper}
  | {docker_image: 'registry/sweeper@sha256:00', preemptible: false}""",
    "kubernetes": "{} | null | {image: sweeper, pod: {}} | {labels: {example.com/a: ''}}",
    "modal": "{} | null | {image: sweeper}",
}

WRONG = {
    "aws_batch": f"""[q] | {{quue: q}} | {{queue: 'a b'}} | {{queue: 3}} | {{vcpus: 0}}
  | {{vcpus: '1'}} | {{vcpus: true}} | {{memory: 2G}} | {{memory: 1.5}} | {{gpus: 0}}
  | {{timeout: 30 s}} | {{region: Frankfurt}} | {{secrets: [TINKER_API_KEY]}}
  | {{secrets: {{TINKER_API_KEY: tml-the-value}}}} | {{secrets: {{1A: '{SECRET}'}}}}
  | {{tags: {{'aws:x': y}}}} | {{tags: {{'Sweeper:x': y}}}} | {{tags: {{a: 3}}}} | {{array: -1}}
  | {{retries_on_interruption: 10}} | {{job_definition: d, image: i}}
  | {{job_definition: d, role: r}}""",
    "beaker": """[image] | {imge: lab/sweeper} | {image: 'a b'} | {image: a/b/c} | {gpus: 0}
  | {image: lab/sweeper, docker_image: sweeper} | {docker_image: 'a b'} | {workspace: ''}
  | {budget: 'lab/post training'} | {clusters: lab/a100} | {clusters: []} | {clusters: [a100]}
  | {hostnames: ['a b']} | {priority: highest} | {preemptible: sometimes} | {timeout: 30 s}
  | {preemptible: false, min_runtime: 1h} | {min_runtime: 30 s} | {cpus: 0} | {cpus: 500m}
  | {memory: 4 GB} | {memory: 4096} | {shared_memory: 10G} | {datasets: [lab/prompts]}
  | {datasets: {data: lab/prompts}} | {datasets: {/data: 'lab/a b'}} | {weka: {/weka: lab/models}}
  | {secrets: [TINKER_API_KEY]} | {secrets: {TINKER_API_KEY: tml-the-value}}
  | {secrets: {1A: TINKER_API_KEY}}""",
    "kubernetes": """[image] | {imge: sweeper} | {image: 'a b'} | {namespace: Research} | {cpus: 0}
  | {cpus: 500m} | {memory: 4 GB} | {memory: 4096} | {gpus: 0} | {resources: {gpu: 1}}
  | {node_selector: [spot]} | {node_selector: {pool: 'a b'}} | {tolerations: spot}
  | {tolerations: ['spot=true:Never']} | {priority_class: ''} | {queue: Team}
  | {pull_secrets: [A B]} | {secrets: [TINKER_API_KEY]}
  | {secrets: {TINKER_API_KEY: tml-the-value}} | {secrets: {1A: tinker/api-key}}
  | {labels: {sweeper/token: x}} | {labels: {a: 3}} | {timeout: 30 s} | {ttl: week} | {pod: [x]}
  | {pod: {restartPolicy: Always}} | {pod: {container: {env: []}}}""",
    "modal": """[image] | {imge: sweeper} | {image: 'a b'} | {app: 'my app'} | {app: ''}
  | {environment: a/b} | {python: ''} | {cpus: 0} | {cpus: 500m} | {memory: 4GiB} | {memory: 64}
  | {region: us-east} | {region: []} | {region: [US East]} | {cloud: [aws]} | {timeout: 30 s}
  | {timeout: week} | {gpus: 1} | {secrets: [TINKER_API_KEY]}
  | {secrets: {TINKER_API_KEY: tml-the-value}} | {secrets: {TINKER_API_KEY: as-the-token}}
  | {secrets: {1A: tinker}}""",
}


def _grid(backend: str, section: str) -> str:
    return f"recipe: r\ngrid: {{x: [1, 2]}}\nlaunch: {{{backend}: {section}}}"


def _options(backend: str, section: str) -> Any:
    """Return the options of a backend that a grid with this section gives it."""
    return parse_grid(_grid(backend, section), "g.yaml").launch.options[backend]


def _cases(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(backend, text.strip()) for backend in table for text in table[backend].split("|")]


@pytest.mark.parametrize(("backend", "section"), [*FULL.items(), *_cases(RIGHT)])
def test_reader_and_schema_accept(grid_readers, backend, section):
    grid_readers.take(_grid(backend, section))


@pytest.mark.parametrize(("backend", "section"), _cases(WRONG))
def test_reader_and_schema_refuse(grid_readers, backend, section):
    error = grid_readers.refuse(_grid(backend, section))
    assert re.match(r"g\.yaml:3:\d+: ", error)
    assert "tml-the-value" not in error and "as-the-token" not in error


@pytest.mark.parametrize(
    ("backend", "section", "message"),
    [
        ("beaker", "{overrides: [{if: {x: [1]}, workspace: lab/other}]}",
         "workspace must be the same for all runs of a sweep"),
        ("kubernetes", "{overrides: [{if: {x: [1]}, namespace: other}]}",
         "namespace must be the same for all runs of a sweep"),
        ("modal", "{overrides: [{if: {x: [1]}, app: other}]}",
         "app must be the same for all runs of a sweep"),
        ("modal", "{overrides: [{if: {x: [1]}, image: other}]}", "image must be the same for all"),
        ("modal", "{timeout: 25h}", "a sandbox lasts at most 24h"),
        ("aws_batch", "{vcpus: 0}", "vcpus is 0; it takes a number above 0, at most 1024"),
        ("aws_batch", "{secrets: {TINKER_API_KEY: tml-the-value}}", "TINKER_API_KEY takes the ARN"),
    ],
)  # fmt: skip
def test_the_reader_says_what_is_wrong(backend, section, message):
    with pytest.raises(GridError, match=message):
        parse_grid(_grid(backend, section), "g.yaml")


def test_options_of_aws_batch_arrive():
    assert {f.key or f.name for f in aws_batch.BACKEND.section} == {
        *aws_batch.options.Options._fields
    }
    launch = parse_grid(_grid("aws_batch", FULL["aws_batch"]), "g.yaml").launch
    given = table_of(launch.document()["aws_batch"])
    options = aws_batch.options.read_options(given)
    assert {key: getattr(options, key) for key in given} == given
    assert given.keys() == set(options._fields) - {"job_definition"}
    assert (options.queue, options.vcpus, options.timeout_s, options.array) == ("q", 0.5, 7200.0, 0)
    assert options.secrets == {"TINKER_API_KEY": SECRET, "K": PARAMETER}
    capabilities = aws_batch.BACKEND.capabilities(given)
    assert not capabilities.here and not capabilities.files
    assert (capabilities.python, capabilities.secrets) == ("python3.12", {"TINKER_API_KEY", "K"})
    assert capabilities.restarts == Counter(RESTARTS, 1)
    json.dumps(launch.document())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no queue is given"),
        ({"queue": "q"}, "no image is given.* or set job_definition"),
        ({"queue": "q", "image": "i", "job_definition": "d"}, "remove one of them"),
    ],
)
def test_aws_batch_needs_a_queue_and_an_image(given, message):
    with pytest.raises(UsageError, match=message):
        aws_batch.BACKEND.capabilities(given)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "sweeper" / "config.toml"
    path.parent.mkdir()
    return path


def _batch(text: str, backend: str = "aws-batch") -> dict[str, object]:
    grid = parse_grid(f"recipe: r\nlaunch: {{backend: {backend}, aws_batch: {text}}}", "g.yaml")
    return dict(grid.launch.options.get("aws_batch", {}))


def test_the_documentation_of_aws_batch_is_right(config):
    text = (ROOT / "docs" / "aws-batch.md").read_text()
    grid, toml = (text.split(f"```{kind}\n")[1].split("```")[0] for kind in ("yaml", "toml"))
    config.write_text(toml)
    options = parse_grid(f"recipe: r\n{grid}", "g.yaml").launch.options.get("aws_batch", {})
    secrets = aws_batch.options.read_options(options).secrets
    assert set(secrets) == {"TINKER_API_KEY", "WANDB_API_KEY"}
    table = text.split("| `launch.aws_batch` |")[1].split("\n\n")[0]
    assert all(f"`{key}`" in table for key in aws_batch.BACKEND.section.fields)
    assert aws_batch.options.read_options(_batch("{}")).queue == "spot"


def test_defaults_of_the_configuration_file_are_recorded(config):
    config.write_text(
        '[aws_batch]\nqueue = "spot"\nimage = "i"\nrole = "r"\nmemory = 512\ntimeout = "2h"\n'
    )
    defaults = {"queue": "spot", "image": "i", "role": "r", "timeout_s": 7200.0}
    assert _batch("{memory: 1024}") == {**defaults, "memory": 1024}
    # A named definition has its own role.
    assert {*_batch("{job_definition: d}")} == {"queue", "job_definition", "memory", "timeout_s"}
    assert _batch("{memory: 1024}", "tmux") == {"memory": 1024}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[aws_bacth]\n", r"config.toml: unknown table \[aws_bacth\]; did you mean 'aws_batch'"),
        ("[aws_batch]\nquue = 'x'\n", r"config\.toml.*unknown key 'quue' in aws_batch.*'queue'"),
        ("[aws_batch\n", r"config\.toml: cannot be read"),
    ],
)
def test_a_mistake_in_the_configuration_file_names_it(config, text, message):
    config.write_text(text)
    with pytest.raises(GridError, match=message):
        _batch("{}")
    if "bacth" not in text:
        assert _batch("{}", "local") == {}


def test_tables_of_unknown_backends_are_allowed_in_the_configuration_file(config):
    config.write_text("[backend_of_theirs]\nqueue = 1\n")
    assert _batch("{memory: 1024}") == {"memory": 1024}


ARGV = ["python", "-c", "$(HOME)", "0123456789ab-a1"]


def _experiment(section: str, **run: Any) -> dict[str, Any]:
    whole = read_options(beaker_options.Options, _options("beaker", section), "launch.beaker")
    job = JobSpec(ARGV[-1], "x=1", ARGV, "/", {}, grace_s=44.5)
    names = beaker_spec.Names("s", "/nowhere/s")
    return beaker_spec.spec(job, over(whole, run, beaker_options.merged), names)


def test_options_of_beaker_arrive():
    made = _experiment(FULL["beaker"])
    (task,) = made["tasks"]
    assert (made["version"], made["budget"]) == ("v2", "lab/training")
    assert made["retry"] == {"allowedTaskRetries": 0}
    assert task["image"] == {"beaker": "lab/sweeper"} and task["command"][2] == "$(HOME)"
    assert task["resources"] == {
        "cpuCount": 0.5, "memory": "4GiB", "gpuCount": 2, "sharedMemory": "10GiB",
    }  # fmt: skip
    hosts = {"cluster": ["lab/a100", "lab/h100-*"], "hostname": ["node-3.lab.org"]}
    hour = 3600 * 10**9
    assert task["constraints"] == hosts and task["timeout"] == 2 * hour
    assert task["context"] == {"priority": "high", "minRuntime": hour, "autoResume": False}
    assert task["envVars"] == [{"name": "TINKER_API_KEY", "secret": "TINKER_API_KEY"}]
    assert task["datasets"] == [
        {"mountPath": "/data", "source": {"beaker": "lab/prompts"}},
        {"mountPath": "/weka/models", "source": {"weka": "models"}},
    ]


@pytest.mark.parametrize("section", [FULL["beaker"], "{docker_image: a, preemptible: false}"])
def test_beakers_own_client_knows_every_key_of_an_experiment(section):
    made = _experiment(section)
    assert list(unknown(made)) == []
    made["tasks"][0]["comand"] = made["tasks"][0].pop("command")
    assert list(unknown(made)) == ["spec.tasks[0].comand is not known"]


def test_options_of_beaker_that_exclude_each_other_replace_each_other():
    over_image = {"docker_image": "b", "preemptible": False}
    (task,) = _experiment("{image: lab/a, min_runtime: 1h}", **over_image)["tasks"]
    assert (task["image"], task["context"]) == ({"docker": "b"}, {"preemptible": False})
    (task,) = _experiment("{docker_image: b, preemptible: false}", min_runtime_s=60.0)["tasks"]
    assert task["image"] == {"docker": "b"}
    assert task["context"] == {"minRuntime": 60 * 10**9, "autoResume": False}


def _kubernetes_job(section: str) -> dict[str, Any]:
    job = JobSpec(ARGV[-1], "x=1", ARGV, "/", {}, grace_s=44.5)
    whole = read_options(KubernetesOptions, _options("kubernetes", section), "launch.kubernetes")
    return manifest.manifest(job, whole, manifest.Names("s", "/nowhere/s"), "one")


@pytest.mark.parametrize("section", [FULL["kubernetes"], "{image: sweeper}"])
def test_the_schema_of_kubernetes_accepts_the_job(section):
    JOB.validate(_kubernetes_job(section))


def test_options_of_kubernetes_arrive():
    job = _kubernetes_job(FULL["kubernetes"])
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert (spec["suspend"], spec["backoffLimit"]) == (True, 0)
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (7200, 86400)
    assert pod["terminationGracePeriodSeconds"] == 65  # the recipe's 44.5 and the worker's
    assert container["command"][2] == "$$(HOME)"
    assert container["resources"]["requests"]["cpu"] == "0.5"
    assert container["resources"]["limits"] == {
        "memory": "4Gi", "ephemeral-storage": "10Gi", "amd.com/gpu": "1", "nvidia.com/gpu": "2",
    }  # fmt: skip
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


def test_the_documented_role_of_kubernetes_is_what_doctor_asks_for():
    lines = (ROOT / "docs" / "kubernetes.md").read_text().splitlines()
    for verb, group, resource in (*doctor.NEEDED, *(what for what, _ in doctor.OF_USE)):
        wanted = f'apiGroups: ["{group}"]', f'"{resource}"'
        (rule,) = [line for line in lines if all(part in line for part in wanted)]
        assert f'"{verb}"' in rule


def test_options_of_modal_arrive():
    job = JobSpec(ARGV[-1], "x=1, y", ["python", "-m", "x"], "/", {})
    whole = read_options(ModalOptions, _options("modal", FULL["modal"]), "launch.modal")
    made = modal_spec.spec(job, whole, modal_spec.Names("s", "/nowhere/s"))
    name, tags = made.pop("name"), made.pop("tags")
    assert len(name) <= 63 and name.endswith(job.token) and tags["run"] == "x_1__y"
    assert made == {
        **{"args": ["python", "-m", "x"], "image": "registry/sweeper@sha256:00", "timeout": 7200},
        **{"secrets": ["keys", "tinker"], "cpu": 0.5, "memory": 4096, "cloud": "aws"},
        "region": ["us-east", "eu"],
    }


@pytest.mark.parametrize(
    ("backend", "where"),
    [
        ("kubernetes", " (`launch.kubernetes.secrets: {KEY: tinker/api-key}`)"),
        ("ssh", " (`launch.ssh.secrets: [KEY]`)"),
        ("slurm", ""),
    ],
)
def test_a_message_says_which_option_passes_a_secret(backend: str, where: str) -> None:
    assert where_to_say(backend_type(backend), "KEY") == where
