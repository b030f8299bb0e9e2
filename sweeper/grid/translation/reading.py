"""Recognises the program that a sweep file was written for, and translates the file."""

from sweeper.errors import UsageError
from sweeper.fields.nodes import Node, Problems, read_yaml
from sweeper.grid.translation import hydra, seml, shell_script, wandb_sweep
from sweeper.grid.translation.draft import Draft, Untranslatable

KINDS = "a sweep of W&B, a configuration or a multirun of Hydra, a file of SEML, a shell script"


def translated(text: str, source: str, program: str | None) -> Draft:
    """Translate a file of another program. `program` is the program that the runs execute, for
    files that do not name it. Raises `UsageError`."""
    try:
        if source.endswith((".yaml", ".yml")):
            draft = _from_yaml(text, source, program)
        else:
            draft = shell_script.from_shell(text, source)
    except Untranslatable as error:
        raise UsageError(f"{source}: {error}") from error
    except ValueError as error:  # A shell script has open quotes.
        raise UsageError(f"{source} cannot be read: {error}") from error
    return draft


def _from_yaml(text: str, source: str, program: str | None) -> Draft:
    root = _root(text, source)
    if wandb_sweep.is_wandb(root):
        return wandb_sweep.from_wandb(root, source, program)
    if seml.is_seml(root):
        return seml.from_seml(root, source, program)
    if hydra.is_hydra(root):
        return hydra.from_config(root, source, program)
    raise Untranslatable(f"not recognised: expected {KINDS}")


def _root(text: str, source: str) -> Node:
    problems = Problems()
    root = read_yaml(text, source, problems)
    problems.raise_any()
    if root is None or root.entries is None:
        raise Untranslatable(f"not recognised: expected {KINDS}")
    return root
