"""Jobs that an earlier version has left in a queue were told this path."""

import os
import runpy

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    runpy.run_path(os.path.join(folder, "slurm", "job.py"), run_name="__main__")
