"""The engine in this process, in the foreground: `sweeper engine serve`."""

import os

from sweeper import paths
from sweeper.engine.lifecycle import Settings, token_for

__all__ = ["serve"]


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    home: str | None = None,
    settings: Settings = Settings(),  # noqa: B008 -- a tuple
) -> None:
    """Serve until SIGTERM or SIGINT; a hangup is survived.

    Port 0 is that of the home's engine before, where it can be had, else a free one. Without a
    token in the settings it is $SWEEPER_ENGINE_TOKEN, else the one that the home keeps (`keys`),
    which is made at the first start. Raises EngineError if another engine serves the home, the
    address cannot be had, or would be open to others with the home's own token, a limit is none,
    or a model cannot be read.
    """
    settings.limits.check()
    settings = settings._replace(token=token_for(settings.token, host))
    # Before numpy is imported: its threads cost more than they bring at these sizes.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from sweeper.engine.server import run

    run(host, port, os.path.abspath(home or paths.home()), settings)
