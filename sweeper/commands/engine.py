"""`sweeper engine`: starts, inspects or stops the local Tinker-compatible service."""

from argparse import ArgumentParser, Namespace


def add_arguments(verb: ArgumentParser) -> None:
    """Declare arguments for completion only. The engine parses its own command line."""
    verb.add_argument("action", choices=("start", "serve", "status", "env", "stop"))


def run(arguments: Namespace) -> int:
    """Run the engine's own command line."""
    from sweeper.engine.__main__ import main
    from sweeper.launcher.environment_cleanup import sweeps_using

    return main(arguments.rest, sweeps_using)
