"""What the docs show is what the program says."""

import os
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
        [*command, "--optim", "adam8bit"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    shown = (ROOT / "README.md").read_text()
    assert "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()) in shown


def test_every_command_the_readme_and_the_tutorial_name_exists():
    from memcalc.cli.app import VERBS

    pages = ("README.md", "docs/tutorial.md")
    lines = [line for page in pages for line in (ROOT / page).read_text().splitlines()]
    used = {line.split()[1] for line in lines if line.startswith("memcalc ")}
    assert used <= set(VERBS)


def test_the_tutorial_shows_what_its_commands_print():
    script = runpy.run_path(str(ROOT / "scripts" / "make_tutorial.py"))
    page = (ROOT / "docs" / "tutorial.md").read_text()
    # The remedies, which take long, are estimates of their own and are tested as such.
    explained = script["output"](f"{script['EXPLAIN']} --no-remedies")
    body = explained.split("```text\n")[1].removesuffix("\n```")
    assert body in page
    for command in script["QUICK"]:
        assert script["output"](command) in page
    fixed = script["QUICK"][1].removeprefix("memcalc estimate ")
    assert f"memcalc estimate {_as_suggested(fixed)}" in page


def _as_suggested(options):
    from memcalc.catalog.plan import make
    from memcalc.explanation.command import options as typed

    words = options.split()
    named = dict(zip(words[1::2], words[2::2], strict=True))
    settings = {name.removeprefix("--").replace("-", "_"): value for name, value in named.items()}
    counts = {name: int(v) if v.isdigit() else v for name, v in settings.items()}
    return typed(make({"model": words[0], **counts}))


def test_the_page_of_architectures_is_what_was_traced():
    import json
    import runpy

    script = runpy.run_path(str(ROOT / "benchmarks" / "coverage.py"))
    saved = json.loads((ROOT / "evidence" / "coverage.json").read_text())
    assert (ROOT / "docs" / "coverage.md").read_text() == script["page"](saved)
    # Models that turn speech into text take inputs of many kinds; most are not made yet.
    outcomes = [outcome for task, _, outcome, _ in saved["rows"] if task != "speech-seq2seq"]
    traced, failed = outcomes.count("traced"), outcomes.count("failed")
    assert traced / (traced + failed) >= 0.97
