"""The program in a recipe's interpreter, which start.py starts. `start.py check` answers a JSON
request on stdin, `start.py run CHILD.json` becomes the recipe, and `start.py serve STATUS` is the
fork server. Uses only the standard library and chz."""

# `check` (see inspection.py) finds the recipe, imports it, and lets chz parse every configuration
# exactly as the run will: both use the arguments of `to_argv`. `run` reads the configuration from a
# file, so no value appears on a command line, reaches a shell, or is too long. `serve` (see
# fork_server.py) does the same as `run` in forked processes.
#
# Nothing in this file's folder is imported by name. The folder is not on the module path, because
# its modules could shadow the user's.

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
# `python PATH` puts the script's folder first on the module path (with -P it does not).
if sys.path and sys.path[0] and os.path.abspath(sys.path[0]) == _HERE:
    del sys.path[0]

TYPE_CHECKING = False  # importing typing slows the start of each run by milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import TypeGuard

    from sweeper.recipe.documents import CheckRequest, Child, Located

_USUAL = ("datetime", "html", "logging", "random", "subprocess", "urllib.parse")
"""Modules of the standard library that many recipes import. Importing them takes some
milliseconds."""
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def to_argv(config: dict[str, object], forms: dict[str, str]) -> list[str]:
    """Return a configuration as `key=value` arguments for chz.

    `forms` maps keys to forms of writing a value. Other keys have the form `plain`: strings are
    unchanged, and the elements of a list are separated by commas. The form `literal` writes a
    Python literal, and `indexed` writes one argument for each element.
    """
    return [
        f"{path}={text}"
        for key, value in config.items()
        for path, text in written(key, value, forms.get(key, "plain"))
    ]


