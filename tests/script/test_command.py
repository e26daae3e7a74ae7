"""Of a command, the program that would train is found, or the user is told what to type."""

import shlex

import pytest

from memcalc.catalog.plan import to_simulate
from memcalc.cli.simulate import _say_where_gpu_belongs
from memcalc.errors import UsageError
from memcalc.script.command import Program, to_type
from memcalc.script.command import parse as parse_text
from memcalc.script.simulate import make_plan, simulate


def parse(words):
    return parse_text(shlex.join(words))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def test_a_script_is_run_with_its_arguments(here):
    expected = Program(path="train.py", arguments=("--lr", "1e-3"))
    assert parse(["python", "train.py", "--lr", "1e-3"]) == expected
    assert parse(["python3.11", "-u", "-X", "dev", "train.py", "--lr", "1e-3"]) == expected
    assert parse(["train.py", "--lr", "1e-3"]) == expected


def test_a_module_is_run_with_its_arguments(here):
    assert parse(["python", "-m", "pkg.train", "a"]) == Program(
        module="pkg.train", arguments=("a",)
    )


def test_a_console_script_of_python_is_found_on_the_path(here, monkeypatch):
    tool = here / "tune"
    tool.write_text("#!/usr/bin/env python3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(here))
    assert parse(["tune", "run"]) == Program(path=str(tool), arguments=("run",))


@pytest.fixture
def swift(here, monkeypatch):
    tool = here / "swift"
    tool.write_text("#!/usr/bin/env python3\nfrom swift.cli.main import cli_main\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(here))
    for name in ("NPROC_PER_NODE", "NNODES", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return tool


def test_of_a_command_that_starts_python_anew_the_program_is_run(swift):
    expected = Program(module="swift.cli.sft", arguments=("--model", "m"))
    assert parse(["swift", "sft", "--model", "m"]) == expected
    assert parse(["python", "-m", "swift.cli.main", "sft", "--model", "m"]) == expected
    (swift.parent / "a.yaml").write_text(
        "model: m\nENV: {MAX_PIXELS: 9, NNODES: 1}\nlora: [q, v]\n"
    )
    found = parse(["swift", "sft", "a.yaml", "--x", "1"])
    assert found.arguments[-9:] == ("-m", "swift.cli.sft", *"--model m --lora q v --x 1".split())
    assert found.environment == (("MAX_PIXELS", "9"), ("NNODES", "1"))
    assert parse(["swift", "merge-lora"]) == Program(module="swift.cli.merge_lora")


def test_where_it_starts_several_processes_torchrun_does(swift, monkeypatch):
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    monkeypatch.setenv("MASTER_PORT", "29501")
    assert parse(["swift", "sft", "--model", "m"]) == Program(
        launcher="torchrun",
        arguments=(
            *("--nproc_per_node=2", "--master_port=29501", "-m", "swift.cli.sft"),
            *("--model", "m"),
        ),
    )
    assert parse(["swift", "export"]) == Program(module="swift.cli.export")


def test_another_command_of_that_name_is_run_itself(swift):
    swift.write_text("#!/usr/bin/env python3\nfrom swiftclient.shell import main\n")
    assert parse(["swift", "stat"]) == Program(path=str(swift), arguments=("stat",))


@pytest.mark.parametrize("command", [["swift"], ["swift", "--help"]])
def test_without_options_of_a_program_it_is_told_what_to_type(swift, command):
    with pytest.raises(UsageError, match=r"memcalc simulate -- swift sft --model|what swift"):
        parse(command)


@pytest.mark.parametrize(
    "command", [["python", "none.py"], ["python"], ["nothing-like-it"], ["sh", "x"], []]
)
def test_a_command_without_a_program_is_told_what_to_type(here, command):
    with pytest.raises(UsageError, match=r"There is no script|memcalc simulate -- python"):
        parse(command)


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (["torchrun", "train.py"], "torchrun"),
        (["accelerate", "launch", "a.py"], "accelerate"),
        (["python", "-m", "torch.distributed.run", "a.py"], "torchrun"),
    ],
)
def test_a_launcher_is_recognised(here, command, launcher):
    assert parse(command).launcher == launcher


def test_a_launcher_that_says_nothing_of_its_processes_is_refused(here):
    with pytest.raises(UsageError, match="torchrun --nproc-per-node"):
        parse(["mpirun", "python", "train.py"])


def test_variables_that_stand_before_a_program_are_its_own(here):
    expected = Program(path="train.py", environment=(("A", "1"), ("B_2", "x=y z")))
    for before in ((), ("env",), ("/usr/bin/env",)):
        assert parse([*before, "A=1", "B_2=x=y z", "python", "train.py"]) == expected
    assert parse(["python", "train.py", "A=1"]).environment == ()
    with pytest.raises(UsageError, match="Nothing to simulate"):
        parse(["A=1"])
    with pytest.raises(UsageError, match="env -i is not followed"):
        parse(["env", "-i", "python", "train.py"])


def test_what_starts_a_program_elsewhere_is_told_where_to_stand(here):
    for typed, wanted in (
        ("uv run -q python train.py a", "uv run -q memcalc simulate -- python train.py"),
        ("uv run train.py", "uv run memcalc simulate -- train.py"),
        ("hatch run train", "hatch run memcalc simulate -- python train.py."),
        ("conda run -n x torchrun a.py", "conda run -n x memcalc simulate -- torchrun a.py"),
        ("nohup python train.py", "leave it out, as in memcalc simulate -- python train.py."),
        ("nice -n 5 torchrun train.py", "as in memcalc simulate -- torchrun train.py."),
        ("not_there python train.py", "leave it out, as in memcalc simulate -- python train.py."),
    ):
        with pytest.raises(UsageError) as found:
            parse_text(typed)
        assert wanted in str(found.value)


def test_a_program_beside_this_python_needs_no_activated_environment(here, monkeypatch):
    (here / "pytest").write_text("#!/usr/bin/env python3\n")
    (here / "pytest").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", str(here / "python"))
    expected = Program(path=str(here / "pytest"), arguments=("-q", "train.py"))
    assert parse(["pytest", "-q", "train.py"]) == expected
    (here / "pytest").unlink()
    with pytest.raises(UsageError, match="pytest is not beside") as found:
        parse(["pytest", "-q", "train.py"])
    assert "leave it out" not in str(found.value)


def test_a_kernel_is_no_command_to_type_and_a_notebook_is_made_a_script():
    kernel = "python -m ipykernel_launcher -f /tmp/x.json --HistoryManager.hist_file=:memory:"
    assert to_type([kernel]) == (
        "jupyter nbconvert --to script NOTEBOOK.ipynb, then memcalc simulate -- python NOTEBOOK.py"
    )


SHELL = """#!/bin/bash
set -e  # python comment.py
pip install pkg && LR=3 python train.py \\
    --lr 3 "$@"
torchrun --nproc-per-node 2 train.py; python third.py; python fourth.py
"""


def test_the_commands_of_a_shells_script_are_named_and_it_is_not_run(here):
    (here / "run.sh").write_text(SHELL)
    for typed in ("bash run.sh", "bash -x run.sh", "./run.sh"):
        with pytest.raises(UsageError) as found:
            parse_text(typed)
        assert str(found.value).endswith(
            "type memcalc simulate -- LR=3 python train.py --lr 3 or memcalc simulate -- torchrun "
            "--nproc-per-node 2 train.py or memcalc simulate -- python third.py (and 1 more)."
        )
    with pytest.raises(UsageError, match=r"type memcalc simulate -- python train\.py"):
        parse_text("sh -c 'cd x; python train.py'")
    for typed, said in (
        ("bash no.sh", "There is no script no"),
        ("sh -c ls", "the one that trains"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_text(typed)


def test_a_program_beside_the_python_that_is_named_comes_first(here, monkeypatch):
    for folder in ("path", "own"):
        (here / folder).mkdir()
        for name in ("python", "trl"):
            (here / folder / name).write_text("#!/usr/bin/env python3\n")
            (here / folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(here / "path"))
    for python, expected in (("own/python", "own"), ("python", "path"), (None, "path")):
        assert parse_text("trl sft", None, python).path == str(here / expected / "trl")


def test_a_console_script_may_be_told_a_python_file(here, monkeypatch):
    tool = here / "tune"
    tool.write_text("#!/usr/bin/env python3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(here))
    assert parse(["tune", "train.py"]) == Program(path=str(tool), arguments=("train.py",))


def test_a_program_finds_the_variables_that_stand_before_it(here):
    (here / "train.py").write_text("import os\nassert os.environ['MEMCALC_MINE'] == '3'\n")
    for words, code in ((["MEMCALC_MINE=3", "python", "train.py"], 0), (["python", "train.py"], 1)):
        assert simulate(make_plan(words)).ending.code == code


def test_what_to_type_again_has_every_option_that_was_typed():
    typed = "--gpu t4 --steps 0 --torch 2.8 --alloc-conf a:b --python 'my py' --weights"
    plan = make_plan(
        ["python", "train.py"],
        gpu="t4",
        steps=0,
        torch="2.8",
        alloc_conf="a:b",
        python="my py",
        weights=True,
    )
    assert (
        to_simulate(plan, "-o x.json ") == f"memcalc simulate {typed} -o x.json -- python train.py"
    )
    assert to_simulate(make_plan(["python", "train.py"])) == "memcalc simulate -- python train.py"


@pytest.mark.parametrize(("given", "told"), [("t4", True), ("0", False)])
def test_a_gpu_that_is_named_after_the_script_is_told_where_it_belongs(given, told, capsys):
    _say_where_gpu_belongs(["python", "train.py", "--gpu", given, "--lr", "1"])
    assert (
        "type memcalc simulate --gpu t4 -- python train.py --lr 1" in capsys.readouterr().err
    ) == told
