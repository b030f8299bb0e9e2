"""The checking part of bootstrap.py, in the recipe's interpreter: finds the recipe, imports it, and
lets chz parse every configuration. Uses only the standard library and chz."""

# A request is {"reference", "cwd", "log_path_field", "metrics_dir", "configs": {...}, "validate":
# bool}; with "deep" the fields of nested configs are described too. An answer is {"error": [kind,
# message]}, or {"recipe": {...}, "problems": [[index, key, message], ...]}: the index of a
# configuration and the key in it, null if none is at fault. Kinds of error: `recipe` (it does not
# exist), `import`, `main` (running it would do nothing), `class`, `log_path`.

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from sweeper.recipe.checking import Class
    from sweeper.recipe.documents import Answer, CheckRequest, Located, LocatedRecipe, Packed, Takes
    from sweeper.recipe.function_recipes import Function

    ToArgv = Callable[[dict[str, object], dict[str, str]], list[str]]
    Written = Callable[[str, object, str], Iterator[tuple[str, str]]]

GROUP = "sweeper.recipes"
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_STARTS = frozenset({"main", "cli_main", "entrypoint", "nested_entrypoint", "methods_entrypoint",
                     "dispatch_entrypoint"})  # fmt: skip


class Refused(Exception):
    """The recipe cannot be used. The message says why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def answer(
    request: CheckRequest, to_argv: ToArgv, written: Written, set_path: Callable[[Located], None]
) -> Answer:
    """Answer a request. The functions are those of bootstrap.py."""
    try:
        recipe = locate(request)
        if not request["validate"]:
            recipe["takes"], recipe["forms"] = {}, {}
            return {"recipe": recipe, "problems": []}
        set_path(recipe)
        return _inspect(request, recipe, to_argv, written)
    except Refused as refusal:
        return {"error": (refusal.kind, str(refusal))}


def _inspect(request: CheckRequest, recipe: Located, to_argv: ToArgv, written: Written) -> Answer:
    check_source(recipe)
    module = load(recipe)
    source, takes = _source_of(request, recipe, module, to_argv)
    field = log_path_field(request, takes, source.cls.__name__)
    recipe["config_class"] = source.cls.__name__
    recipe["log_path_field"] = field
    recipe["behavior_field"] = "behavior_if_log_dir_exists" in takes
    recipe["takes"] = takes
    # The worker fills in these fields, so they get values of the right type here.
    filled = {} if field is None else {field: os.path.join(request["cwd"], "log_path")}
    if recipe["behavior_field"]:
        filled["behavior_if_log_dir_exists"] = "resume"
    checker = sibling("checking").Checker(source, takes, filled, to_argv, written)
    checker.check(request["configs"])
    recipe["forms"] = checker.forms
    answer: Answer = {"recipe": recipe, "problems": checker.problems}
    if checker.problems:
        return answer
    configs = list(_given(request["configs"]))
    if count := request.get("examples"):
        shown: Answer = sibling("recipe_hooks").examples(
            module, configs[0], count, request.get("checkpoint")
        )
        return {**answer, **shown}
    hooks: Answer = sibling("recipe_hooks").ask(module, configs)
    return {**answer, **hooks}


def _source_of(
    request: CheckRequest, recipe: Located, module: ModuleType, to_argv: ToArgv
) -> tuple[Class | Function, dict[str, Takes]]:
    """Return the object that makes the recipe's configs, and the fields of the configs."""
    import inspect

    deep = bool(request.get("deep"))
    name = recipe["function"] or recipe["config_class"]
    value = getattr(module, name, None) if name is not None else None
    if not inspect.isfunction(value):
        recipe["function"] = None
        cls = config_class(module, name)
        if name is not None:
            # The run executes the module itself as well, and does not only import it.
            check_source(recipe)
        return sibling("checking").Class(cls), describe(cls, deep=deep)
    recipe["function"] = name
    function_recipes = sibling("function_recipes")
    nothing: dict[str, object] = {}
    first = next(_given(request["configs"]), nothing)
    errors: list[Exception] = []
    # The function may also take the run's folder.
    folder: dict[str, object] = {request["log_path_field"] or "log_path": "log_path"}
    # Try without values first: if the function has defaults, a wrong value is then reported with
    # its place.
    attempts: list[list[str]] = [to_argv(folder, {}), to_argv({**folder, **first}, {})]
    for arguments in attempts:
        try:
            source: Function = function_recipes.Function(value, arguments)
            source.consumer(module)
        except function_recipes.Unusable as error:
            raise Refused("main", str(error)) from None
        except Exception as error:  # noqa: BLE001  (it is somebody else's code)
            errors.append(error)
        else:
            return source, _describe_function(source, request, deep)
    text = str(errors[-1]).strip().split("\n")[0]
    raise Refused("class", f"{name}(): {type(errors[-1]).__name__}: {text}")


