"""What the docs show is what the program says."""

import importlib.util
import runpy

import pytest

from tests.conftest import ROOT


def test_the_command_line_reference_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "make_cli_reference.py"))["text"]()
    assert (ROOT / "docs" / "cli.md").read_text() == made


QUICK = ("README.md", "index.md")
SLOW = ("explain", "fit", "suggest", "measure", "check", "simulate")
"""Verbs whose examples take long: they are printed again in the nightly profile."""


def _examples():
    script = runpy.run_path(str(ROOT / "scripts" / "make_examples.py"))
    for page in script["pages"]():
        for command, shown in script["boxes"](page.read_text()):
            slow = page.name not in QUICK or any(f"memcalc {verb} " in command for verb in SLOW)
            marks = [pytest.mark.nightly] if slow else []
            if "trl_" in command and importlib.util.find_spec("trl") is None:
                marks.append(pytest.mark.skip(reason="trl is not installed"))
            yield pytest.param(script["output"], command, shown, marks=marks, id=command)


@pytest.mark.pinned
@pytest.mark.parametrize(("output", "command", "shown"), _examples())
def test_an_example_in_the_docs_is_what_its_command_prints(output, command, shown):
    assert output(command) == shown


def test_every_command_the_readme_and_the_tutorial_name_exists():
    from memcalc.cli.app import VERBS

    pages = ("README.md", "docs/tutorial.md")
    lines = [line for page in pages for line in (ROOT / page).read_text().splitlines()]
    assert {line.split()[1] for line in lines if line.startswith("memcalc ")} <= set(VERBS)


def test_the_page_of_architectures_is_what_was_traced():
    import json
    import runpy

    script = runpy.run_path(str(ROOT / "benchmarks" / "coverage.py"))
    saved = json.loads((ROOT / "evidence" / "coverage.json").read_text())
    assert (ROOT / "docs" / "coverage.md").read_text() == script["page"](saved)
    outcomes = [row[2] for row in saved["rows"]]
    assert set(outcomes) <= {"traced", "failed", "untrainable", "unbuildable"}
    assert outcomes.count("failed") <= 0.03 * (outcomes.count("traced") + outcomes.count("failed"))
    # Nobody says without a reason that something cannot be done.
    assert all(row[3] for row in saved["rows"] if row[2] != "traced")
    # Models that turn speech into text take inputs of many kinds; most are not made yet.
    outcomes = [outcome for task, _, outcome, _ in saved["rows"] if task != "speech-seq2seq"]
    traced, failed = outcomes.count("traced"), outcomes.count("failed")
    assert traced / (traced + failed) >= 0.97
