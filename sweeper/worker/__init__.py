"""The worker: the process inside a job that executes one attempt of a run."""
