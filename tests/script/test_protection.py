"""Files from before stay as they are, whatever a script does, and its new ones are there."""

import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import msgspec
import pytest

from memcalc.children import command, keeper
from memcalc.script import checkpoint_marks, namespace
from memcalc.script.namespace import Namespace
from memcalc.script.new_files import carry_out
from memcalc.script.protect import settle
from tests.conftest import ROOT
from tests.script import ways_to_spoil

_ENTERS = """
import os, sys
from pathlib import Path
from memcalc.script import namespace
from memcalc.script.protect import protect
def refuse(*_):
    raise OSError(1, "refused by a test")
if os.environ.get("REFUSED"):
    namespace._cover_all = refuse
shared = Path(sys.argv[1])
protect(shared)
del sys.argv[1]
"""


def begun(folder, code, *arguments, refused=""):
    """Run code as scripts are run; returns the process, and what is told of its files."""
    run, work = folder / "run", folder / "work"
    shared = run / "shared"
    for path in (shared, work):
        path.mkdir(parents=True, exist_ok=True)
    told = {checkpoint_marks.FOLDERS: str(shared / checkpoint_marks.NOTED), "REFUSED": refused}
    done = command.run(
        [sys.executable, "-c", _ENTERS + textwrap.dedent(code), str(shared), *arguments],
        run,
        env={**os.environ, "PYTHONPATH": str(ROOT), **told},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=work,
    )
    if not refused and (why := namespace.read(shared).refused):
        pytest.skip(f"no namespace here: {why}")
    said = settle(shared, again=False)
    keeper.remove(str(run))
    return done, said


@pytest.fixture
def inside(tmp_path):
    """Run code in a folder of its own, protected."""
    (tmp_path / "work").mkdir()
    return lambda *told: begun(tmp_path, *told)


@pytest.fixture
def guarded(tmp_path):
    """Run code in a folder of its own, where the kernel grants no namespace."""
    (tmp_path / "work").mkdir()

    def run(*told):
        done, said = begun(tmp_path, *told, refused="yes")
        assert said
        assert done.stderr.startswith("memcalc: files are protected in part here")
        return done

    return run


_RUNS_SCRIPT = "import runpy; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"


def spoiled(before, after):
    """Return the ways whose files are not as they were."""
    return {path.split(".")[0] for path in before if after.get(path) != before[path]}


