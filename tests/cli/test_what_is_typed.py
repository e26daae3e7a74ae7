"""What a person types from habit is understood: other tools' names, a model alone, lists."""

import json

import pytest

from memcalc.catalog.settings import apply_preset
from memcalc.cli.command import COMMON
from memcalc.records.fields import FIELDS
from memcalc.version import __version__

PLAIN = ("--method", "analytic")


def plan_of(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["plan"]


def test_a_model_in_place_of_a_verb_is_estimated(memcalc, small_model):
    assert plan_of(memcalc(small_model, *PLAIN, "--json"))["model"] == small_model


def test_a_script_in_place_of_a_verb_is_told_how_to_simulate(memcalc):
    done = memcalc("train.py")
    assert done.returncode == 2
    assert "type memcalc simulate -- python train.py" in done.stderr


def test_help_and_version_are_verbs_too(memcalc):
    assert memcalc("version").stdout == f"memcalc {__version__}\n"
    assert memcalc("help").stdout == memcalc("--help").stdout
    assert memcalc("help", "fit").stdout == memcalc("fit", "--help").stdout


@pytest.mark.parametrize(
    ("typed", "setting", "value"),
    [
        ("--batch-size 4", "batch", 4),
        ("-g t4", "gpu", "t4"),
        ("--bf16", "precision", "amp-bf16"),
        ("--fp16", "precision", "amp-fp16"),
        ("--fp32", "precision", "fp32"),
    ],
)
def test_names_of_other_tools_are_taken(memcalc, small_model, typed, setting, value):
    plan = plan_of(memcalc("estimate", small_model, *PLAIN, "-f", "json", *typed.split()))
    assert plan[setting] == value


def test_which_half_is_meant_is_told(memcalc, small_model):
    done = memcalc("estimate", small_model, *PLAIN, "--bf16")
    assert "for weights in bf16: --precision bf16" in done.stderr


def test_a_switch_behind_a_users_command_is_the_commands_own(memcalc):
    done = memcalc("run", "--", "sh", "-c", "[ $1 = --json ]", "sh", "--json")
    assert done.returncode == 0


def test_markdown_has_a_short_name(memcalc, small_model):
    words = ("estimate", small_model, *PLAIN)
    assert memcalc(*words, "-f", "md").stdout == memcalc(*words, "-f", "markdown").stdout


def test_lists_make_a_plan_of_each_combination(memcalc, small_model):
    done = memcalc(
        "estimate", small_model, *PLAIN, "--batch", "2,4", "--optim", "sgd,adamw", "--seq", "64"
    )
    rows = [line.split()[:2] for line in done.stdout.splitlines()[3:7]]
    assert sorted(rows) == [["adamw", "2"], ["adamw", "4"], ["sgd", "2"], ["sgd", "4"]]
    assert "64 tokens" in done.stdout.splitlines()[0]
    assert "batch" not in done.stdout.splitlines()[0]


def test_one_value_of_a_list_that_is_wrong_is_named(memcalc, small_model):
    done = memcalc("estimate", small_model, "--batch", "2,x")
    assert done.returncode == 2
    assert "'x'" in done.stderr


def test_a_verb_of_one_plan_says_which_option_has_several(memcalc, small_model):
    done = memcalc("fit", small_model, "--batch", "2,4", "--gpu", "t4")
    assert done.returncode == 2
    assert "give --batch one value" in done.stderr


def test_defaults_of_a_repository_hold_where_nothing_else_is_said(memcalc, small_model, tmp_path):
    text = '[tool.memcalc.defaults]\ngpu = "l4"\nprecision = "amp-fp16"\nlimits.peak = "1 GiB"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    words = ("estimate", small_model, *PLAIN, "--json")
    done = memcalc(*words)
    plan = plan_of(done)
    assert (plan["gpu"], plan["precision"]) == ("l4", "amp-fp16")
    assert "by the defaults of pyproject.toml" in done.stderr
    assert plan_of(memcalc(*words, "--precision", "fp32"))["precision"] == "fp32"
    # A preset says itself how is trained.
    plan = plan_of(memcalc(*words, "--preset", "full"))
    assert (plan["gpu"], plan["precision"]) == ("l4", "bf16")


def test_help_shows_common_settings_and_all_of_them_when_asked(memcalc):
    brief, whole = (memcalc("estimate", word).stdout for word in ("--help", "--help-all"))
    shown = [name for name in COMMON if f"--{name.replace('_', '-')}" in brief]
    assert shown == list(COMMON)
    assert "--help-all" in brief
    assert "--kbit-prepare" not in brief
    named = [one.option for one in FIELDS.values() if one.option and one.name != "model"]
    assert [name for name in named if f"--{name}" not in whole] == []


@pytest.mark.parametrize(
    ("preset", "gpu", "precision"),
    [
        ("qlora", "t4", "fp16"),
        ("full", "v100", "amp-fp16"),
        ("lora", "a100", "bf16"),
        ("lora", "8xt4", "fp16"),
        ("lora", None, "bf16"),
    ],
)
def test_a_preset_takes_the_half_that_a_gpu_computes_in(preset, gpu, precision):
    assert apply_preset({"preset": preset, "gpu": gpu})["precision"] == precision


def test_bf16_that_a_gpu_emulates_is_told_with_what_fp16_needs(memcalc, small_model):
    words = ("estimate", small_model, "--precision", "bf16", "--seq", "64", "--batch", "2")
    third = memcalc(*words, "--gpu", "t4").stdout.splitlines()[2:4]
    assert "no bf16 arithmetic" in third[0]
    assert "--precision fp16 needs" in " ".join(third)
    assert "no bf16 arithmetic" not in memcalc(*words, "--gpu", "a100").stdout
