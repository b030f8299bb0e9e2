"""Finds a recipe (a short name, a module or a file, optionally with `:Class` or `:function`) and
checks configurations for it, in a subprocess of the recipe's interpreter."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper.common import codec
from sweeper.common.json_values import table_of
from sweeper.errors import RecipeError
from sweeper.paths import is_utf8
from sweeper.recipe.command_template import with_log_path
from sweeper.recipe.probe import probe
from sweeper.sweep.recipe import Recipe
from sweeper.sweep.usage import Usage

if TYPE_CHECKING:
    from sweeper.recipe.documents import Answer, CheckRequest, Examples, Packed

IMPORT_SECONDS = 60.0
SHOW_SECONDS = 600.0
"""Seconds that a recipe may take to show examples of its data."""
_REFERENCE = re.compile(r"(?:[A-Za-z_][\w-]*(?:\.[A-Za-z_]\w*)*)(?::[A-Za-z_]\w*)?\Z")


class Problem(NamedTuple):
    """A problem. `number` is the index of its configuration (None: it affects all configurations),
    and `key` the key whose value causes it (None: no key). `lacking` is True if this machine lacks
    something. Runs on other machines do not have such a problem."""

    number: int | None
    key: str | None
    message: str
    lacking: bool = False


class Inspected(NamedTuple):
    """A recipe, the problems of the configurations, and the recipe's notes for users.
    `estimates` has an estimate of the usage for each configuration (None: no estimate), or is
    empty if nothing was estimated."""

    recipe: Recipe
    problems: list[Problem]
    notes: tuple[str, ...] = ()
    estimates: Sequence[Usage | None] = ()


class _Estimates(NamedTuple):
    """The distinct estimates, and for each configuration the index of its estimate (None: no
    estimate)."""

    distinct: tuple[Usage, ...] = ()
    of: tuple[int | None, ...] = ()

    @property
    def by_number(self) -> list[Usage | None]:
        """Return the estimate of each configuration (None: no estimate)."""
        return [None if number is None else self.distinct[number] for number in self.of]


class _Answer(NamedTuple):
    estimates: _Estimates = _Estimates()


class RunProcess(NamedTuple):
    """The process that will run a recipe: its interpreter, its folder, and the variables that are
    added to this process's environment. `python` and `cwd` may be relative paths."""

    python: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = {}


class FilledFields(NamedTuple):
    """The fields in which a recipe takes the run's folder (None: `log_path`) and the run's seed
    (None: no field). If `metrics_dir` is set, the field for the folder is optional."""

    log_path: str | None = None
    seed: str | None = "seed"
    metrics_dir: str | None = None


_OURS = RunProcess()
_USUAL = FilledFields()


def inspect(
    source: str | Sequence[str],
    configs: Sequence[Mapping[str, object]],
    process: RunProcess = _OURS,
    filled: FilledFields = _USUAL,
    *,
    validate: bool = True,
    deep: bool = False,
) -> Inspected:
    """Find the recipe that `source` names (a reference, or the template of a command), and check
    the configurations. The configurations are parsed as their runs will parse them.

    Without `validate`, the recipe is not imported, and is assumed to have the usual fields. With
    `deep`, the fields of nested configs are described too. Raises `RecipeError`."""
    log_path_field, seed_field, metrics_dir = filled
    folder = os.path.abspath(os.path.expanduser(process.cwd or "."))
    if not os.path.isdir(folder):
        raise RecipeError("cwd", f"launch.cwd: no folder {folder}")
    if not is_utf8(folder):
        raise RecipeError(
            "cwd", f"{folder}: this path is not UTF-8: rename the folder, or use another"
        )
    interpreter = find_python(process.python)
    if not isinstance(source, str):
        recipe = Recipe(
            reference=" ".join(source)[:200],
            kind="command",
            command=list(source),
            python=interpreter,
            cwd=folder,
            log_path_field=log_path_field,
            seed_field=seed_field,
        )
        return Inspected(recipe, [])
    if not (_REFERENCE.match(source) or source.partition(":")[0].endswith(".py")):
        raise RecipeError("recipe", f"{source[:60]!r} is not a recipe, module or file")
    request: CheckRequest = {
        "reference": source,
        "cwd": folder,
        "log_path_field": log_path_field,
        "metrics_dir": metrics_dir,
        "configs": _packed(configs),
        "validate": validate,
        "deep": deep,
    }
    env = with_log_path(process.env, os.path.join(folder, "log_path"))
    answer = _ask(interpreter, folder, request, {**os.environ, **env})
    _refuse_error(answer, source, interpreter)
    recipe = _read_recipe(answer, source, interpreter, filled)
    lacks = [Problem(*lack, lacking=True) for lack in answer.get("lacks", ())]
    problems = [*(Problem(*problem) for problem in answer.get("problems", ())), *lacks]
    estimates = codec.read(_Answer, answer, "the recipe's answer").estimates.by_number
    return Inspected(recipe, problems, tuple(answer.get("notes", ())), estimates)


def examples(
    recipe: Recipe,
    config: Mapping[str, object],
    count: int,
    env: Mapping[str, str] = {},
    checkpoint: str | None = None,
) -> "Examples | None":
    """Return the first examples that a run of a recipe would train on, or None if the recipe does
    not show examples. With a checkpoint, the examples also have samples from it, if the recipe can
    sample. Raises `RecipeError`."""
    request: CheckRequest = {
        "reference": recipe.reference,
        "cwd": recipe.cwd,
        "log_path_field": recipe.log_path_field,
        "metrics_dir": None,
        "configs": _packed([config]),
        "validate": True,
        "deep": False,
        "examples": count,
    }
    if checkpoint is not None:
        request["checkpoint"] = checkpoint
    with_folder = with_log_path(env, os.path.join(recipe.cwd, "log_path"))
    answer = _ask(recipe.python, recipe.cwd, request, {**os.environ, **with_folder}, SHOW_SECONDS)
    _refuse_error(answer, recipe.reference, recipe.python)
    for _, key, message in answer.get("problems", ()):
        raise RecipeError("recipe", f"{key}: {message}" if key else message)
    return answer.get("examples")


