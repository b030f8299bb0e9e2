"""The worker: what runs inside a job, for one attempt of a run."""
