"""Follows the engine (the local model service) of a sweep, which may be killed and restarted, also
on another port. While no engine answers, no runs are started."""

from collections.abc import Callable
from contextlib import suppress

from sweeper.backends import capabilities_together
from sweeper.engine import lifecycle
from sweeper.errors import NotFound, StoreError, Unreachable
from sweeper.scheduler.context import Context
from sweeper.store.documents import encode, read_as
from sweeper.sweep import environment_file
from sweeper.sweep.job import Engine, read_engine
from sweeper.sweep.launcher import Service

SILENT_SECONDS = 5.0
"""Seconds without an answer before users are told. An engine may be too busy to answer
immediately."""
ORPHAN_SECONDS = 60.0
"""Seconds that an attempt has to end by itself after its engine moved to another address. Some
attempts no longer need the engine. Many programs give up after half a minute. The SDK alone would
retry forever."""
_ASK_SECONDS = 1.0


class EngineWatch:
    """A monitor of a sweep's engine (sweeper's model service). `find` returns the running engine or
    None. `url` is the engine's address at the launch. New attempts get the current address.

    With `fixed`, the address never changes. The launcher may be unable to reach such an engine,
    which therefore counts as missing only if the launcher has reached it before.
    """

    def __init__(
        self,
        context: Context,
        find: Callable[[], Engine | None],
        url: str,
        *,
        fixed: bool,
    ) -> None:
        self._store = context.store
        self._folder = context.folder
        self._find = find
        self._clock = context.clock
        self._fixed = fixed
        self._url = url
        self._where: Engine | None = None
        self._since = context.clock()
        self._silent_since: float | None = None
        self._began: dict[tuple[str, int], str | None] = {}

    @property
    def away(self) -> bool:
        """Whether the engine was missing at the last check, so that no run may be started."""
        return self._silent_since is not None and not (self._fixed and self._where is None)

    def check(self) -> None:
        """Check the engine. Raises `Unreachable` if it has been missing for `SILENT_SECONDS`, or if
        its new address cannot be recorded."""
        now = self._clock()
        engine = self._find()
        if engine is not None and engine != self._where:
            try:
                self._tell(engine)
            except (StoreError, NotFound) as error:
                self._silent_since = now
                raise Unreachable(str(error)) from error
            self._where, self._since = engine, now
        if engine is not None:
            self._silent_since = None
            return
        self._silent_since = now if self._silent_since is None else self._silent_since
        if self.away and now - self._silent_since >= SILENT_SECONDS:
            raise Unreachable(
                f"no engine answers at {self._url}: start it with `sweeper engine start`"
            )

    def _tell(self, engine: Engine) -> None:
        """Give the engine's address and key to attempts that start from now on, and record the
        address. Do nothing if the address is fixed."""
        if self._fixed:
            return
        service = self._folder.read_service()
        key = lifecycle.client_key(service.home)
        variables = {"TINKER_BASE_URL": engine.url, "TINKER_API_KEY": key}
        if service.env_file is not None:
            environment_file.change(service.env_file, variables)
        if engine.url != service.engine:
            document = {**service.document, "engine": engine.url}
            self._store.replace(self._folder.service, encode(document))
        self._url = engine.url

    def described(self, run: str, attempt: int) -> Engine | None:
        """Return the engine that a new attempt will use; None if no engine has answered yet. Note
        the engine's address for `orphaned`."""
        where = self._where
        self._began[run, attempt] = where and where.url
        return where

    def orphaned(self, run: str, attempt: int) -> bool:
        """Return whether an attempt uses an old address of the engine, and the address changed at
        least `ORPHAN_SECONDS` ago. Return False while no engine answers."""
        if self._where is None or self._silent_since is not None:
            return False
        if self._clock() - self._since < ORPHAN_SECONDS:
            return False
        if (run, attempt) not in self._began:
            began: Engine | None = None
            with suppress(NotFound, StoreError):
                path = self._folder.job(run, attempt)
                began = read_as(self._store, path, read_engine)
            self._began[run, attempt] = began and began.url
        return self._began[run, attempt] not in (None, self._where.url)


def watch(context: Context, service: Service) -> EngineWatch | None:
    """Return the engine watch of a sweep, or None if its runs do not use sweeper's engine.
    `service` is the service record of the launch."""
    plan, url = context.plan, service.engine
    is_here = capabilities_together(plan.launch).here
    if plan.service != "local" or url is None:
        return None
    if "TINKER_BASE_URL" in plan.launch.env:
        return None  # The grid names another service.

    def find_here() -> Engine | None:
        engine = lifecycle.find(service.home, _ASK_SECONDS)
        return None if engine is None else Engine(engine.url, engine.started)

    def find_there() -> Engine | None:
        started = lifecycle.knock(url, _ASK_SECONDS)
        return None if started is None else Engine(url, started)

    find = find_here if is_here else find_there
    return EngineWatch(context, find, url, fixed=not is_here)
