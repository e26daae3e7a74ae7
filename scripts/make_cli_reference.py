"""Write docs/cli.md from the commands' own help; the tests check that it is up to date."""

import contextlib
import io
import os
import pathlib
from unittest.mock import patch

from memcalc.__main__ import run
from memcalc.cli.app import VERBS

COMMANDS = ("", *VERBS, *(f"list {name}" for name in ("models", "optimizers", "gpus")))
PATH = pathlib.Path(__file__).parent.parent / "docs" / "cli.md"


def text() -> str:
    parts = ["# Command line\n\nMade from `--help` by `scripts/make_cli_reference.py`.\n"]
    for command in COMMANDS:
        said = io.StringIO()
        with patch.dict(os.environ, COLUMNS="90", TERM="dumb"), contextlib.redirect_stdout(said):
            # Every setting of a plan once; all verbs that take one take the same.
            which = "--help-all" if command == "estimate" else "--help"
            assert run([*command.split(), which]) == 0
        body = "\n".join(line.rstrip() for line in said.getvalue().strip().splitlines())
        parts.append(f"## memcalc {command}".rstrip() + f"\n\n```\n{body}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PATH.write_text(text())
