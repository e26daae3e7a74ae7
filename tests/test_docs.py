"""What the docs show is what the program says."""

import pathlib
import runpy
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent


def test_the_command_line_reference_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "make_cli_reference.py"))["text"]()
    assert (ROOT / "docs" / "cli.md").read_text() == made


def test_the_readme_shows_what_the_main_job_prints():
    command = [sys.executable, "-m", "memcalc", "estimate", "distilbert-base-cased"]
    done = subprocess.run(
        [*command, "--optim", "adam8bit"], capture_output=True, text=True, check=True
    )
    shown = (ROOT / "README.md").read_text()
    assert "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()) in shown


def test_every_command_the_readme_names_exists():
    from typer.main import get_command

    from memcalc.cli.app import app

    known = set(get_command(app).commands)
    lines = (ROOT / "README.md").read_text().splitlines()
    used = {line.split()[1] for line in lines if line.startswith("memcalc ")}
    assert used <= known
