"""Writing results: whole files, and everything else on the machine left as it was."""

import contextlib
import json
import os
import select
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from memcalc.cli.output import FORMATS, chosen, formats, refuse_to_replace
from memcalc.errors import UsageError
from memcalc.files import artifact
from memcalc.files.results import append, keep, keeping, load
from tests.files.test_results import run


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def pipe(tmp_path):
    """A named pipe, and what a reader of it has got so far."""
    path, got = tmp_path / "pipe", []
    os.mkfifo(path)

    reads = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reads, True)

    def read():
        select.select([reads], [], [])
        with open(reads, "rb") as file:
            got.append(file.read())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield path, got, reader
    reader.join(5)


def test_a_device_is_written_to_and_stays_a_device(tmp_path):
    artifact.write(Path("/dev/null"), "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(UsageError, match="Cannot write /dev/full: No space left"):
        artifact.write(Path("/dev/full"), "x")
    assert not list(Path("/dev").glob(".memcalc*"))


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(pipe):
    path, got, reader = pipe
    artifact.write(path, "all of it")
    reader.join(5)
    assert got == [b"all of it"]
    assert stat.S_ISFIFO(os.stat(path).st_mode)


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="nobody reads it"):
        artifact.write(tmp_path / "pipe", "x")


def test_measured_runs_go_into_a_pipe_once_when_all_are_there(pipe):
    path, got, reader = pipe
    with keeping(path, more=False, say=print) as keeper:
        keeper.add(run("a"))
        keeper.add(run("b"))
    reader.join(5)
    assert [r["plan"]["model"] for r in json.loads(got[0])["runs"]] == ["a", "b"]


def test_what_stands_for_standard_output_is_added_to_and_not_replaced(tmp_path):
    code = (
        "import pathlib; from memcalc.files.artifact import write\n"
        "print('before', flush=True); write(pathlib.Path('/dev/stdout'), 'result\\n')\n"
        "print('after')"
    )
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nresult\nafter\n"


def test_a_link_stays_a_link_and_the_file_behind_it_is_written(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to("real.json")
    artifact.write(link, "first")
    artifact.write(link, "second")
    assert link.is_symlink()
    assert real.read_text() == "second"
    link.unlink()
    link.symlink_to("link.json")
    with pytest.raises(UsageError, match="Too many levels"):
        artifact.write(link, "x")


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path, mask, expected):
    before = os.umask(mask)
    try:
        artifact.write(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == expected


def test_a_file_that_is_there_keeps_its_mode_and_owner(tmp_path):
    path = tmp_path / "old"
    path.write_text("old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12345, 23456)
    before = os.stat(path)
    artifact.write(path, "new")
    after = os.stat(path)
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["old"]


def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path, monkeypatch):
    path = tmp_path / "mounted"
    path.write_text("a longer text than the next")

    def busy(*_):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    number = path.stat().st_ino
    artifact.write(path, "short")
    assert path.read_text() == "short"
    assert path.stat().st_ino == number
    assert os.listdir(tmp_path) == ["mounted"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_only_be_read_is_not_replaced(tmp_path):
    path = tmp_path / "kept"
    path.write_text("kept")
    path.chmod(0o444)
    with pytest.raises(UsageError, match="Permission denied"):
        artifact.write(path, "x")
    assert path.read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "words"),
    [("n" * 300, "too long"), ("a\0b", "null "), (".", "directory"), ("no/such", "No such")],
)
def test_a_name_that_no_file_can_have_is_one_sentence(tmp_path, name, words):
    for act in (
        lambda path: artifact.write(path, "x"),
        lambda path: append(path, run()),
        lambda path: append(path, None),
    ):
        with pytest.raises(UsageError, match=r"^Cannot write ") as said:
            act(tmp_path / name)
        assert words in str(said.value) or "folder" in str(said.value)
    assert {*os.listdir(tmp_path)} <= {"cache"}


def test_text_that_is_no_unicode_is_written_as_an_escape(tmp_path):
    artifact.write(tmp_path / "a", "x\ud800y")
    assert (tmp_path / "a").read_text() == "x\\ud800y"