def _given(configs: Packed) -> Iterator[dict[str, object]]:
    """Yield the unpacked configurations."""
    for shape, *numbers in configs["rows"]:
        values = (configs["values"][number] for number in numbers)
        yield dict(zip(configs["shapes"][shape], values, strict=True))


def _describe_function(source: Function, request: CheckRequest, deep: bool) -> dict[str, Takes]:
    """Describe the fields of a function's config, and the function's parameters. The values that
    the function sets are the defaults of the fields."""
    takes = describe(source.cls, deep=deep)
    field = request["log_path_field"] or "log_path"
    arguments = [f"{field}=log_path"] if field in takes else []
    for name, value in source.defaults(arguments).items():
        takes[name]["required"] = False
        takes[name].pop("default", None)
        if value is None or isinstance(value, (bool, int, float, str)):
            del takes[name]["required"]
            takes[name]["default"] = value
    for name, parameter in source.parameters.items():
        if name not in takes:
            about: Takes = {"type": type_name(source.annotation(name)), "doc": ""}
            if parameter.default is parameter.empty:
                about["required"] = True
            elif parameter.default is None or isinstance(
                parameter.default, (bool, int, float, str)
            ):
                about["default"] = parameter.default
            takes[name] = about
    return takes


def log_path_field(request: CheckRequest, takes: dict[str, Takes], name: str) -> str | None:
    """Return the field that takes the run's folder: the requested field, else `log_path`. If the
    recipe lacks this field, raise `Refused`. But if no field is requested and `launch.metrics_dir`
    is set, return None instead."""
    field = request["log_path_field"]
    if field is None and "log_path" not in takes and request.get("metrics_dir"):
        return None
    log_path = field or "log_path"
    if log_path.partition(".")[0] not in takes:
        hint = "" if field else (
            "; name the field in launch.log_path_field, or set launch.metrics_dir to the "
            "folder that the recipe writes to"
        )  # fmt: skip
        raise Refused("log_path", f"{name} has no field {log_path}{hint}")
    return log_path


