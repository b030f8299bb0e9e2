"""The errors that sweeper reports to users. A message is one line: where, what, and how to fix
it."""

# The number is the exit code of a command that ends with the error.
#
# SweeperError                 1    (never raised directly)
# ├─ UsageError               2    the command line or an argument from Python
# │   └─ GridError            2    one or more problems in a grid, one line each, with places
# │       └─ RecipeError           its recipe cannot be found, imported or used
# ├─ NotFound                 5    the sweep, run or file does not exist
# └─ EnvironmentFailure       6    something that sweeper needs is missing
#     ├─ StoreError                the store refuses or cannot be reached
#     │   ├─ AlreadyExists         the file of an exclusive create exists already
#     │   └─ Damaged               a document is damaged, though the store answers
#     ├─ Unreachable               a backend does not answer; its jobs may still run
#     │   └─ NoRoom                a backend cannot start more jobs now; running jobs continue
#     ├─ EngineError               the local engine does not start or does not answer
#     └─ AnotherLauncher           a sweep already has a launcher

from collections.abc import Sequence


class SweeperError(Exception):
    """The base class of sweeper's errors. A command that fails with an error ends with the error's
    `exit_code`."""

    exit_code = 1


class UsageError(SweeperError):
    """The caller requested something impossible. The message says what is wrong, and what to write
    instead."""

    exit_code = 2


class GridError(UsageError):
    """A grid that cannot be run. `problems` holds one line for each mistake, in file order."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class RecipeError(GridError):
    """The recipe cannot be found, imported or used. `kind` names the cause: `python`, `cwd`,
    `recipe`, `import`, `main`, `class`, `log_path` or `command`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__([message])
        self.kind = kind


class NotFound(SweeperError):
    """The named sweep, run or file does not exist."""

    exit_code = 5


class EnvironmentFailure(SweeperError):
    """Something outside sweeper is missing or does not answer."""

    exit_code = 6


class StoreError(EnvironmentFailure):
    """The store cannot do what was requested."""


class AlreadyExists(StoreError):
    """The file to create exists already."""


class Damaged(StoreError):
    """A stored document is not valid JSON or lacks expected fields."""


class Unreachable(EnvironmentFailure):
    """A backend did not answer. Its jobs may still be running."""


def is_silence(error: EnvironmentFailure) -> bool:
    """Return whether the error means that a backend did not answer. A backend that answers, but
    refuses a request, raises a subclass of `Unreachable`."""
    return type(error) is Unreachable


class NoRoom(Unreachable):
    """A backend can start no more jobs now, because its machine is full."""


class EngineError(EnvironmentFailure):
    """The local engine could not be started, found or stopped."""


class AnotherLauncher(EnvironmentFailure):
    """Another launcher is driving the sweep."""

    @classmethod
    def at_work(cls, sweep: str, root: str) -> "AnotherLauncher":
        """Return the error that a second launcher of the sweep gets."""
        import shlex

        return cls(
            f"another launcher is running on {sweep!r}: follow it with `sweeper watch {sweep} "
            f"--root {shlex.quote(root)}`, or wait until it ends"
        )
