"""Write docs/cli.md from the commands' own help; the tests check that it is up to date."""

import os
import pathlib
import subprocess
import sys

from memcalc.cli.app import VERBS

COMMANDS = ("", *VERBS, *(f"list {name}" for name in ("models", "optimizers", "gpus")))
PATH = pathlib.Path(__file__).parent.parent / "docs" / "cli.md"


def text() -> str:
    parts = ["# Command line\n\nMade from `--help` by `scripts/make_cli_reference.py`.\n"]
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "memcalc", *command.split(), "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "90", "TERM": "dumb"},
        )
        body = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
        body = body.replace("python -m memcalc", "memcalc")
        parts.append(f"## memcalc {command}".rstrip() + f"\n\n```\n{body}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PATH.write_text(text())