def sibling(name: str) -> ModuleType:
    """Return a module from this file's folder, which is not on the module path. Repeated calls
    return the same module."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    return sys.modules.get(f"sweeper_{name}") or _from_file(f"sweeper_{name}", path)


def _from_file(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def locate(request: CheckRequest) -> Located:
    """Find the recipe without importing it.

    A reference is a short name (an entry point), the path of a file (with a `/` or ending in
    `.py`), or a module. `:NAME` after the reference names a class or a function.
    """
    reference = request["reference"]
    head, _, cls = reference.partition(":")
    located: LocatedRecipe = {
        "config_class": cls or None,
        "function": None,
        "on_path": True,
        "cwd": request["cwd"],
    }
    if head.endswith(".py") or "/" in head:
        path = os.path.abspath(os.path.join(request["cwd"], os.path.expanduser(head)))
        if not os.path.isfile(path):
            raise Refused("recipe", f"no file {path}")
        return {**located, "kind": "file", "module": None, "file": path}
    here: Located = {**located, "kind": "module", "module": head, "file": None}
    if "." in head:
        return here
    named = entry_point(head)
    if named is not None:
        # A user's folder with the name of the recipe's package must not shadow the package.
        module, _, attribute = named.partition(":")
        here["module"], here["config_class"] = module, cls or attribute or None
        here["on_path"] = False
        return here
    sys.path.insert(0, request["cwd"])
    try:
        exists = importlib.util.find_spec(head) is not None
    except (ImportError, ValueError):
        exists = False
    finally:
        del sys.path[0]
    if not exists:
        short = ", ".join(sorted(entry_points())) or "none"
        raise Refused("recipe", f"no recipe or module is called {head!r} (recipes: {short})")
    return here


def entry_point(name: str) -> str | None:
    """Return the entry point of a short name, or None if there is none. The files of installed
    packages are read directly, since `importlib.metadata` is slow."""
    group = f"[{GROUP}]"
    for folder in sys.path:
        try:
            installed = sorted(entry.path for entry in os.scandir(folder or ".")
                               if entry.name.endswith((".dist-info", ".egg-info")))  # fmt: skip
        except OSError:
            continue
        for path in installed:
            try:
                with open(os.path.join(path, "entry_points.txt"), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, ValueError):
                continue
            if group in text:
                section = text.split(group, 1)[1].split("\n[", 1)[0]
                for line in section.splitlines():
                    key, separator, value = line.partition("=")
                    if separator and key.strip() == name:
                        return value.partition("[")[0].strip()
    return entry_points().get(name)


def entry_points() -> dict[str, str]:
    """Return {short name: `module` or `module:Class`} for the recipes in this interpreter."""
    from importlib import metadata

    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}


def check_source(recipe: Located) -> None:
    """Raise `Refused` for a module that does nothing when run as `__main__`, since its runs would
    succeed without any work. Also raise `Refused` for a module that starts a run when imported,
    since planning must not run anything.

    The module is not imported here. If its source cannot be found or parsed, it is accepted. If the
    recipe names a function, `recipe["function"]` is set, and runs call the function instead of
    executing the module.
    """
    try:
        source, main = _read_source(recipe)
        if source is None:
            return
        tree = ast.parse(source)
    except Exception:  # noqa: BLE001  (looking for a module imports its parent packages)
        return
    name = recipe["config_class"]
    names = {node.name: node for node in tree.body if isinstance(node, _NAMED)}
    if name is not None and isinstance(names.get(name), ast.FunctionDef):
        recipe["function"] = name
    guarded = any(_is_guard(node) for node in ast.walk(tree))
    if (main and not guarded) or any(map(_starts, tree.body)):
        raise Refused(
            "main",
            "importing it starts a run, but planning has to import it: put that code under "
            '`if __name__ == "__main__":`, or run it with `command:`',
        )
    if not guarded and (name is None or isinstance(names.get(name), ast.ClassDef)):
        raise Refused(
            "main",
            'running it would do nothing: end it with `if __name__ == "__main__": '
            "chz.nested_entrypoint(main)`, or run it with `command:`",
        )


def _read_source(recipe: Located) -> tuple[str | bytes | None, bool]:
    """Return the source of the file that planning imports (None if it cannot be found), and whether
    this file is `__main__.py`. For a package, planning imports `__init__.py` if it defines the
    recipe's function, else `__main__.py`."""
    if recipe["kind"] == "file":
        with open(recipe["file"], "rb") as file:
            return file.read(), os.path.basename(recipe["file"]) == "__main__.py"
    spec = importlib.util.find_spec(recipe["module"])
    if spec is None or spec.submodule_search_locations is None:
        return (None if spec is None else _source(spec)), False
    source = _source(spec)
    nodes = [] if source is None else ast.parse(source).body
    if any(isinstance(n, ast.FunctionDef) and n.name == recipe["config_class"] for n in nodes):
        return source, False
    main = importlib.util.find_spec(f"{recipe['module']}.__main__")
    return (None if main is None else _source(main)), True


def _is_guard(node: ast.AST) -> bool:
    """Return whether a node is a comparison of `__name__` with "__main__"."""
    if not isinstance(node, ast.Compare):
        return False
    below = list(ast.walk(node))
    names = {inner.id for inner in below if isinstance(inner, ast.Name)}
    texts = [inner.value for inner in below if isinstance(inner, ast.Constant)]
    return "__name__" in names and "__main__" in texts


def _starts(node: ast.AST) -> bool:
    """Return whether a statement calls a function that usually starts a run. Calls that an import
    does not execute are ignored."""
    if isinstance(node, (*_NAMED, ast.Lambda)):
        return False
    if isinstance(node, (ast.If, ast.BoolOp)) and any(map(_is_guard, ast.walk(node))):
        return False
    if isinstance(node, ast.Call):
        called = node.func
        name = getattr(called, "attr", getattr(called, "id", ""))
        of = getattr(getattr(called, "value", None), "id", "")
        if name in _STARTS or (of, name) == ("asyncio", "run"):
            return True
    return any(map(_starts, ast.iter_child_nodes(node)))


def _source(spec: ModuleSpec) -> str | None:
    find = getattr(spec.loader, "get_source", None)
    return None if find is None else find(spec.name)


