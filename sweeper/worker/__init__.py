"""Inside the job: one attempt of a run."""
