"""No line is wider than the terminal, and what people see of an answer changes only on purpose.

``scripts/make_goldens.py`` writes the answers and the texts that these tests compare with.
"""

import os
import pathlib
import runpy

import pytest
import typer
from msgspec.structs import replace

import memcalc  # noqa: F401 (installs how records show themselves)
from memcalc.cli.app import VERBS, app
from memcalc.files import artifact
from memcalc.files.results import predictions
from memcalc.records.prediction import Growth, Refusal
from memcalc.records.trace import Component, Phase
from memcalc.report import answer, saved
from memcalc.report.blocks import command, terminal

ROOT = pathlib.Path(__file__).parent.parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "make_goldens.py"))
WIDTHS = SCRIPT["WIDTHS"]
ANSWERS = ROOT / "tests" / "data" / "answers"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCRIPT["NAMES"])
def test_an_answer_looks_as_it_did_and_keeps_within_the_width(name, width):
    shown = SCRIPT["shown"](name, width)
    assert shown == SCRIPT["golden"](name, width).read_text()
    assert max(map(len, shown.splitlines())) <= width


BRIEF = ("fits", "does-not-fit", "no-gpu", "ranks", "several", "decode", "simulated")


@pytest.mark.parametrize("name", [*BRIEF, "suggestions", "cards"])
def test_an_answer_is_seen_whole_in_a_terminal_of_24_lines(name):
    assert len(SCRIPT["golden"](name, 80).read_text().splitlines()) <= 24


@pytest.mark.parametrize("name", ["fits", "does-not-fit", "fit", "counted", "suggestions", "cards"])
def test_the_first_line_is_the_verdict(name):
    assert SCRIPT["golden"](name, 80).read_text()[0] in "✓✗!"


def test_an_answer_with_all_there_is_to_say_leaves_small_components_out_and_keeps_24_lines():
    (prediction,) = predictions(artifact.read(ANSWERS / "ranks.json"), ANSWERS)
    grows = Growth(bytes=1 << 25, line="train.py:7", steps=440)
    refusal = Refusal(
        device=0, phase=Phase.FORWARD, step=1, line="train.py:9", asked=1 << 31, free=1 << 30
    )
    whole = replace(
        prediction,
        components=dict.fromkeys(Component, prediction.peak.requested // len(Component)),
        growth=grows,
        refusal=refusal,
        assumptions=(*prediction.assumptions, *(f"sentence {n} (--switch)" * 3 for n in range(9))),
    )
    shown = terminal(answer.blocks(whole), width=80).splitlines()
    assert len(shown) <= 24
    assert any("more (-v)" in line for line in shown)
    assert sum("█" in line for line in shown) >= 3


def test_python_prints_an_answer_as_the_terminal_shows_it():
    (prediction,) = predictions(artifact.read(ANSWERS / "fits.json"), ANSWERS)
    assert str(prediction) == terminal(answer.blocks(prediction)).rstrip("\n")
    assert repr(prediction).startswith("<Prediction: ✓ fits on T4")
    for name in saved.KINDS:
        path = ANSWERS / f"{name}.json"
        if path.exists():
            record = saved.read(artifact.read(path), path)
            assert record._repr_html_().startswith("<div><")
            assert "-v shows" not in record._repr_html_()


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
