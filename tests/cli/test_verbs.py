"""The table of verbs against the commands themselves, each imported only when it is typed."""

import shlex
import subprocess
import sys
import threading

import pytest

from memcalc.__main__ import run
from memcalc.catalog import gpus
from memcalc.cli import offers
from memcalc.cli.app import VERBS, app
from memcalc.cli.command import PAGES
from memcalc.cli.progress import progress
from memcalc.records.fields import FIELDS
from memcalc.records.progress import Progress, tell
from tests.conftest import ROOT


@pytest.mark.parametrize("name", VERBS)
def test_the_table_says_of_a_verb_what_its_own_help_begins_with(name):
    assert VERBS[name] == " ".join(app.get_command(None, name).help.split("\n\n")[0].split())


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


def test_a_mistyped_verb_is_answered_with_the_closest(memcalc):
    done = memcalc("estimat")
    assert done.returncode == 2
    assert "estimate" in done.stderr


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


def test_a_plan_that_cannot_be_is_refused_before_the_other_one_is_traced(memcalc, monkeypatch):
    monkeypatch.setattr("memcalc.cli.diff.Answers", None)
    done = memcalc("diff", "gpt2", "gpt2 --seq 99999")
    assert done.returncode == 2
    assert "99999" in done.stderr


def examples(name):
    return [] if name == "list" else app.get_command(None, name).epilog.splitlines()


@pytest.mark.parametrize("example", [e for name in VERBS for e in examples(name)])
def test_every_example_of_the_help_is_understood(example):
    _, name, *words = shlex.split(example, comments=True)
    if "*" in example:
        words = ["runs.json"]
    app.get_command(None, name).make_context(name, words)


def test_every_option_of_a_plan_has_a_heading_below_the_verbs_own(memcalc):
    assert all(field.group for field in FIELDS.values() if field.option is not None)
    shown = memcalc("explain", "--help-all").stdout
    assert shown.index("--under") < shown.index("\nTraining:") < shown.index("--optim ")


def test_every_verb_has_examples():
    assert all(examples(name) for name in set(VERBS) - {"list"})


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("memcalc su", "suggest"),
        ("memcalc estimate openai", "openai-community/gpt2"),
        ("memcalc estimate llama-3.1", "meta-llama/Llama-3.1-8B"),
        ("memcalc estimate gpt2 --gpu rtx40", "rtx4090"),
        ("memcalc estimate gpt2 --gpu 40", "rtx4090"),
        ("memcalc estimate gpt2 --optim adamw,adam8", "adamw,adam8bit"),
        ("memcalc estimate gpt2 --precision amp", "amp-bf16"),
    ],
)
def test_a_shell_is_offered_verbs_models_gpus_and_optimizers(memcalc, typed, offered):
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    assert offered in memcalc(_MEMCALC_COMPLETE="complete_bash", **asked).stdout.splitlines()


def test_in_a_log_the_size_of_what_is_fetched_is_one_line_before_it_comes(capsys):
    def fetch():
        tell(Progress("PyTorch 2.6.0 with CUDA: 767 MB to fetch, once"))
        tell(Progress("PyTorch 2.6.0: fetching (102 MB)", 0.1))
        tell(Progress("", 1.0))

    with progress("estimating gpt2"):
        # Questions are asked by threads too.
        thread = threading.Thread(target=fetch)
        thread.start()
        thread.join()
    tell(Progress("nobody listens"))
    captured = capsys.readouterr()
    assert captured.err == "memcalc: PyTorch 2.6.0 with CUDA: 767 MB to fetch, once\n"
    assert captured.out == ""


@pytest.mark.parametrize("begun", ["", "rtx", "40", "2", "h1", "A1"])
def test_every_gpu_that_is_offered_is_one(begun):
    offered = offers.gpus(begun)
    assert offered
    for name in offered:
        assert begun.lower() in name
        assert gpus.find(name)


def test_zsh_is_told_to_match_inside_names_in_either_case(memcalc):
    shown = memcalc("completion", "zsh").stdout
    assert "compdef _memcalc_completion memcalc" in shown
    assert "'m:{a-zA-Z}={A-Za-z} l:|=* r:|=*'" in shown


@pytest.mark.parametrize("lengths", ["normal", "uniform:9,2", "no-such-file.txt"])
def test_a_distribution_of_lengths_is_checked_before_anything_runs(memcalc, lengths):
    # Nothing is fetched for a release that is not here.
    done = memcalc("estimate", "gpt2", "--lengths", lengths, "--torch", "2.0")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --lengths {lengths}")


@pytest.mark.parametrize("verb", PAGES)
def test_the_help_of_a_verb_names_a_page_of_the_docs_that_tells_of_it(verb, capsys):
    assert run([verb, "--help"]) == 0
    page = f"docs/{PAGES[verb]}.md"
    assert f"Read more: {page}" in capsys.readouterr().out
    assert f"memcalc {verb}" in (ROOT / page).read_text()
