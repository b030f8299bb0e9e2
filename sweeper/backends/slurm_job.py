"""Run `slurm/job.py`, for queued jobs that an earlier version submitted with this path."""

import os
import runpy

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    runpy.run_path(os.path.join(folder, "slurm", "job.py"), run_name="__main__")
