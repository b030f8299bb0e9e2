"""moto's S3 over HTTP, in a separate process.

If two clients create one object at once, moto lets both succeed when the second checks for the
object before the first has made it. So the interpreter does not switch threads between the two.
"""

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def serving(log: Callable[[str], object] = lambda _: None) -> Iterator[tuple[str, int]]:
    """Yield the server's address and its process id. `log` gets a line for each request."""
    command = [sys.executable, __file__, "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        starts = (re.search(r"Running on (http://127\.0\.0\.1:\d+)", line) for line in lines)
        match = next(filter(None, starts), None)
        assert match, "moto did not start"
        drain = threading.Thread(target=lambda: deque(map(log, lines), 0), daemon=True)
        drain.start()
        try:
            yield match[1], process.pid
        finally:
            process.terminate()
            drain.join(10)


if __name__ == "__main__":
    from moto.server import main

    sys.setswitchinterval(60)
    main()
