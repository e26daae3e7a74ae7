"""A script that overwrites, changes or deletes files that were there before, each in another way.

``python ways_to_spoil.py`` in a folder that ``prepare`` has made. Each function is given the path
of a file; beside it lie a folder ``PATH.d`` with a file ``x``, and links to both.
"""
# ruff: noqa: SIM115 - files are left open as scripts leave them

import concurrent.futures
import ctypes
import fileinput
import gzip
import io
import json
import logging
import mmap
import multiprocessing
import os
import pathlib
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile

import numpy as np

WAYS = []
OLD = "OLD CONTENT\n" * 20
_LIBC = ctypes.CDLL(None)


def way(function):
    """Add a way."""
    WAYS.append(function)
    return function


def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("NEW")


def beside(path):
    write(f"{path}.new")
    return f"{path}.new"


def through_descriptor(path, flags, **folder):
    number = os.open(path, os.O_WRONLY | flags, **folder)
    os.write(number, b"NEW")
    os.close(number)


SIMPLE = {
    "open_w": write,
    "open_a": lambda p: write(p, "a"),
    "open_r_plus": lambda p: write(p, "r+"),
    "bytes_path": lambda p: write(p.encode()),
    "file_io": lambda p: io.FileIO(p, "w").write(b"NEW"),
    "os_open_truncates": lambda p: through_descriptor(p, os.O_TRUNC),
    "os_open_appends": lambda p: through_descriptor(p, os.O_APPEND),
    "os_open_in_place": lambda p: through_descriptor(p, 0),
    "os_truncate": lambda p: os.truncate(p, 0),
    "path_write_text": lambda p: pathlib.Path(p).write_text("NEW"),
    "path_touch": lambda p: pathlib.Path(p).touch(),
    "path_unlink": lambda p: pathlib.Path(p).unlink(),
    "path_rename_over": lambda p: pathlib.Path(beside(p)).rename(p),
    "os_replace_over": lambda p: os.replace(beside(p), p),
    "os_rename_away": lambda p: os.rename(p, f"{p}.moved"),
    "shutil_copy": lambda p: shutil.copy(beside(p), p),
    "shutil_copy2": lambda p: shutil.copy2(beside(p), p),
    "shutil_move_over": lambda p: shutil.move(beside(p), p),
    "shutil_move_away": lambda p: shutil.move(p, f"{p}.moved"),
    "shutil_rmtree": lambda p: shutil.rmtree(f"{p}.d"),
    "through_link": lambda p: write(f"{p}.link"),
    "through_link_to_folder": lambda p: write(f"{p}.dlink/x"),
    "through_folder_of_process": lambda p: write(f"/proc/self/cwd/{os.path.relpath(p)}"),
    "opener": lambda p: open(p, "w", opener=lambda a, f: os.open(a, f, 0o600)).write("NEW"),
    "chmod": lambda p: os.chmod(p, 0),
    "chmod_of_folder": lambda p: os.chmod(f"{p}.d", 0o500),
    "utime": lambda p: os.utime(p, (0, 0)),
    "shell": lambda p: subprocess.run(f"echo NEW > {p}", shell=True, check=True),
    "system": lambda p: os.system(f"echo NEW > {p}"),
    "rm": lambda p: subprocess.run(["rm", "-rf", p, f"{p}.d"], check=True),
    "mv": lambda p: subprocess.run(["mv", beside(p), p], check=True),
    "sed": lambda p: subprocess.run(["sed", "-i", "s/OLD/NEW/", p], check=True),
    "python": lambda p: subprocess.run(
        [sys.executable, "-c", f"open({p!r}, 'w').write('NEW')"], check=True
    ),
    "numpy_savez": lambda p: np.savez(open(p, "wb"), a=np.zeros(3)),
    "numpy_tofile": lambda p: np.zeros(4).tofile(p),
    "gzip": lambda p: gzip.open(p, "wb").write(b"NEW"),
    "zip": lambda p: zipfile.ZipFile(p, "w").writestr("a", "NEW"),
    "tar": lambda p: tarfile.open(p, "w").close(),
    "pickle": lambda p: pickle.dump(1, open(p, "wb")),
    "json": lambda p: json.dump(1, open(p, "w")),
    "creat": lambda p: _LIBC.creat(p.encode(), 0o644),
    "fopen": lambda p: _LIBC.fopen(p.encode(), b"w"),
    "truncate_of_c": lambda p: _LIBC.truncate(p.encode(), ctypes.c_long(3)),
    "unlink_of_c": lambda p: _LIBC.unlink(p.encode()),
    "logging": lambda p: logging.FileHandler(p, mode="w").emit(
        logging.LogRecord("a", 20, "", 1, "NEW", (), None)
    ),
}