def test_without_a_namespace_what_python_changes_is_put_back_and_nothing_else(guarded, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    ways_to_spoil.prepare(data, ways_to_spoil.names(with_torch=False))
    before = ways_to_spoil.state(data)
    done = guarded(_RUNS_SCRIPT, ways_to_spoil.__file__, str(data))
    assert (done.stdout, done.returncode, done.stderr.count("\n")) == ("", 0, 1)
    after = ways_to_spoil.state(data)
    others = ways_to_spoil.OF_OTHER_PROGRAMS | ways_to_spoil.OF_COMPILED_LIBRARIES
    assert spoiled(before, after) == others & {*ways_to_spoil.names(with_torch=False)}
    # New files stay; new names of old files go.
    assert (data / "shutil_copy.new").read_text() == "NEW"
    assert not (data / "os_rename_away.moved").exists()
    assert not (data / "writes_through_new_link.hard").exists()


KILLED = """
import shutil, signal, sqlite3
Path("old.txt").write_text("changed")
os.rename("folder", "moved")
Path("moved/inner.txt").write_text("changed")
Path("moved/new.txt").write_text("new")
shutil.rmtree("empty")
base = sqlite3.connect("old.db", isolation_level=None)
base.execute("pragma journal_mode=wal")
base.execute("delete from t")
assert Path("old.db-wal").exists()
whose = sys.argv.pop()
if whose == "both keepers":
    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
os.kill(os.getppid() if whose == "keeper" else os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "whose", ["script", "both keepers", pytest.param("keeper", marks=pytest.mark.nightly)]
)
def test_without_a_namespace_files_are_put_back_after_a_kill(guarded, tmp_path, whose):
    work = tmp_path / "work"
    for name in ("folder", "empty"):
        (work / name).mkdir(mode=0o750)
    for name in ("old.txt", "folder/inner.txt"):
        (work / name).write_text("old")
    with sqlite3.connect(work / "old.db") as base:
        base.execute("create table t(a)")
        base.execute("insert into t values(1)")
    base.close()
    before = ways_to_spoil.state(work)
    if whose == "script":
        assert guarded(KILLED, whose).returncode == -signal.SIGKILL
    else:
        with command.own_folder() as folder:
            shared = folder / "shared"
            shared.mkdir()
            command.run(
                [sys.executable, "-c", _ENTERS + KILLED, str(shared), whose],
                folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "REFUSED": "yes"},
                cwd=work,
                stderr=subprocess.DEVNULL,
            )
            if whose == "both keepers":
                assert (work / "old.txt").read_text() == "changed"
        assert not folder.exists()
    assert {path: ways_to_spoil.state(work).get(path) for path in before} == before
    assert sorted(path.name for path in work.iterdir()) == [
        "empty", "folder", "moved", "old.db", "old.txt",
    ]  # fmt: skip
    assert [path.name for path in (work / "moved").iterdir()] == ["new.txt"]


def test_what_was_edited_since_a_loss_of_power_is_not_put_back(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path / "cache"))
    run, work = tmp_path / "cache" / "runs" / "lost", tmp_path / "work"
    for folder in (run / "shared", work, work / "folder"):
        folder.mkdir(parents=True)
    names = ["changed.txt", "deleted.txt", "emptied.txt", "folder/inner.txt", "same.txt"]
    for name in names:
        (work / name).write_text("old")
    loses = """
    Path("changed.txt").write_text("by the script")
    Path("emptied.txt").write_text("")
    os.remove("emptied.txt")
    os.remove("deleted.txt")
    os.rename("folder", "moved")
    open("same.txt", "a").close()
    """
    subprocess.run(
        [sys.executable, "-c", _ENTERS + textwrap.dedent(loses), str(run / "shared")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "REFUSED": "yes"},
        cwd=work,
        check=True,
    )
    (work / "changed.txt").write_text("by the user")
    os.utime(run, (0, 0))
    with command.own_folder():
        assert not run.exists()
    found = {str(path.relative_to(work)): path for path in work.rglob("*") if path.is_file()}
    assert found.pop("changed.txt").read_text() == "by the user"
    # The file that was moved has two names now.
    assert found.keys() == {*names[1:], "changed.txt.before", "moved/inner.txt"}
    assert {path.read_text() for path in found.values()} == {"old"}
    assert f"cut off had changed files: what was there before is in {work}/changed.txt.before" in (
        capfd.readouterr().err
    )


def test_a_script_stops_before_it_changes_what_cannot_be_kept(guarded, tmp_path):
    old = tmp_path / "work" / "old.bin"
    old.write_bytes(b"old")
    done = guarded(
        """
        os.fstatvfs = lambda _: os.statvfs_result((1, 1, 0, 0, 0, 0, 0, 0, 0, 0))
        try:
            open("old.bin", "ab").write(b"changed")
        except OSError:
            print("lost")
        """
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1] == (
        f"memcalc: the script stops before it changes {old}, which cannot be "
        "kept: No space left on device."
    )
    assert old.read_bytes() == b"old"


def test_a_namespace_that_fails_midway_covers_nothing(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "old.txt").write_text("old")
    script = f"""
import os
import sys
from pathlib import Path
from memcalc.script import namespace
real, count, descriptors = namespace._overlay, [], os.listdir("/proc/self/fd")
def fail(folder, at, layer):
    if not layer.endswith("tried"):
        count.append(at)
        if len(count) == 2:
            raise OSError(5, "fails midway")
    real(folder, at, layer)
def refuse(*_):
    raise OSError(5, "fails midway")
namespace._overlay, namespace._make_read_only = fail, refuse
shared = Path({str(tmp_path)!r}, "shared")
shared.mkdir()
print(namespace.enter(shared).refused, len(count))
assert os.listdir("/proc/self/fd") == descriptors
Path("old.txt").write_text("changed")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=tmp_path / "work",
    )
    if not done.stdout.endswith(" 2\n"):
        pytest.skip(f"no namespace here: {done.stdout}{done.stderr}")
    assert (done.stdout, done.stderr) == ("fails midway 2\n", "")
    assert (tmp_path / "work" / "old.txt").read_text() == "changed"


