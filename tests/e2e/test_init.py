"""`sweeper init`: the file that it writes can be planned without changes."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from support.typed import Typed

from sweeper.fields.nodes import Problems, plain, read_yaml

pytestmark = pytest.mark.e2e

NESTED = """
from collections.abc import Callable
from typing import Literal
import chz

@chz.chz
class Optimizer:
    learning_rate: float = chz.field(default=1e-4, doc="at the peak")
    betas: tuple[float, float] = (0.9, 0.95)

@chz.chz
class Data:
    path: str = chz.field(doc="where the data lie")
    split: Literal["train", "test"] = "train"

@chz.chz
class CLIConfig:
    log_path: str = chz.field(munger=lambda _, text: text)
    data: Data
    optimizer: Optimizer = chz.field(default_factory=Optimizer)
    share: float = 0.9
    callback: Callable[[int], int] | None = None
    behavior_if_log_dir_exists: Literal["ask", "resume"] = "ask"

    @chz.validate
    def _check(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError("share must be between 0 and 1")

def main(config: CLIConfig) -> None: ...

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
PICKY = """
import chz

@chz.chz
class Config:
    log_path: str
    share: float = 0.9
    steps: int = 10

    @chz.validate
    def _check(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be between 0 and 1, not {self.share}")

def main(config: Config) -> None: ...

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""


@pytest.mark.parametrize(
    ("reference", "name", "axis", "seeds"),
    [
        ("sft", "sft", "learning_rate", 3),
        ("rl", "rl", "learning_rate", 3),
        ("sweeper.recipes.sft:Config", "sft", "learning_rate", 3),
        ("nested.py", "nested", "optimizer.learning_rate", 1),
        ("picky.py", "picky", "steps", 1),
    ],
)
def test_what_it_writes_plans(
    reference: str, name: str, axis: str, seeds: int, tmp_path: Path
) -> None:
    (tmp_path / "nested.py").write_text(NESTED)
    (tmp_path / "picky.py").write_text(PICKY)
    output = Typed(tmp_path).complete("init", reference)
    fill = [*re.findall(r"^  (\S+):  # FILL IN", (tmp_path / f"{name}.yaml").read_text(), re.M)]
    warning = (
        f"sweeper: warning: this grid is not ready for `sweeper plan`: fill in {', '.join(fill)}\n"
    )
    assert output.stderr == warning * bool(fill)
    assert output.stdout == f"wrote {name}.yaml; look at it with `sweeper plan {name}.yaml`\n"
    planned = Typed(tmp_path).complete(
        "plan", f"{name}.yaml", "--json", *(f"{key}=x" for key in fill)
    )
    assert planned.stderr == ""
    document = json.loads(planned.stdout)
    assert document["warnings"] == []
    assert list(document["axes"]) == [axis]
    assert len(document["runs"]) == len(document["axes"][axis]) * seeds
    text = (tmp_path / f"{name}.yaml").read_text()
    above = text.partition("\nlaunch:")[0]
    for field in document["recipe"]["takes"]:
        ours = field in ("log_path", "behavior_if_log_dir_exists")
        named = re.search(rf"(^|[# ]){field}[:.]", above, re.M)
        assert ours == (named is None), field
    schema = json.loads(Typed(tmp_path).complete("init", "--schema").stdout)
    root = read_yaml(text, "x", Problems())
    assert root is not None
    jsonschema.validate(plain(root), schema)
    # A second `init` does not overwrite the file.
    again = Typed(tmp_path).complete("init", reference, code=2)
    assert again.stderr == (
        f"sweeper: {name}.yaml exists already: choose another file with --out\n"
    )
    assert (tmp_path / f"{name}.yaml").read_text() == text


def test_the_default_is_a_grid_that_launches(tmp_path: Path) -> None:
    output = Typed(tmp_path).complete("init", "--out", "-").stdout
    assert output == Typed(tmp_path).complete("init", "sft", "--out", "-").stdout
    assert "recipe: sft\n" in output
    assert "metric: {name: test/nll, goal: minimize, at: last}\n" in output
    assert list(tmp_path.glob("*.yaml")) == []


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import chz\nif __name__ == '__main__': pass\n")
    for arguments, message in {
        ("init", "sftt"): "no recipe or module is called 'sftt'",
        ("init", "other.py"): "it defines no chz class",
        ("init", "gone.py"): "no file ",
        ("init", "a b"): "is not a recipe, module or file",
        ("init", "sft", "--out", "no/such/folder.yaml"): "cannot write no/such/folder.yaml",
        ("init", "sft", "--python", "no-such-python"): "no interpreter no-such-python",
    }.items():
        output = Typed(tmp_path).complete(*arguments, code=2)
        assert message in output.stderr
        assert output.stderr.count("\n") == 1
    assert list(tmp_path.glob("*.yaml")) == []