@way
def maps_file(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:3] = b"NEW"


@way
def maps_by_numpy(path):
    mapped = np.memmap(path, dtype="uint8", mode="r+")
    mapped[:] = 7
    mapped.flush()


@way
def shortens_open_file(path):
    with open(path, "r+b") as file:
        file.truncate(0)


@way
def changes_mode_of_open_file(path):
    with open(path) as file:
        os.fchmod(file.fileno(), 0)


@way
def changes_times_of_open_file(path):
    with open(path) as file:
        os.utime(file.fileno(), (0, 0))


@way
def writes_database(path):
    base = sqlite3.connect(f"{path}.db")
    base.execute("delete from t")
    base.commit()
    base.close()


@way
def links_over(path):
    os.remove(path)
    os.link(beside(path), path)


@way
def writes_through_new_link(path):
    os.link(path, f"{path}.hard")
    write(f"{path}.hard")


@way
def draws_link_over(path):
    os.remove(path)
    os.symlink(beside(path), path)


@way
def copies_tree_over(path):
    os.makedirs(f"{path}.s", exist_ok=True)
    write(f"{path}.s/x")
    shutil.copytree(f"{path}.s", f"{path}.d", dirs_exist_ok=True)


@way
def goes_there(path):
    here = os.getcwd()
    os.chdir(os.path.dirname(path))
    write(os.path.basename(path))
    os.chdir(here)


@way
def uses_descriptor_of_folder(path):
    folder, name = os.open(os.path.dirname(path), os.O_RDONLY), os.path.basename(path)
    through_descriptor(name, os.O_TRUNC, dir_fd=folder)
    os.rename(name, f"{name}.moved", src_dir_fd=folder, dst_dir_fd=folder)
    os.unlink(f"{name}.link", dir_fd=folder)
    os.close(folder)


@way
def opens_descriptor_again(path):
    number = os.open(path, os.O_RDONLY)
    write(f"/proc/self/fd/{number}")
    os.close(number)


@way
def spawns(path):
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"echo NEW > {path}"], os.environ)
    os.waitpid(pid, 0)


@way
def gives_output(path):
    with open(path, "w") as file:
        subprocess.run(["echo", "NEW"], stdout=file, check=True)


@way
def sends_file(path):
    source = os.open("/proc/self/exe", os.O_RDONLY)
    target = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.sendfile(target, source, 0, 10)


@way
def edits_lines(path):
    with fileinput.input(path, inplace=True) as lines:
        for _ in lines:
            print("NEW")


@way
def replaces_by_temporary(path):
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False) as file:
        file.write("NEW")
    os.replace(file.name, path)


@way
def forks(path):
    pid = os.fork()
    if pid == 0:
        write(path)
        os._exit(0)
    os.waitpid(pid, 0)


@way
def writes_in_thread(path):
    thread = threading.Thread(target=write, args=(path,))
    thread.start()
    thread.join()


def by_process(kind):
    def start(path):
        process = multiprocessing.get_context(kind).Process(target=write, args=(path,))
        process.start()
        process.join()
        assert process.exitcode == 0

    return start


SIMPLE |= {f"process_by_{kind}": by_process(kind) for kind in ("fork", "spawn", "forkserver")}


@way
def writes_in_pool(path):
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        pool.submit(write, path).result()


