"""Scripts as they are, on a CPU: what is simulated is compared with it."""

import os
import sys


def run(script, folder, *arguments):
    """Run a script's text in this process, which simulates nothing; see the fixture ``forked``."""
    os.chdir(folder)
    sys.argv = ["train.py", *arguments]
    exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
