"""The table of verbs against the commands themselves, each imported only when it is typed."""

import shlex
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

from memcalc.cli.app import VERBS, app
from memcalc.cli.groups import EXAMPLES, GROUPS
from memcalc.errors import MemcalcError
from memcalc.records.fields import FIELDS


@pytest.mark.parametrize("name", VERBS)
def test_the_table_says_of_a_verb_what_its_own_help_begins_with(name):
    command = app.get_command(click.Context(app), name)
    first = " ".join(command.help.split("\n\n")[0].split())
    assert VERBS[name].help == first


def test_help_shows_every_verb_and_imports_none():
    code = (
        "import sys; from memcalc.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "print(sorted(m for m in sys.modules if m.startswith('memcalc.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in VERBS:
        assert f"\n  {name} " in done.stdout
    assert done.stderr.strip() == "['memcalc.cli.app']"


def test_a_mistyped_verb_is_answered_with_the_closest():
    from click.testing import CliRunner

    answer = CliRunner().invoke(app, ["estimat"])
    assert answer.exit_code == 2
    assert "estimate" in answer.output


def test_two_saved_answers_are_compared(memcalc, small_model, tmp_path):
    for name, batch in (("a", "2"), ("b", "4")):
        words = ("estimate", small_model, "--batch", batch, "--seq", "64")
        assert memcalc(*words, "-o", str(tmp_path / f"{name}.json")).returncode == 0
    done = memcalc("diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == 0
    assert "settings: batch 2 -> 4" in done.stdout


def test_a_comparison_with_nonsense_is_one_sentence(memcalc, small_model):
    done = memcalc("diff", small_model, "gpt2 --bach 4")
    assert done.returncode == 2
    assert "--bach" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_that_cannot_be_is_refused_before_the_other_one_is_traced(monkeypatch):
    from click.testing import CliRunner

    monkeypatch.setattr("memcalc.cli.diff.Tracer", None)
    answer = CliRunner().invoke(app, ["diff", "gpt2", "gpt2 --seq 99999"])
    assert isinstance(answer.exception, MemcalcError)
    assert "99999" in str(answer.exception)


@pytest.mark.parametrize("example", [e for lines in EXAMPLES.values() for e in lines])
def test_every_example_of_the_help_is_understood(example):
    _, name, *words = shlex.split(example, comments=True)
    if "*" in example:
        words = ["runs.json"]
    app.commands[name].make_context(name, words, click.Context(app, **app.context_settings))


def test_every_verb_has_examples_and_every_option_of_a_plan_a_heading():
    assert set(VERBS) - set(EXAMPLES) == {"list", "completion"}
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    typed = {name for name, field in FIELDS.items() if field.option is not None}
    assert set(grouped) == typed - {"model"}


def test_a_shell_is_offered_verbs_models_gpus_and_optimizers():
    def offered(words, begun):
        return {
            item.value
            for item in ShellComplete(app, {}, "memcalc", "_X").get_completions(words, begun)
        }

    assert "suggest" in offered([], "su")
    assert "openai-community/gpt2" in offered(["estimate"], "openai")
    assert "rtx4090" in offered(["estimate", "gpt2", "--gpu"], "rtx40")
    assert "adamw,adam8bit" in offered(["estimate", "gpt2", "--optim"], "adamw,adam8")
    assert "amp-bf16" in offered(["estimate", "gpt2", "--precision"], "amp")