def by_torch():
    """Ways of PyTorch and of packages over it."""
    import safetensors.numpy
    import safetensors.torch
    import torch
    import torch.distributed.checkpoint

    model = torch.nn.Linear(2, 2)
    save = torch.save

    def export(path):
        program = torch.export.export(model, (torch.randn(1, 2),))
        torch.export.save(program, path)

    def profile(path):
        with torch.profiler.profile() as profiled:
            torch.zeros(3)
        profiled.export_chrome_trace(path)

    def load(path):
        rows = _Rows(path)
        assert len(list(torch.utils.data.DataLoader(rows, num_workers=1))) == 2

    return {
        "save": lambda p: save(model.state_dict(), p),
        "save_to_file": lambda p: save(model.state_dict(), open(p, "wb")),
        "save_to_open_file": lambda p: save(model.state_dict(), open(p, "r+b")),
        "save_script": lambda p: torch.jit.save(torch.jit.script(model), p),
        "save_export": export,
        "from_file": lambda p: torch.from_file(p, shared=True, size=8, dtype=torch.uint8).fill_(7),
        "writer": lambda p: torch._C.PyTorchFileWriter(p).write_end_of_file(),
        "safetensors": lambda p: safetensors.torch.save_file({"a": torch.zeros(2)}, p),
        "safetensors_model": lambda p: safetensors.torch.save_model(model, p),
        "safetensors_numpy": lambda p: safetensors.numpy.save_file({"a": np.zeros(2)}, p),
        "snapshot": torch.cuda.memory._dump_snapshot,
        "sharded": lambda p: torch.distributed.checkpoint.save(
            {"a": torch.zeros(3)}, checkpoint_id=f"{p}.d"
        ),
        "profile": profile,
        "rename_folder": lambda p: os.rename(f"{p}.d", f"{p}.moved"),
        "loader": load,
    }


class _Rows:
    """A dataset that writes."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 2

    def __getitem__(self, row):
        write(self.path)
        return row


OF_OTHER_PROGRAMS = {
    "shell", "system", "rm", "mv", "sed", "python", "spawns", "process_by_spawn",
    "process_by_forkserver",
}  # fmt: skip
OF_COMPILED_LIBRARIES = {
    "creat", "fopen", "truncate_of_c", "unlink_of_c",
    "from_file", "profile", "safetensors_numpy", "save_export", "save_script", "writer",
}  # fmt: skip
"""Ways that no audit event of Python's tells of."""


def names(with_torch):
    """Return the names of all ways."""
    return [*SIMPLE, *(one.__name__ for one in WAYS), *(by_torch() if with_torch else ())]


def prepare(folder, ways):
    """Make files that all are of the user."""
    for name in ways:
        path = folder / name
        path.write_text(OLD)
        (folder / f"{name}.d").mkdir()
        (folder / f"{name}.d" / "x").write_text(OLD)
        (folder / f"{name}.link").symlink_to(name)
        (folder / f"{name}.dlink").symlink_to(f"{name}.d")
    with sqlite3.connect(folder / "writes_database.db") as base:
        base.execute("create table t(a)")
        base.execute("insert into t values(1)")
    base.close()


def state(folder):
    """Return modes, contents and times of all files in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (
            status.st_mode,
            content,
            status.st_mtime_ns if path.is_file() else 0,
        )
    return found


def main():
    """Try all ways on the files of a folder; each must work, and be seen here."""
    folder = pathlib.Path(sys.argv[1]).absolute()
    ways = SIMPLE | {one.__name__: one for one in WAYS}
    if len(sys.argv) > 2:
        ways |= by_torch()
    before = state(folder)
    for name, act in ways.items():
        try:
            act(str(folder / name))
        except BaseException as error:
            print(f"{name} raised {type(error).__name__}: {error}", file=sys.stderr)
    after = state(folder)
    for name in ways:
        if all(after.get(path) == before[path] for path in before if path.split(".")[0] == name):
            print(f"{name} did nothing", file=sys.stderr)


if __name__ == "__main__":
    main()
