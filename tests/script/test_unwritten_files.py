"""What a script saves is not written, and found again by all it may be looked for with."""

import errno
import glob
import io
import os
import shutil
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch

from memcalc.engine.patches import Patches
from memcalc.script import saving
from memcalc.script.checkpoint_marks import read_number
from memcalc.script.saved_objects import SavedObject
from memcalc.script.saving import UnwrittenFiles


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    patches, files = Patches(), UnwrittenFiles()
    files.install(patches)
    yield files
    patches.undo()


def test_a_saved_file_is_there_as_a_mark(files):
    files.put("a.pt", {"epoch": 1}, 1 << 40)
    assert os.path.getsize("a.pt") == 1 << 40
    assert os.stat("a.pt").st_blocks < 100
    assert [path.name for path in Path().glob("*.pt")] == ["a.pt"]
    for path in (Path("a.pt"), "a.pt", os.path.abspath("a.pt")):
        assert files.get(path) == {"epoch": 1}


def test_it_is_renamed_copied_linked_and_removed(files):
    files.put("a.tmp", 1, 1 << 40)
    os.replace("a.tmp", "a.pt")
    os.chmod("a.pt", 0o600)
    os.symlink("a.pt", "link.pt")
    os.link("a.pt", "hard.pt")
    shutil.copy("a.pt", "b.pt")
    shutil.copytree(".", "all")
    assert os.stat("b.pt").st_blocks < 100
    assert all(files.get(name) == 1 for name in ("link.pt", "hard.pt", "b.pt", "all/b.pt"))
    os.remove("a.pt")
    assert not os.path.exists("a.tmp")
    assert files.get("b.pt") == files.get("hard.pt") == 1
    assert files.get("a.pt") is None


def test_files_and_folders_move_between_file_systems(files, monkeypatch):
    """Overlays are file systems of their own, as folders from before are."""

    def other_system(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link", source)

    monkeypatch.setattr(saving, "_rename", other_system)
    files.put("a.pt", 1, 1 << 40)
    Path("old.txt").write_text("old")
    os.replace("a.pt", "old.txt")
    assert files.get("old.txt") == 1
    os.makedirs("ck/inner")
    Path("ck/inner/a").write_text("a")
    os.symlink("inner/a", "ck/link")
    Path("ck").rename("moved")
    assert os.readlink("moved/link") == "inner/a"
    assert Path("moved/link").read_text() == "a"
    assert not os.path.exists("ck")
    os.mkdir("full")
    with pytest.raises(OSError, match="cross-device"):
        os.rename("moved", "full")


def test_what_was_saved_to_an_open_file_is_found_by_its_name(files):
    with open("new.pt", "wb") as opened:
        files.put(opened, 5)
    with open("new.pt", "rb") as opened:
        assert files.get(opened) == 5
    assert files.get("new.pt") == 5


def test_nothing_at_all_may_have_been_saved(files):
    files.put("none.pt", None)
    assert files.get("none.pt", "nothing") is None
    assert files.get("other.pt", "nothing") == "nothing"


def test_the_newest_is_the_one_that_was_saved_last(files):
    for number in (5, 4, 3):
        files.put(f"{number}.pt", number, 1 << 40)
        time.sleep(0.01)
    assert max(glob.glob("*.pt"), key=os.path.getmtime) == "3.pt"


def test_what_is_saved_again_and_again_is_not_kept(files):
    for number in range(10):
        files.put("last.tmp", number)
        os.replace("last.tmp", "last.pt")
    assert files.get("last.pt") == 9
    for number in range(10):
        files.put("last.pt", number)
    assert files.get("last.pt") == 9
    assert len(files._kept) <= 2


def test_what_was_copied_is_kept_when_the_first_file_is_gone(files):
    files.put("last.pt", 1)
    shutil.copyfile("last.pt", "best.pt")
    os.remove("last.pt")
    files.put("last.pt", 2)
    assert files.get("best.pt") == 1


def test_a_script_may_close_all_descriptors(files):
    files.put("a.pt", 1)
    (held,) = [descriptor for descriptor, _ in files._places[0]]
    with open("other", "w") as other:
        os.dup2(other.fileno(), held)
        files.put("b.pt", 2)
    os.close(held)
    files.put("b.pt", 3)
    assert files.get("a.pt") == 1


def test_what_was_saved_to_a_buffer_is_found_in_a_copy_of_it(files):
    buffer = io.BytesIO()
    files.put(buffer, [3])
    assert files.get(io.BytesIO(buffer.getvalue())) == [3]
    assert files.get(io.BytesIO(b"another")) is None


def test_functions_that_were_imported_by_name_before_write_nothing_either(tmp_path, monkeypatch):
    early = types.ModuleType("early")
    early.save, early.safe_open = safetensors.torch.save_file, safetensors.safe_open
    before = early.save
    monkeypatch.setitem(sys.modules, "early", early)
    monkeypatch.chdir(tmp_path)
    patches = Patches()
    saving.install(patches)
    try:
        early.save({"weight": torch.ones(3)}, "a.safetensors")
        with early.safe_open("a.safetensors", framework="pt") as file:
            assert file.get_tensor("weight").tolist() == [1, 1, 1]
            part = file.get_slice("weight")
            assert (part.get_shape(), part.get_dtype(), part[1:].shape) == ([3], "F32", (2,))
    finally:
        patches.undo()
    assert early.save is before
    assert read_number("a.safetensors") == 0


def test_threads_save_and_look_at_once(files):
    def save(name):
        for number in range(30):
            files.put(f"{name}{number}.pt", number)
            assert files.get(f"{name}{number}.pt") == number

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, "abcd"))
    assert len(os.listdir()) == 120


def test_an_object_is_loaded_where_it_is_wanted_also_beside_what_pickle_does_not_take():
    row = torch.arange(8.0)
    views = {"first": row[:4], "last": torch.nn.Parameter(row[4:])}
    for saved in (views, {"rows": [views], "scale": lambda: 2}):
        kept = SavedObject(saved)
        assert kept.bytes > row.nbytes
        row.zero_()
        found = kept.load("cpu")
        rows = found if saved is views else found["rows"][0]
        assert rows["first"].tolist() == [0, 1, 2, 3]
        assert isinstance(rows["last"], torch.nn.Parameter)
        row.copy_(torch.arange(8.0))
    assert found["scale"]() == 2
    shared = SavedObject(views).load(lambda storage, location: storage)
    addresses = {one.untyped_storage().data_ptr() for one in shared.values()}
    assert len(addresses) == 1
    assert SavedObject(views).load({"cpu": "meta"})["first"].is_meta
