"""The real engine with a variable cap on its sessions: `capped.py HOME`. `HOME/cap` has the number
of sessions that may have training clients. `HOME/seats.jsonl` gets a record five times a second:
the time, the cap, and the seats that are taken and waited for, by the root of the run's sweep.

The product cannot change the cap of a running engine; this program adds that.
"""

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sweeper.engine import server
from sweeper.engine.lifecycle import Settings
from sweeper.engine.limits import Limits
from sweeper.engine.service import Service

_SECONDS = 0.2


class Capped(Service):
    """A service that records its seats."""

    home: Path

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        gate = self._admission.seats
        with (self.home / "seats.jsonl").open("a") as record:
            while True:
                cap = int((self.home / "cap").read_text() or gate.limit or 0)
                if cap != gate.limit:
                    gate.limit = cap
                    gate.leave("")  # admits waiting sessions up to the new cap
                inside, waiting = list(gate.inside()), gate.waiting()
                line = {"time": time.time(), "cap": cap}
                line |= {"inside": self._whose(inside), "waiting": self._whose(waiting)}
                record.write(json.dumps(line) + "\n")
                record.flush()
                time.sleep(_SECONDS)

    def _whose(self, sessions: list[str]) -> Counter[str]:
        roots = {s.id: (s.user_metadata or {}).get("root") for s in self.registry.all_sessions()}
        return Counter(str(roots.get(session)) for session in sessions)


if __name__ == "__main__":
    Capped.home = Path(sys.argv[1])
    server.Service = Capped  # type: ignore[misc]
    first = int((Capped.home / "cap").read_text())
    server.run("127.0.0.1", 0, str(Capped.home), Settings(limits=Limits(max_sessions=first)))
