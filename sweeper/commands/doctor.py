"""`sweeper doctor`: checks whether this machine has everything that a sweep needs, and says how
to get what is missing. `--try` tests a backend with a job."""

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

from sweeper import paths, sandbox
from sweeper.backends import backend_type, options_of
from sweeper.backends.base import Check
from sweeper.backends.configuration import defaults_of
from sweeper.commands import arguments as shared
from sweeper.common.atomic import nearest_folder
from sweeper.errors import SweeperError, UsageError
from sweeper.fields import config_file
from sweeper.fields.kinds import seconds
from sweeper.fields.nodes import Problems
from sweeper.grid import load_grid
from sweeper.grid.notify import configured, require_variables
from sweeper.store.opening import default_root, open_store
from sweeper.store.writable import probe
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.launch_settings import Launch
from sweeper.terminal import print_json, print_table, say, warn

if TYPE_CHECKING:
    from sweeper.commands.doctor_try import Step, TrialRequest

_TRIAL_SECONDS = 600.0
_DISTRIBUTION = "tinker-sweeper"
_ABSENT = {
    "mcp": "not installed: `sweeper agent mcp` needs it (the extra mcp)",
    "harbor": "not in this interpreter: for the recipe `harbor` and `environment: harbor:...`, set "
    "launch.python to a Python 3.12 with harbor installed",
}
_KNOWN_BAD = {
    "s3fs": " (0.4.2, which pip installs with boto3, cannot create files exclusively)",
    "tinker": " (each release changes the format of its requests)",
    "kubernetes": " (37 needs a python-dateutil that botocore rejects)",
    "beaker-py": " (3 needs another protobuf)",
}
"""{package: the reason why some versions are not supported}."""


class CheckResult(NamedTuple):
    """The result of one check. A failed check makes `sweeper doctor` fail only if `needed` is
    true."""

    name: str
    good: bool
    needed: bool
    found: str


def examine(root: str, backend: str | None = None, grid: str | None = None) -> list[CheckResult]:
    """Check this machine, the store at `root`, and the requirements of `backend`. The options of
    the backend come from the grid at the path `grid`, or else from the configuration file.
    Raises `UsageError` for an unknown backend."""
    checks = [
        Check("python", True, lambda: f"{sys.version.split()[0]} at {sys.executable}"),
        Check("packages", True, _packages),
        Check("tinker SDK", True, lambda: f"tinker {version('tinker')}, chz {version('chz')}"),
        Check("git", False, lambda: _output("git", "--version")),
        Check("store", True, lambda: _store(root)),
        Check("home", True, _home),
        Check("engine", False, _engine),
        Check("fork server", False, _fork_server),
        Check("Tinker API key", False, _key),
        Check("notify", False, _notify),
        Check("MCP SDK", False, lambda: _package("mcp")),
        Check("bubblewrap", False, _bubblewrap),
        Check("containers", False, _containers),
        Check("harbor", False, lambda: _package("harbor")),
    ]
    default = Launch().backend
    if backend is not None:
        checks += declared_checks(trial_request(backend, grid), root)
    if backend != default:  # only a hint, because the user did not choose this backend
        checks[2:2] = [check._replace(needed=False) for check in backend_type(default).checks({})]
    return [_check(check) for check in checks]


def trial_request(name: str, grid: str | None) -> "TrialRequest":
    """Return the settings with which to test the backend `name`. They come from the grid at the
    path `grid`, or from the configuration file if `grid` is None."""
    from sweeper.commands.doctor_try import TrialRequest

    backend = backend_type(name)
    if grid is not None:
        read = load_grid(grid, [f"launch.backend={name}"])
        return TrialRequest(name, read.launch, str(read.service), read.secrets)
    problems = Problems()
    defaults = defaults_of(backend, problems) if backend.records_defaults else {}
    problems.raise_any()
    return TrialRequest(name, Launch(name, options={backend.key: defaults}), "none", ())


