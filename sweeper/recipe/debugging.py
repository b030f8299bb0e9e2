"""Runs a recipe under pdb. Loaded by path in the recipe's interpreter. Standard library only."""

from __future__ import annotations

import bdb
import importlib.util
import inspect
import pdb
import sys
import traceback
import types
from importlib.abc import InspectLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sweeper.recipe.documents import Located


class _Debugger(pdb.Pdb):
    """A pdb that records whether its user has quit before the program's end."""

    left = False

    def set_quit(self) -> None:
        self.left = True
        super().set_quit()


def run(recipe: Located, beside: Callable[[str], types.ModuleType]) -> None:
    """Run the recipe under pdb, and stop at its first line and at an error. Exit with code 1 if the
    recipe fails, or if the user quits before the recipe's end. `beside` loads a module of the
    folder sweeper/recipe."""
    debugger = _Debugger()
    try:
        _start(debugger, recipe, beside)
    except SystemExit:
        raise
    except bdb.BdbQuit:
        debugger.left = True
    except BaseException as error:  # noqa: BLE001 - whatever ends the recipe is looked at
        traceback.print_exc()
        print("the recipe has failed at this line (q quits)", flush=True)
        debugger.reset()
        debugger.interaction(None, error.__traceback__)
        sys.exit(1)
    if debugger.left:
        sys.exit("quit in the debugger")


def _start(debugger: pdb.Pdb, recipe: Located, beside: Callable[[str], types.ModuleType]) -> None:
    function = recipe.get("function")
    if function:
        module = beside("inspection").load(recipe)
        sys.argv[0] = module.__file__ or module.__name__
        line = inspect.getsourcelines(getattr(module, function))[1]
        debugger.rcLines += [f"tbreak {module.__file__}:{line + 1}", "continue"]
        debugger.runcall(beside("function_recipes").run, module, function, sys.argv[1:])
        return
    main = types.ModuleType("__main__")
    if recipe["kind"] == "file":
        path = recipe["file"]
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
    else:
        name = recipe["module"]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
        loader = None if spec is None else spec.loader
        code = loader.get_code(name) if isinstance(loader, InspectLoader) and spec else None
        if spec is None or code is None:
            raise ImportError(f"{name} has no Python source")
        path = spec.origin or name
        main.__spec__, main.__package__ = spec, spec.parent
    sys.argv[0] = main.__file__ = path
    sys.modules["__main__"] = main
    debugger.run(code, main.__dict__)
