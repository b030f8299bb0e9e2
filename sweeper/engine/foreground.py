"""Runs the engine in this process, in the foreground: `sweeper engine serve`."""

import os

from sweeper import paths
from sweeper.engine.lifecycle import Settings, token_for


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    home: str | None = None,
    settings: Settings = Settings(),  # noqa: B008 -- a tuple
) -> None:
    """Serve until SIGTERM or SIGINT. Hangups are ignored.

    Port 0 takes the port of the home's last engine if it is free, else any free port. If the
    settings have no token, it is $SWEEPER_ENGINE_TOKEN, else the home's own (`access_token`),
    which is created at the first start. Raises EngineError if another engine serves the home, if
    the address is not available, if the address is not a loopback one and only the home's own
    token would protect it, if a limit is invalid, or if a model cannot be read.
    """
    settings.limits.check()
    settings = settings._replace(token=token_for(settings.token, host))
    # Before numpy is imported: its threads are a loss at these sizes.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from sweeper.engine.server import run

    run(host, port, os.path.abspath(home or paths.home()), settings)
