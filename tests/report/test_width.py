"""No line is wider than the terminal, and what people see of an answer changes only on purpose.

``scripts/make_goldens.py`` writes the answers and the texts that these tests compare with.
"""

import os
import pathlib
import runpy

import pytest
import typer

from memcalc.cli.app import VERBS, app
from memcalc.report.blocks import command

ROOT = pathlib.Path(__file__).parent.parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "make_goldens.py"))
WIDTHS = SCRIPT["WIDTHS"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCRIPT["NAMES"])
def test_an_answer_looks_as_it_did_and_keeps_within_the_width(name, width):
    shown = SCRIPT["shown"](name, width)
    assert shown == SCRIPT["golden"](name, width).read_text()
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VERBS)
def test_help_keeps_within_the_width(name, width):
    whole = typer.Context(app, info_name="memcalc", **app.context_settings)
    command = app.get_command(whole, name)
    with typer.Context(command, whole, info_name=name, terminal_width=width) as context:
        text = command.get_help(context)
    assert max(map(len, text.splitlines())) <= width


def test_a_long_command_is_one_command_to_a_shell(tmp_path):
    text = "  memcalc estimate gpt2 --lora 'r=16, target=all' --alloc-conf a:b --precision bf16"
    folded = command(text, 40)
    assert max(map(len, folded.splitlines())) <= 40
    script = tmp_path / "said.sh"
    script.write_text(f"memcalc() {{ printf '%s|' \"$@\"; }}\n{folded}\n")
    with os.popen(f"bash {script}") as said:
        assert (
            said.read()
            == "estimate|gpt2|--lora|r=16, target=all|--alloc-conf|a:b|--precision|bf16|"
        )