def written(key: str, value: object, form: str) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each argument `path=text` with which chz gets one value."""
    if form == "indexed" and value and _is_list(value):
        for index, item in enumerate(value):
            yield from written(f"{key}.{index}", item, form)
    elif form == "indexed" and value and _is_mapping(value):
        for name, item in value.items():
            yield from written(f"{key}.{name}", item, form)
    elif form == "literal":
        yield key, repr(value)
    elif _is_list(value) and _separable(value):
        yield key, ",".join(item if isinstance(item, str) else repr(item) for item in value)
    else:
        yield key, value if isinstance(value, str) else repr(value)


def _separable(items: list[object]) -> bool:
    """Return whether the items can be joined with commas so that chz reads the same list."""
    if items and isinstance(items[0], str) and items[0][:1] in ("[", "(", ""):
        return False
    return not any(
        _is_list(item) or _is_mapping(item) or (isinstance(item, str) and "," in item)
        for item in items
    )


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _is_mapping(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def move(root: str, copy: str) -> Callable[[str], str]:
    """Return a function that maps paths in the checkout `root` to paths in its `copy`. A path is
    unchanged if it is outside the checkout, or if the copy lacks the file or has only a symbolic
    link to the original (as for `.venv`)."""
    old, new = os.path.realpath(root), os.path.realpath(copy)

    def moved(path: str) -> str:
        if not isinstance(path, str) or not os.path.isabs(path):  # pyright: ignore[reportUnnecessaryIsInstance]
            return path
        real = os.path.realpath(path)
        if real != old and not real.startswith(old + os.sep):
            return path
        moved = os.path.normpath(os.path.join(new, os.path.relpath(real, old)))
        inside = os.path.realpath(moved) == moved and os.path.exists(moved)
        return moved if inside else path

    return moved


def move_imports(moved: Callable[[str], str]) -> None:
    """Make this interpreter import the modules of a checkout from the checkout's copy. Modules of
    editable installs (setuptools' finders) are included. `moved` maps paths of the checkout to
    paths of the copy."""
    sys.path[:] = [moved(entry) for entry in sys.path]
    for name, module in list(sys.modules.items()):
        if not name.startswith("__editable__"):
            continue
        for attribute in ("MAPPING", "NAMESPACES"):
            table: dict[str, str | list[str]] = getattr(module, attribute, None) or {}
            for key, value in table.items():
                table[key] = [*map(moved, value)] if isinstance(value, list) else moved(value)
    sys.path_importer_cache.clear()


def set_path(recipe: Located) -> None:
    """Set the module path as `python -m` or `python FILE` would."""
    if recipe["kind"] == "file":
        sys.path.insert(0, os.path.dirname(recipe["file"]))
    elif recipe["on_path"]:
        sys.path.insert(0, recipe["cwd"])


def check(waits: int | None, recipes: tuple[str, ...] = ()) -> None:
    """Answer the request in the file on stdin. While the recipe is imported, the recipe's output
    goes to stderr, and stdin is empty.

    If `waits` is None, the request is ready. Otherwise the descriptor `waits` delivers a byte when
    the request is ready, or ends if there will be no request. While the function waits, it imports
    `recipes` and other modules that a check needs."""
    import gc
    import json

    # Python would otherwise collect garbage dozens of times while modules load.
    gc.set_threshold(50_000)
    inspection = _beside("inspection")
    early: set[str] = set()
    if waits is not None:
        early = load_early(recipes)
        if not os.read(waits, 1):
            os._exit(0)
        os.close(waits)
        os.lseek(0, 0, os.SEEK_SET)
    request: CheckRequest = json.loads(sys.stdin.buffer.read())
    answer_to = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def set_its_path(recipe: Located) -> None:
        set_path(recipe)
        forget_shadowed(early)

    answer = inspection.answer(request, to_argv, written, set_its_path)
    with os.fdopen(answer_to, "wb") as file:
        file.write(json.dumps(answer).encode())
    os._exit(0)  # Exit without waiting for threads that the import started.


def _beside(name: str) -> ModuleType:
    """Load a module from this file's folder, by path."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        f"sweeper_{name}", os.path.join(_HERE, f"{name}.py")
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing beside bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def count_usage(modules: str | None) -> None:
    """If $SWEEPER_METER names a folder, write the counts of the recipe's usage of the Tinker
    service to this folder.

    A signal then writes the stacks of the recipe's threads to the file `$SWEEPER_METER.stacks`.
    After the first use of the service, the imported modules are added to the list in the file
    `modules`, if that is not None.
    """
    folder = os.environ.get("SWEEPER_METER")
    if folder:
        names = ("sweep", "run", "attempt")
        labels = {
            f"sweeper_{name}": os.environ.get(f"SWEEPER_{name.upper()}", "") for name in names
        }
        reported = None
        if modules is not None:
            reported = lambda: _beside("own_packages").remember(modules)  # noqa: E731
        _beside("meter").install(folder, labels, reported)
        _beside("stack_signal").write_stacks_to(f"{folder}.stacks")


def load_early(recipes: tuple[str, ...] = ()) -> set[str]:
    """Import the modules that checking a recipe needs, the modules that many recipes import, and
    the modules `recipes`. Skip a module that cannot be imported. Return the names of the new
    packages that `forget_shadowed` may unload."""
    before = set(sys.modules)
    _load(("ast", "chz"))
    needed = sys.stdlib_module_names & set(map(_package, sys.modules))
    _load((*_USUAL, *recipes))
    return set(map(_package, set(sys.modules) - before)) - needed


def _load(names: tuple[str, ...]) -> None:
    import importlib

    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112  (the code that needs it reports the error)
            continue


def _package(module: str) -> str:
    return module.partition(".")[0]


def forget_shadowed(names: set[str]) -> None:
    """Unload the packages `names` if the first folder on the module path has a module with one of
    these names, since a run would import that module instead of the package."""
    first = sys.path[0]
    if any(
        os.path.exists(os.path.join(first, name + end)) for name in names for end in ("", ".py")
    ):
        for name in list(sys.modules):
            if _package(name) in names:
                del sys.modules[name]


def run(path: str) -> None:
    """Run the recipe in this process. The file at `path` describes it (`documents.Child`)."""
    import json
    import runpy

    die_with_parent()
    with open(path, "rb") as file:
        child: Child = json.load(file)
    recipe = child["recipe"]
    snapshot = child.get("snapshot")
    if snapshot:
        moved = move(snapshot["root"], snapshot["copy"])
        if recipe["kind"] == "file":
            recipe["file"] = moved(recipe["file"])
        recipe["cwd"] = moved(recipe["cwd"])
        move_imports(moved)
    set_path(recipe)
    count_usage(child.get("modules"))
    sys.argv[1:] = to_argv(child["config"], recipe.get("forms") or {})
    if child.get("debug"):  # The user of the debugger answers prompts.
        _beside("debugging").run(recipe, _beside)
        return
    answer_prompts()
    function = recipe.get("function")
    if function:
        module: ModuleType = _beside("inspection").load(recipe)
        sys.argv[0] = module.__file__ or module.__name__
        _beside("function_recipes").run(module, function, sys.argv[1:])
    elif recipe["kind"] == "file":
        sys.argv[0] = recipe["file"]
        runpy.run_path(recipe["file"], run_name="__main__")
    else:
        runpy.run_module(recipe["module"], run_name="__main__", alter_sys=True)


def serve(status: str) -> None:
    """Run the fork server, which writes its status to the file `status`. In a process that the
    server has forked for a recipe, run the recipe."""
    for name in ("fork_protocol", "fresh_process", "own_packages"):
        _beside(name)  # fork_server imports the modules under these names.
    recipe = _beside("fork_server").serve(status, move)
    if recipe is not None:
        run(recipe)


def answer_prompts() -> None:
    """Answer "resume" to each prompt of the recipe that contains this word. Other prompts raise
    `EOFError`."""
    import builtins

    def answered(prompt: object = "", /) -> str:
        text = str(prompt)
        words = "".join(c if c.isalpha() else " " for c in text.lower()).split()
        if "resume" in words:
            print(f"{text}resume (answered by sweeper)", flush=True)
            return "resume"
        raise EOFError(f"a run cannot ask a user: {text}")

    builtins.input = answered


def die_with_parent() -> None:
    """Make the kernel kill this process when the worker dies (Linux only).

    The kernel watches the *thread* that started this process, so the worker starts this process
    from its main thread.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    parent = os.getppid()
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # The parent died before prctl took effect.
        os._exit(_SIGKILL + 128)


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(int(sys.argv[2]) if sys.argv[2:] else None, (*sys.argv[3:],))
    elif len(sys.argv) == 3 and sys.argv[1] == "run":
        run(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(__doc__)