def load(recipe: Located) -> ModuleType:
    """Import the recipe's module or file. For a package, import `__main__` if the recipe names no
    function. Raises `Refused`."""
    try:
        if recipe["kind"] == "file":
            stem = os.path.splitext(os.path.basename(recipe["file"]))[0]
            return _from_file(f"recipe_{stem}", recipe["file"])
        name = recipe["module"]
        spec = importlib.util.find_spec(name)
        package = spec is not None and spec.submodule_search_locations is not None
        if package and recipe["function"] is None:
            name = f"{name}.__main__"  # This is what `python -m` runs for a package.
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (SystemExit too: it is somebody else's code)
        text = str(error).strip().split("\n")[0]
        raise Refused("import", f"{type(error).__name__}: {text}".rstrip(": ")) from None


def config_class(module: ModuleType, name: str | None) -> type[object]:
    """Return the class `name`. Without a name, return `CLIConfig`, or the only chz class that the
    module defines. Raises `Refused` if there is no such class."""
    try:
        import chz
    except ImportError:
        raise Refused("class", "its interpreter has no chz; run it with `command:`") from None
    if name is not None:
        value = getattr(module, name, None)
        if value is None:
            raise Refused("class", f"it has no class {name}")
        if not chz.is_chz(value):
            raise Refused(
                "class", (f"{name} is neither a chz class nor a function that returns a config")
            )
        return value
    defined: dict[str, type[object]] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and chz.is_chz(value) and value.__module__ == module.__name__
    }
    if "CLIConfig" in defined:
        return defined["CLIConfig"]
    if len(set(defined.values())) == 1:
        return next(iter(defined.values()))
    if not defined:
        raise Refused("class", "it defines no chz class; run it with `command:`, or name the class")
    taken = _taken_by_main(module, defined)
    raise Refused(
        "class",
        f"it defines {len(defined)} chz classes ({', '.join(sorted(defined))}): choose one by "
        f"adding its name to the recipe, such as :{taken or min(defined)}"
        f"{', which main takes' if taken else ''}",
    )


def _taken_by_main(module: ModuleType, defined: dict[str, type[object]]) -> str | None:
    """Return the name of the class that the module's `main` takes, if its annotation says so."""
    main = getattr(module, "main", None)
    annotations = getattr(main, "__annotations__", {})
    first = next((annotations[name] for name in annotations if name != "return"), None)
    if isinstance(first, str):
        return first if first in defined else None
    return next((name for name, value in defined.items() if value is first), None)


def describe(
    cls: type[object], *, deep: bool = False, above: tuple[type[object], ...] = ()
) -> dict[str, Takes]:
    """Describe the fields of a config, by name. A default that is not plain data is left out. With
    `deep`, describe the fields of nested configs too."""
    import chz

    takes: dict[str, Takes] = {}
    for name, field in chz.chz_fields(cls).items():
        try:
            about: Takes = {"type": type_name(field.x_type), "doc": ""}
        except Exception as error:  # noqa: BLE001  (evaluating it runs the recipe's code)
            raise Refused("class", f"the type of {name}: {type(error).__name__}: {error}") from None
        # These three are private to chz. If a version stores them elsewhere, only the list of
        # defaults and docs is lost; the check still works.
        default = getattr(field, "_default", None)
        factory = getattr(field, "_default_factory", None)
        about["doc"] = str(getattr(field, "_doc", ""))
        if type(default).__name__ == "MISSING_TYPE":
            about["required"] = type(factory).__name__ == "MISSING_TYPE"
        elif default is None or isinstance(default, (bool, int, float, str)):
            about["default"] = default
        nested = _nested(field.x_type) if deep else None
        if nested is not None and nested is not cls and nested not in above:
            about["fields"] = describe(nested, deep=True, above=(*above, cls))
        takes[name] = about
    return takes


def _nested(annotation: object) -> type[object] | None:
    """Return the single chz class that an annotation allows, or None."""
    import chz

    members: list[object] = sibling("checking").members_of(annotation)
    classes = [member for member in members if isinstance(member, type) and chz.is_chz(member)]
    return classes[0] if len(classes) == 1 else None


def type_name(annotation: object) -> str:
    """Return a type as it is written in Python: `float`, `str | None`, `list[int]`."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__qualname__
    if typing.get_origin(annotation) is typing.Union:
        parts = typing.get_args(annotation)
        return " | ".join("None" if part is type(None) else type_name(part) for part in parts)
    return repr(annotation).replace("typing.", "")
