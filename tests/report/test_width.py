"""No line is wider than the terminal, and what people see of an answer changes only on purpose.

``scripts/make_goldens.py`` writes the answers and the texts that these tests compare with.
"""

import os
import re
import runpy

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

import memcalc
from memcalc.advice.fit.records import FitAnswer, GpuFit
from memcalc.cli.app import VERBS, app
from memcalc.files import artifact
from memcalc.files.results import predictions
from memcalc.records.plan import Plan
from memcalc.records.prediction import Growth, Refusal
from memcalc.records.trace import UNCOMPUTED, Component, Phase
from memcalc.report import answer, fitted, saved
from memcalc.report.answer import weightiest
from memcalc.report.blocks import Size, Table, command, markdown, terminal
from memcalc.units import GIB, MIB, Unit
from tests.conftest import ROOT

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
            assert record._repr_html_().startswith("<div class=memcalc><style>")
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


UNIT = Unit("MiB", MIB)


def tenths(text):
    return 0 if text == "<0.1" else round(10 * float(text.replace(",", "")))


@given(st.lists(st.integers(0, GIB), min_size=1, max_size=20))
@example([32882, 32882, 510953])
def test_rounded_parts_add_up_and_none_is_off_by_more_than_a_step(parts):
    shown = UNIT.numbers(parts)
    assert sum(map(tenths, shown)) == tenths(UNIT.number(sum(parts)))
    assert all(abs(tenths(s) - 10 * p / MIB) <= 1 for s, p in zip(shown, parts, strict=True))


def test_parts_that_are_equal_are_written_alike_where_another_can_give_way():
    third = MIB * 103 // 300
    assert UNIT.numbers([third, third, MIB - 2 * third]) == ["0.3", "0.3", "0.4"]


def test_a_gap_is_the_difference_of_the_figures_beside_it():
    before, after = int(13.84 * MIB), int(15.96 * MIB)
    assert (UNIT.number(before), UNIT.number(after)) == ("13.8", "16.0")
    assert UNIT.write_difference(after, before) == "2.2"
    assert UNIT.write_difference(before + 1, before) == "<0.1"


def test_state_of_adapters_is_told_by_what_trains_as_its_rule_is(small_model):
    found = memcalc.estimate(small_model, lora="r=512,target=all-linear", batch=1, seq=16)
    assert "8.00 B/param that trains (rule: 8)" in terminal(list(answer.blocks(found)), width=120)


def test_a_large_model_in_fp32_with_adamw_is_told_on_line_2_that_few_train_so():
    whole = memcalc.estimate("qwen2.5-7b", method="analytic")
    assert "--preset full, lora or qlora" in terminal(list(answer.blocks(whole))).splitlines()[1]
    for usual in ({"precision": "bf16"}, {"optim": "sgd"}):
        found = memcalc.estimate("qwen2.5-7b", method="analytic", **usual)
        assert "--preset" not in terminal(list(answer.blocks(found))).splitlines()[1]


def test_gpus_that_fail_for_one_reason_share_a_sentence_below_the_table():
    plan = Plan(model="gpt2")
    failed = [GpuFit(name=name, capacity=1 << 33, fit=None, reason="no kernels") for name in "AB"]
    answer = FitAnswer(
        plan=plan, device=None, capacity=None, context=None, here=None, gpus=tuple(failed)
    )
    table, line, prices = fitted.tables(answer)
    assert not table.rows
    assert "US dollars" in prices.text
    assert line.text == "A, B: no kernels"


SIZES = (0, 1, 561_152, 20 * MIB, 3 * GIB + 7)


@pytest.mark.parametrize("unit", [None, Unit("MiB", MIB), Unit("GiB", GIB)])
def test_a_size_in_markdown_is_in_the_unit_of_its_column(unit):
    head = ("what", unit.name if unit else "size")
    rows = [(f"row {number}", Size(size, unit)) for number, size in enumerate(SIZES)]
    shown = terminal([Table(head=head, rows=rows)])
    written = re.findall(r"row \d \| (.*?) \|", markdown([Table(head=head, rows=rows)]))
    assert written == re.findall(r"row \d +(.*)", shown)


def test_a_decision_by_numbers_that_are_not_computed_is_shown_however_long_it_is():
    long = f"{UNCOMPUTED} {', '.join(f'train.py:{line}' for line in range(100))}"
    kept, left = weightiest(["an NVIDIA A100 (name yours with --gpu)", long, "short"])
    assert long in kept
    assert len(kept) + left == 3


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_path_of_modules_is_parted_at_its_dots(width):
    record = saved.read(artifact.read(ANSWERS / "explanation.json"), ANSWERS)
    path = "model.decoder.layers.[0-31].self_attention.query_key_value"
    group = replace(record.peak.groups[0], module=path, op="linear")
    peak = replace(record.peak, groups=(group, *record.peak.groups[1:]))
    shown = terminal(saved.blocks(replace(record, peak=peak), verbose=False, top=8), width=width)
    parts = re.split(r"\s+", shown)
    assert path not in parts
    assert "".join(parts).count(path) == 1
    assert all(word in shown for word in path.split("."))


def test_an_explanation_at_80_columns_is_read_in_three_screens():
    assert len(SCRIPT["golden"]("explanation", 80).read_text().splitlines()) <= 3 * 24