def _read_recipe(answer: "Answer", source: str, interpreter: str, filled: FilledFields) -> Recipe:
    """Return the recipe as its interpreter describes it, with the fields that sweeper fills in."""
    fields: Mapping[str, object] = answer.get("recipe", {})
    takes = table_of(fields.get("takes"))
    usual = None if filled.metrics_dir is not None else "log_path"
    defaults: dict[str, object] = {
        "log_path_field": filled.log_path or usual,
        "behavior_field": False,
    }
    given: dict[str, object] = {
        "reference": source,
        "command": None,
        "python": interpreter,
        "seed_field": filled.seed if not takes or _is_field(filled.seed, takes) else None,
    }
    return codec.read(Recipe, defaults | {**fields} | given, "the recipe")


def _is_field(key: str | None, takes: Mapping[str, object]) -> bool:
    return key is not None and key.partition(".")[0] in takes


def _packed(configs: Sequence[Mapping[str, object]]) -> "Packed":
    """Pack configurations as `documents.Packed`. An object that several configurations
    share is written once."""
    shapes: dict[tuple[str, ...], int] = {}
    numbers: dict[int, int] = {}
    values: list[object] = []
    rows: list[list[int]] = []
    for config in configs:
        shape = shapes.setdefault(tuple(config), len(shapes))
        try:
            rows.append([shape, *[numbers[id(value)] for value in config.values()]])
        except KeyError:
            for value in config.values():
                if id(value) not in numbers:
                    numbers[id(value)] = len(values)
                    values.append(value)
            rows.append([shape, *[numbers[id(value)] for value in config.values()]])
    return {"shapes": [list(shape) for shape in shapes], "values": values, "rows": rows}


def find_python(name: str | None) -> str:
    """Return the absolute path of an interpreter. `name` is a path, a command on PATH, or None for
    this interpreter.

    Symbolic links are not resolved, because the interpreter of a virtual environment is a link.
    Raises `RecipeError`.
    """
    if name is None:
        return sys.executable
    if os.sep in name:
        candidates = [os.path.abspath(os.path.expanduser(name))]
    else:
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        candidates = [os.path.join(os.path.abspath(folder), name) for folder in folders if folder]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    where = candidates[0] if os.sep in name else f"{name} on PATH"
    raise RecipeError("python", f"launch.python: no interpreter {where}")


def lacking(program: str, folder: str, env: Mapping[str, str]) -> str | None:
    """Return why a command's program cannot be started in `folder` with the environment `env`, or
    None if it can be started."""
    if os.sep in program:
        path = os.path.join(folder, program)
        if not os.path.isfile(path):
            return f"no program {path}"
        return None if os.access(path, os.X_OK) else f"{path} is not executable: chmod +x"
    from shutil import which  # imported late, since few grids have a command

    if which(program, path=env.get("PATH", os.defpath)) is None:
        return f"no program {program[:60]!r} on PATH"
    return None


def lacking_modules(
    python: str | None, modules: Sequence[str], env: Mapping[str, str]
) -> list[str]:
    """Return the names in `modules` that an interpreter (None: this one) cannot find; [] if the
    interpreter does not work."""
    import subprocess  # imported late, since few grids name trackers

    code = "import sys; from importlib.util import find_spec\n"
    code += "print(*(m for m in sys.argv[1:] if find_spec(m) is None))"
    try:
        done = subprocess.run(
            [python or sys.executable, "-c", code, *modules],
            capture_output=True,
            check=True,
            cwd=os.sep,
            env={**os.environ, **env},
            text=True,
            timeout=IMPORT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return []  # An interpreter that does not work is reported elsewhere.
    return done.stdout.split()


def _ask(
    python: str,
    cwd: str,
    request: "CheckRequest",
    env: Mapping[str, str],
    seconds: float | None = None,
) -> "Answer":
    """Send a request to bootstrap.py in the recipe's interpreter, and return the answer. Raises
    `RecipeError` if there is no answer within `seconds` (None: the limit for importing a
    recipe)."""
    seconds = IMPORT_SECONDS if seconds is None else seconds
    reference = request["reference"]
    try:
        process = probe(python, cwd, env)
    except (OSError, ValueError) as error:
        raise RecipeError("python", f"{python} does not start: {error}") from error
    try:
        answer = process.ask(json.dumps(request).encode(), seconds)
    except TimeoutError:
        message = f"recipe {reference!r}: importing it took longer than {seconds:g} s"
        raise RecipeError("import", message) from None
    try:
        return json.loads(answer.output)
    except ValueError:
        lines = answer.printed.strip().splitlines()
        detail = f": {lines[-1][:200]}" if lines else ""
        code = answer.code
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise RecipeError(
            "import", f"recipe {reference!r}: {python} {ended} while importing it{detail}"
        ) from None


def _refuse_error(answer: "Answer", reference: str, python: str) -> None:
    """Raise `RecipeError` if the answer is an error."""
    if "error" not in answer:
        return
    kind, message = answer["error"]
    if kind == "import":
        raise RecipeError(
            kind,
            f"recipe {reference!r} cannot be imported by {python}: {message}"
            " (--no-validate plans without it)",
        )
    raise RecipeError(kind, f"recipe {reference!r}: {message}")
