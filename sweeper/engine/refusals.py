"""The SDK's requests that this engine does not support: each path with the reason.

They are refused at once. `docs/engine.md` has a table of all calls of the SDK, which a test
checks.
"""

_NO_PROJECTS = "there are no projects on this engine"
_NO_ACCOUNTS = "there are no accounts on this engine, only its token"

REFUSED: list[tuple[str, str, str]] = [
    ("POST", "copy_weights", f"{_NO_PROJECTS} to copy weights to"),
    ("PUT", "sessions/{session}/project", _NO_PROJECTS),
    ("GET", "sessions/{session}/trace_export", "this engine records no traces"),
    ("GET", "audit", "this engine keeps no audit log"),
    ("POST", "create_custom_loss", "custom losses run in the client here"),
    ("POST", "retrieve_futures", "ask for one answer at a time here: retrieve_future"),
    ("POST", "auth/token", _NO_ACCOUNTS),
    ("GET", "auth/apikey/me", _NO_ACCOUNTS),
    ("DELETE", "auth/apikey/me", _NO_ACCOUNTS),
    (
        "GET",
        "training_runs/{run}/checkpoints/{checkpoint:path}/archive",
        "there are no archives on this engine: save_weights_external, then its addresses",
    ),
]
"""Method, path below /api/v1/, message."""