def test_eight_that_add_to_one_file_at_once_lose_nothing(tmp_path):
    path, failures = tmp_path / "all.json", []

    def add(number):
        failures.append(keep(path, run(f"m{number}")))

    # Threads hold the lock apart as processes do: each opens the file for itself.
    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [None] * 8
    assert {r.plan.model for r in load(path)} == {f"m{number}" for number in range(8)}
    assert sorted(os.listdir(tmp_path)) == ["all.json", "cache"]


def test_a_result_that_finds_no_place_is_kept_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "train.py").write_text("print('mine')")
    said = keep(tmp_path / "train.py", run("a"))
    assert "is not JSON" in said
    assert (tmp_path / "train.py").read_text() == "print('mine')"
    [other] = tmp_path.glob("memcalc-*/train.py")
    assert [r.plan.model for r in load(other)] == ["a"]
    assert str(other) in said


@pytest.mark.parametrize(("name", "said"), [("none/x.json", "No such"), ("x\ny.json", "not print")])
def test_a_file_that_cannot_be_there_is_refused_before_anything_is_worked_out(name, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        chosen("simulation", None, tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "typed", "said"),
    [
        ("c.json", "{}", "c.json", "this command reads it"),
        ("c.json", "{}", ["a.py", "./c.json"], "this command reads it"),
        ("c.json", "{}", "other.json", ""),
        ("c.json", "{}", "n" * 300, ""),
        ("recipe.yaml", "a: 1", "recipe.yaml", ""),
        ("train.py", "import torch", "gpt2", "there is another Python file"),
        ("train.py", '"""Train gpt2, as memcalc estimates it."""', "gpt2", ""),
    ],
)
def test_what_is_read_and_scripts_of_others_are_not_replaced(
    name, text, typed, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    output = Path(name)
    with pytest.raises(UsageError, match=said) if said else contextlib.nullcontext():
        refuse_to_replace(output, [typed, 3, None, output])


KINDS = sorted({kind for one in FORMATS.values() for kind in one.kinds.split()})


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_found_by_its_name_and_by_its_extension(kind):
    for name in formats(kind):
        assert chosen(kind, name) == name
        extension = FORMATS[name].extension
        if extension:
            assert chosen(kind, None, Path(f"report{extension.upper()}")) == name


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_of_answer_is_not_written_as_is_refused_with_what_it_is(kind):
    for name in set(FORMATS) - set(formats(kind)):
        with pytest.raises(UsageError, match=formats(kind)[-1]):
            chosen(kind, name)
    with pytest.raises(UsageError, match=r"let its name end in \."):
        chosen(kind, None, Path("report"))


def test_a_name_wins_over_an_extension_and_the_screen_shows_a_table():
    assert chosen("fit", "json", Path("a.md")) == "json"
    assert chosen("fit", None) == "table"


def test_every_format_of_predictions_and_checks_is_written(tmp_path):
    from memcalc import estimate
    from memcalc.budgets.records import Report
    from memcalc.cli.output import Output
    from memcalc.report.check_formats import writers

    prediction = estimate("gpt2", method="analytic")
    for name in formats("predictions"):
        Output(name, tmp_path / name).deliver([prediction])
    assert len({path.read_text() for path in tmp_path.iterdir()}) == len(formats("predictions"))
    made = {name: write() for name, write in writers(Report(verdicts=()), 0).items()}
    assert {"table", *made} == set(formats("check"))
    assert len(set(made.values())) == len(made)


_KILLED = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
from pathlib import Path
from memcalc.files import artifact
os.fsync = lambda descriptor: os.kill(os.getpid(), int(sys.argv[2]))
artifact.write(Path(sys.argv[1]), "new")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_process_that_is_killed_as_it_writes_leaves_nothing_beside(number, tmp_path):
    (tmp_path / "old.txt").write_text("old")
    told = [sys.executable, "-c", _KILLED, str(tmp_path / "old.txt"), str(int(number))]
    assert subprocess.run(told).returncode == -number
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.txt": "old"}