def declared_checks(request: "TrialRequest", root: str) -> list[Check]:
    """Return the checks that a backend declares. If the backend's jobs cannot read local files,
    add checks of the requirements file and of the jobs' access to store, service and secrets."""
    name, launch, service, secrets = request
    backend, options = backend_type(name), options_of(launch, name)
    checks = list(backend.checks(options))
    try:
        elsewhere = not backend.capabilities(options).files
    except UsageError:
        elsewhere = True  # the checks report what is missing
    if elsewhere and launch.requirements is not None:
        file = launch.requirements
        checks.append(Check("requirements", True, lambda: _requirements(file)))
    if elsewhere:
        reached = Check("what jobs reach", True, lambda: _reached(launch, root, service, secrets))
        checks.append(reached)
    return checks


def _requirements(name: str) -> str:
    """Check the file `name`, which lists the packages that jobs install."""
    from sweeper.recipe.requirements import outside, read

    path = os.path.abspath(os.path.expanduser(name))
    wrong = [*read(path).mistakes, *filter(None, [outside(path, os.getcwd())])]
    if wrong:
        raise LookupError(wrong[0])
    return path


def _reached(launch: Launch, root: str, service: str, secrets: Sequence[str]) -> str:
    """Check that jobs can reach the store, the service and the secrets. Return the root and the
    names of the secrets, as text."""
    from sweeper.launcher.manifest import secret_names
    from sweeper.launcher.preflight import admit

    names = list(dict.fromkeys(secret_names(secrets, service)))
    admit(launch, open_store(root), service, names, live=False)
    return ", ".join([root, *names])


def _check(check: Check) -> CheckResult:
    try:
        return CheckResult(check.name, True, check.needed, check.run())
    except (SweeperError, OSError, LookupError, ImportError, subprocess.SubprocessError) as error:
        return CheckResult(check.name, False, check.needed, str(error))


def _packages() -> str:
    """Check that sweeper supports the versions of the installed packages."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    checked, wrong = 0, list[str]()
    for line in requires(_DISTRIBUTION) or ():
        requirement = Requirement(line)
        if "dev" in str(requirement.marker):
            continue
        with suppress(PackageNotFoundError):
            installed = version(requirement.name)
            checked += 1
            if not requirement.specifier.contains(installed, prereleases=True):
                why = _KNOWN_BAD.get(requirement.name, "")
                wanted = f"{requirement.name}{requirement.specifier}"
                wrong.append(f"{requirement.name} {installed}{why}: `pip install '{wanted}'`")
    if wrong:
        raise LookupError("; ".join(wrong))
    return f"{checked} packages, all in supported versions"


def _store(root: str) -> str:
    """Check that sweeps can be stored at `root`, with the file operations that a launch uses."""
    store = open_store(root)
    if store.is_remote:
        from sweeper.launcher.background import check

        check(SweepFolder(store, ".doctor"))
        return f"{root}: sweeper can create files exclusively, list and read"
    folder = nearest_folder(store.local_path("") or root)
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as place:
        probe(open_store(place), "probe")
    return f"{root}, {shutil.disk_usage(folder).free / 1e9:.0f} GB free"


def _home() -> str:
    """Check sweeper's home folder."""
    from sweeper.engine import lifecycle

    lifecycle.check_home()
    free = shutil.disk_usage(nearest_folder(paths.home())).free
    return f"{paths.home()}, {free / 1e9:.0f} GB free"


def _engine() -> str:
    from sweeper.engine import lifecycle

    engine = lifecycle.find()
    if engine is None:
        raise LookupError("not running: a launch with `service: local` starts it")
    return f"{engine.url}, pid {engine.pid}"


def _fork_server() -> str:
    from sweeper.worker.fork_client import at_work

    servers = at_work()
    if servers.refused is not None:
        raise LookupError(f"not used, so each run imports its modules itself: {servers.refused}")
    if not servers.number:
        return (
            "not running: starts after the first run of a Tinker recipe, which lists the modules "
            "to import"
        )
    return (
        f"{servers.number} running; each run skips the import of {servers.modules} modules"
        f" ({servers.import_s:.1f} s of processor time)"
    )


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        raise LookupError(_ABSENT[name]) from None


