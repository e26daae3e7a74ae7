import shlex

import pytest

from memcalc.errors import UsageError
from memcalc.script.command import Program
from memcalc.script.command import understand as understand_text


def understand(words):
    return understand_text(shlex.join(words))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def test_a_script_is_run_with_its_arguments(here):
    expected = Program(path="train.py", arguments=("--lr", "1e-3"))
    assert understand(["python", "train.py", "--lr", "1e-3"]) == expected
    assert understand(["python3.11", "-u", "-X", "dev", "train.py", "--lr", "1e-3"]) == expected
    assert understand(["train.py", "--lr", "1e-3"]) == expected


def test_a_module_is_run_with_its_arguments(here):
    assert understand(["python", "-m", "pkg.train", "a"]) == Program(
        module="pkg.train", arguments=("a",)
    )


def test_a_console_script_of_python_is_found_on_the_path(here, monkeypatch):
    tool = here / "tune"
    tool.write_text("#!/usr/bin/env python3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(here))
    assert understand(["tune", "run"]) == Program(path=str(tool), arguments=("run",))


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
    assert understand(["swift", "sft", "--model", "m"]) == expected
    assert understand(["python", "-m", "swift.cli.main", "sft", "--model", "m"]) == expected
    assert understand(["swift", "merge-lora"]) == Program(module="swift.cli.merge_lora")


def test_where_it_starts_several_processes_torchrun_does(swift, monkeypatch):
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    monkeypatch.setenv("MASTER_PORT", "29501")
    assert understand(["swift", "sft", "--model", "m"]) == Program(
        launcher="torchrun",
        arguments=(
            *("--nproc_per_node=2", "--master_port=29501", "-m", "swift.cli.sft"),
            *("--model", "m"),
        ),
    )
    assert understand(["swift", "export"]) == Program(module="swift.cli.export")


def test_another_command_of_that_name_is_run_itself(swift):
    swift.write_text("#!/usr/bin/env python3\nfrom swiftclient.shell import main\n")
    assert understand(["swift", "stat"]) == Program(path=str(swift), arguments=("stat",))


@pytest.mark.parametrize("command", [["swift"], ["swift", "--help"], ["swift", "sft", "a.yaml"]])
def test_without_options_of_a_program_it_is_told_what_to_type(swift, command):
    with pytest.raises(UsageError, match=r"memcalc simulate -- swift sft --model|what swift"):
        understand(command)


@pytest.mark.parametrize(
    "command", [["python", "none.py"], ["python"], ["nothing-like-it"], ["sh", "x"], []]
)
def test_a_command_without_a_program_is_told_what_to_type(here, command):
    with pytest.raises(UsageError, match=r"There is no script|memcalc simulate -- python"):
        understand(command)


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (["torchrun", "train.py"], "torchrun"),
        (["accelerate", "launch", "a.py"], "accelerate"),
        (["python", "-m", "torch.distributed.run", "a.py"], "torchrun"),
    ],
)
def test_a_launcher_is_recognised(here, command, launcher):
    assert understand(command).launcher == launcher


def test_a_launcher_that_says_nothing_of_its_processes_is_refused(here):
    with pytest.raises(UsageError, match="torchrun --nproc-per-node"):
        understand(["mpirun", "python", "train.py"])