def test_no_way_to_write_spoils_a_file_that_was_there(inside, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    ways_to_spoil.prepare(data, ways_to_spoil.names(with_torch=False))
    before = ways_to_spoil.state(data)
    done, (said,) = inside(
        _RUNS_SCRIPT,
        ways_to_spoil.__file__,
        str(data),
    )
    assert (done.stdout, done.stderr) == ("", "")
    after = ways_to_spoil.state(data)
    assert {path: after.get(path) for path in before} == before
    assert re.search(r"changed or deleted.* and [67]\d more", said)


def test_new_files_stay_where_the_script_put_them(inside, tmp_path):
    done, said = inside(
        """
        os.makedirs("logs/inner/empty")
        Path("logs/inner/run.txt").write_text("said")
        Path("run.txt").write_text("said")
        Path("run.txt").chmod(0o600)
        os.makedirs("left/empty")
        os.symlink("logs/inner", "link")
        Path("/dev/shm/memcalc-test").write_text("shared")
        os.remove("/dev/shm/memcalc-test")
        """
    )
    assert (done.stderr, said) == ("", ())
    work = tmp_path / "work"
    assert sorted(path.name for path in work.iterdir()) == ["link", "logs", "run.txt"]
    assert (work / "link" / "run.txt").read_text() == "said"
    assert stat.S_IMODE((work / "run.txt").stat().st_mode) == 0o600


def test_a_new_folder_with_a_checkpoint_goes_with_it(inside, tmp_path):
    inside(
        """
        from memcalc.script.checkpoint_marks import mark
        def save(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(mark(0))
            os.truncate(path, 1 << 40)
        save(Path("pipe/unet/weights.pt"))
        Path("pipe/index.json").write_text("{}")
        save(Path("best.pt"))
        os.symlink("best.pt", "last.pt")
        Path("log.txt").write_text("said")
        """
    )
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["log.txt"]


def test_what_is_new_beside_a_checkpoint_in_a_folder_from_before_goes_with_it(inside, tmp_path):
    (tmp_path / "work" / "model").mkdir()
    (tmp_path / "work" / "model" / "config.json").write_text("old")
    inside(
        """
        from memcalc.script.checkpoint_marks import note_folder
        note_folder("model")
        Path("model/config.json").write_text("new")
        Path("model/tokenizer.json").write_text("new")
        """
    )
    found = {path.name: path.read_text() for path in (tmp_path / "work" / "model").iterdir()}
    assert found == {"config.json": "old"}


def test_a_folder_that_is_deleted_and_filled_again_stays_as_it_was(inside, tmp_path):
    (tmp_path / "work" / "out").mkdir()
    (tmp_path / "work" / "out" / "old.txt").write_text("old")
    done, (said,) = inside(
        """
        import shutil
        shutil.rmtree("out")
        os.mkdir("out")
        assert os.listdir("out") == []
        Path("out/new.txt").write_text("new")
        """
    )
    assert done.stderr == ""
    assert str(tmp_path / "work" / "out") in said
    found = {path.name: path.read_text() for path in (tmp_path / "work" / "out").iterdir()}
    assert found == {"old.txt": "old", "new.txt": "new"}


def test_a_script_is_its_user_in_its_folder_with_its_rights(inside, tmp_path):
    done, _ = inside(
        "print(os.getuid(), os.geteuid(), os.getgid(), os.getcwd(), os.stat('.').st_uid)"
    )
    user = os.getuid()
    assert done.stdout.split() == [
        *map(str, (user, user, os.getgid())), str(tmp_path / "work"), str(user),
    ]  # fmt: skip


def test_a_user_without_rights_has_a_namespace_too():
    if os.getuid():
        pytest.skip("this user has no rights anyway")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        for path in (folder, folder / "work", folder / "run", folder / "run" / "shared"):
            path.mkdir(exist_ok=True)
            os.chown(path, 12345, 12345)
        (folder / "work" / "old.txt").write_text("old")
        os.chown(folder / "work" / "old.txt", 12345, 12345)
        done = subprocess.run([sys.executable, "-c", _AS_USER, name, str(ROOT)], cwd="/")
        assert done.returncode == 0
        found = namespace.read(folder / "run" / "shared")
        if found.refused:
            pytest.skip(f"no namespace here: {found.refused}")
        carried = carry_out(found, folder / "run" / "shared", set())
        assert carried.changed == [str(folder / "work" / "old.txt")]
        assert (folder / "work" / "old.txt").read_text() == "old"
        assert (folder / "work" / "new.txt").read_text() == "new"
        assert (folder / "work" / "new.txt").stat().st_uid == 12345


_AS_USER = """
import ctypes, os, subprocess, sys
from pathlib import Path
folder = Path(sys.argv[1])
sys.path.append(sys.argv[2])
from memcalc.script import namespace
os.setresgid(12345, 12345, 12345)
os.setresuid(12345, 12345, 12345)
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, which a change of user takes away
os.chdir(folder / "work")
namespace.enter(folder / "run" / "shared")
Path("old.txt").write_text("changed")
Path("new.txt").write_text("new")
assert Path("old.txt").read_text() == "changed"
assert os.getuid() == 12345 == Path("new.txt").stat().st_uid
assert "CapEff:\\t0000000000000000" in Path("/proc/self/status").read_text()
"""


MOUNTS = """
for path in ("data", "data/inner", "read"):
    Path(path).mkdir(exist_ok=True)
    assert libc.mount(b"none", path.encode(), b"tmpfs", path == "read", None) == 0
Path("data/old.txt").write_text("old")
Path("data/inner/old.txt").write_text("old")
"""
WRITES = """
for path in ("old.txt", "data/old.txt", "data/inner/old.txt"):
    assert Path(path).read_text() == "old"
    Path(path).write_text("changed")
    assert Path(path).read_text() == "changed"
os.rename("old.txt", "renamed.txt")
try:
    Path("read/new.txt").write_text("new")
except OSError as error:
    print(error.strerror, len(os.listdir("read")))
"""
READS = """
for path in ("old.txt", "data/old.txt", "data/inner/old.txt"):
    print(Path(path).read_text())
"""


def test_file_systems_that_are_mounted_inside_a_folder_are_covered_too(tmp_path):
    """The test has mounts of its own, which go with its process."""
    if os.getuid():
        pytest.skip("this user can mount nothing")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "old.txt").write_text("old")
    begins = "import ctypes, os, sys\nfrom pathlib import Path\nlibc = ctypes.CDLL(None)\n"
    begins += "assert libc.unshare(0x20000) == 0 == libc.mount(b'', b'/', None, 0x44000, None)\n"
    runs = (
        "from memcalc.script import namespace\n"
        "if (pid := os.fork()) == 0:\n"
        "    shared = Path('../run/shared')\n"
        "    shared.mkdir(parents=True)\n"
        "    found = namespace.enter(shared.resolve())\n"
        "    assert not found.refused, found.refused\n"
        + textwrap.indent(WRITES, "    ")
        + "    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", begins + MOUNTS + runs + "sys.stdout.flush()" + READS],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        cwd=tmp_path / "work",
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["Read-only file system 0", "old", "old", "old"]