def _notify() -> str:
    """Check the user's configuration of notifications. This configuration applies to sweeps whose
    grids have no `notify` section."""
    settings = configured()
    if settings is None:
        return "no notifications configured (a grid may configure them)"
    require_variables(settings)
    return f"{', '.join(settings.receivers)} (from your configuration)"


def _key() -> str:
    if not os.environ.get("TINKER_API_KEY"):
        raise LookupError("not set: only `service: tinker` needs it (`export TINKER_API_KEY=...`)")
    return "set"


def _bubblewrap() -> str:
    lacking = sandbox.missing("bubblewrap")
    if lacking is not None:
        raise LookupError(f"only needed by the recipe `terminal`: {lacking}")
    return _output("bwrap", "--version")


def _containers() -> str:
    lacking = {kind: sandbox.missing(kind) for kind in ("podman", "docker")}
    usable = [kind for kind, why in lacking.items() if why is None]
    if not usable:
        reasons = "; ".join(why for why in lacking.values() if why is not None)
        raise LookupError(f"only needed by `environment: podman` and `docker`: {reasons}")
    return ", ".join(usable)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _try(
    request: "TrialRequest", root: str, arguments: Namespace
) -> tuple[list["Step"], str | None]:
    """Test the backend with a job, and print each step unless `--json` is given. Return the steps,
    and the error (None if the test succeeded)."""
    from sweeper.commands.doctor_try import try_out

    steps: list[Step] = []

    def tell(step: "Step") -> None:
        steps.append(step)
        if not arguments.json:
            duration = "" if step.seconds is None else f"{step.seconds:.1f} s"
            say(f"{step.name:<10}{duration:>9}  {step.found}", flush=True)

    try:
        try_out(request, root, arguments.timeout, tell)
    except SweeperError as error:
        return steps, str(error)
    return steps, None


def _seconds(text: str) -> float:
    duration = seconds(text)
    if duration is None:
        raise ArgumentTypeError(f"{text!r} is not a duration such as 90s, 30m or 2h")
    return duration


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper doctor`."""
    configuration = config_file.file().replace("%", "%%")
    check = shared.group(verb, "what to check")
    check.add_argument("--backend", help="also check what this backend needs")
    check.add_argument(
        "--grid",
        metavar="FILE",
        help=f"check what the `launch` section of this grid needs (default: {configuration})",
    )
    check.add_argument(
        "--try",
        dest="tried",
        action="store_true",
        help="test the backend with a job of one second, which is then removed",
    )
    check.add_argument(
        "--service",
        nargs="?",
        const="auto",
        choices=("auto", "tinker", "local"),
        help="test the model service: measure its response time, list its models, train one step "
        "of the smallest model and sample (auto: the grid's service, else tinker if there is a "
        "key, else the engine)",
    )
    check.add_argument(
        "--timeout",
        type=_seconds,
        default=_TRIAL_SECONDS,
        help="the time limit for the job of --try, waiting included (default: 10m)",
    )
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Run all requested checks, and print the results."""
    if arguments.service is not None:
        from sweeper.commands.doctor_service import run as run_service

        return run_service(arguments)
    root, name = arguments.root or default_root(), arguments.backend
    if arguments.tried and name is None:
        name = load_grid(arguments.grid).launch.places[0] if arguments.grid else Launch().backend
    checks = examine(root, name, arguments.grid)
    good = all(check.good or not check.needed for check in checks)
    if not arguments.json:
        marks = {True: "ok", False: "MISSING"}
        rows = [(c.name, marks[c.good] if c.needed or c.good else "-", c.found) for c in checks]
        print_table(("check", "", "found"), rows)
    document: dict[str, object] = {"schema": 1, "checks": [check._asdict() for check in checks]}
    if arguments.tried:
        steps, error = [], "backend not tested, because something is MISSING"
        if good:
            steps, error = _try(trial_request(name, arguments.grid), root, arguments)
        document |= {"steps": [step._asdict() for step in steps], "error": error}
        good = good and error is None
        if error is not None and not arguments.json:
            warn(error)
    if arguments.json:
        print_json(document)
    return 0 if good else 6
