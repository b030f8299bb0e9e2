"""Runs bootstrap.py from its cached bytecode. If Python started bootstrap.py by its path, it would
compile the file each time, which takes milliseconds."""

import os
from _frozen_importlib_external import SourceFileLoader  # loaded in every interpreter

_BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap.py")

code = SourceFileLoader(__name__, _BOOTSTRAP).get_code(__name__)
if code is not None:
    exec(code)  # noqa: S102