def test_where_the_folder_takes_no_layers_they_lie_in_memory(tmp_path):
    """An overlay takes no layers on another overlay, as a container's files are."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "old.txt").write_text("old")
    done, _ = begun(
        tmp_path,
        """
        from memcalc.script import namespace
        del os.environ["MEMCALC_NAMESPACE"]
        Path("again").mkdir()
        found = namespace.enter(Path("again").absolute())
        print(found.in_memory, found.refused)
        Path("old.txt").write_text("changed")
        """,
    )
    assert done.stdout.split() == ["True"], done.stderr
    assert (tmp_path / "work" / "old.txt").read_text() == "old"


REFUSED = """
import torch
model = torch.nn.Linear(64, 64).cuda()
model(torch.ones(2, 64, device="cuda")).sum().backward()
torch.save(model.state_dict(), "old.pt")
torch.save(model.state_dict(), "new.tmp")
import os, pathlib
os.replace("new.tmp", "other.pt")
torch.save(model.state_dict(), "new.pt")
assert torch.load("other.pt")["weight"].shape == torch.load("old.pt")["weight"].shape == (64, 64)
pathlib.Path("log.txt").write_text("changed")
pathlib.Path("made.txt").write_text("new")
"""
_NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_mnt_namespaces && exec "$@"'


def simulate_without_namespaces(folder, text, *arguments, **variables):
    refuses = ["unshare", "--user", "--map-root-user", "sh", "-c", _NO_NAMESPACES, "sh"]
    if subprocess.run([*refuses, "true"], capture_output=True).returncode:
        pytest.skip("this user can make no namespace of users")
    (folder / "train.py").write_text(text)
    memcalc = [sys.executable, "-m", "memcalc", "simulate", "--steps", "0", "--"]
    return subprocess.run(
        [*refuses, *memcalc, "python", "train.py", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        cwd=folder,
    )


@pytest.mark.nightly
def test_without_a_namespace_what_a_script_changes_by_python_is_put_back(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    ways_to_spoil.prepare(data, ways_to_spoil.names(with_torch=True))
    before = ways_to_spoil.state(data)
    text = Path(ways_to_spoil.__file__).read_text()
    done = simulate_without_namespaces(tmp_path, text, str(data), "torch")
    assert "raised" not in done.stderr
    others = ways_to_spoil.OF_OTHER_PROGRAMS | ways_to_spoil.OF_COMPILED_LIBRARIES
    assert spoiled(before, ways_to_spoil.state(data)) == others


@pytest.mark.parametrize(
    "variable", ["1", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("", "0"))]
)
def test_where_the_kernel_refuses_a_namespace_what_is_printed_is_true(variable, tmp_path):
    """The kernel counts namespaces by users, and here grants none to all that the test starts."""
    for name in ("old.pt", "other.pt", "log.txt"):
        (tmp_path / name).write_text("old")
    done = simulate_without_namespaces(tmp_path, REFUSED, MEMCALC_NAMESPACE=variable)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "files are protected in part here" in said
    assert re.search(r"grants no mount namespace \(\w.+?\)", said)
    found = {path.name: path.read_text() for path in tmp_path.glob("*.*") if path.is_file()}
    del found["train.py"]
    assert found == {"old.pt": "old", "other.pt": "old", "log.txt": "old", "made.txt": "new"}


def test_what_is_not_covered_is_told(tmp_path):
    found = Namespace(in_memory=True, read_only=("/boot/efi", "/.file"))
    (tmp_path / "namespace.json").write_bytes(msgspec.json.encode(found))
    assert list(settle(tmp_path, again=False)) == [
        "the script could not write to /boot/efi, which no overlay can cover",
        "the script's new files are not kept: they lay in main memory",
    ]


@pytest.mark.nightly
def test_no_way_to_write_of_a_script_spoils_a_file_that_was_there(run, tmp_path, capfd):
    data = tmp_path / "data"
    data.mkdir()
    names = ways_to_spoil.names(with_torch=True)
    assert len(names) > 80
    ways_to_spoil.prepare(data, names)
    before = ways_to_spoil.state(data)
    found = run(Path(ways_to_spoil.__file__).read_text(), str(data), "torch", steps=0)
    assert found.ending.code == 0
    said = capfd.readouterr().err
    # Sharded checkpoints are not written.
    told = [line for line in said.splitlines() if re.search("raised|did nothing", line)]
    assert told == ["sharded did nothing"]
    after = ways_to_spoil.state(data)
    assert {path: after.get(path) for path in before} == before
