"""What Kubernetes, Beaker and Modal have in common: jobs that run in containers."""

import importlib
from pathlib import Path

import pytest

from sweeper.backends import backend_type
from sweeper.backends.container_jobs import process_exit_code
from sweeper.grid import parse_grid

DOCS = Path(__file__).parents[2] / "docs"
ON_S3 = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
SECRETS = {"beaker": ON_S3, "kubernetes": set[str](), "modal": ON_S3}


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (3, 3), (127, 127), (128, 128), (137, -9), (143, -15), (255, 255)]
)
def test_exit_codes_of_containers_are_those_of_python(status, code):
    assert process_exit_code(status) == code


@pytest.mark.parametrize("name", SECRETS)
def test_the_section_declares_each_option(name):
    options = importlib.import_module(f"sweeper.backends.{name}.options").Options
    section = backend_type(name).section
    assert [field.key or field.name for field in section] == list(options._fields)


@pytest.mark.parametrize(("name", "secrets"), SECRETS.items())
def test_the_documentation_is_right(name, secrets):
    text = (DOCS / f"{name}.md").read_text()
    grid = text.split("```yaml\n")[1].split("```")[0]
    options = parse_grid(f"recipe: r\n{grid}", "g.yaml").launch.options[name]
    capabilities = backend_type(name).capabilities(options)
    assert (capabilities.here, capabilities.files, capabilities.restarts) == (False, False, None)
    assert capabilities.secrets == {"TINKER_API_KEY", "WANDB_API_KEY"} | secrets
    table = text.split(f"| `launch.{name}` |")[1].split("\n\n")[0]
    assert all(f"`{key}`" in table for key in backend_type(name).section.fields)
