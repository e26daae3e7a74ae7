"""What a script saves is not written, and found again by all it may be looked for with."""

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
from memcalc.script import file_functions, saving
from memcalc.script.saving import UnwrittenFiles


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    patches, files = Patches(), UnwrittenFiles()
    files.install(patches)
    yield files
    patches.undo()
    assert not [path for path in tmp_path.rglob("*.pt") if path.read_text() != "mine"]


def test_a_saved_file_is_there_and_is_not(files):
    files.put("a.pt", {"epoch": 1})
    assert os.path.exists("a.pt")
    assert Path("a.pt").is_file()
    assert os.path.getsize("a.pt") > 0
    assert os.listdir() == ["a.pt"]
    assert [path.name for path in Path().glob("*.pt")] == ["a.pt"]
    assert files.get(Path("a.pt")) == {"epoch": 1}


def test_it_is_renamed_copied_and_removed(files):
    files.put("a.tmp", 1)
    os.replace("a.tmp", "a.pt")
    os.chmod("a.pt", 0o600)
    shutil.copy("a.pt", "b.pt")
    os.remove("a.pt")
    assert not os.path.exists("a.pt")
    assert not os.path.exists("a.tmp")
    assert files.get("b.pt") == 1


def test_other_files_are_what_they_are(files, tmp_path):
    Path("mine.txt").write_text("mine")
    os.rename("mine.txt", "yours.txt")
    assert os.listdir() == ["yours.txt"]
    with pytest.raises(FileNotFoundError):
        os.stat("mine.txt")
    os.remove("yours.txt")
    assert os.listdir() == []


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Files that were there before; whatever is done with them, they are there afterwards."""
    monkeypatch.chdir(tmp_path)
    names = ("ck/1.pt", "ck/2.pt", "ck/state.json", "log.txt")
    (tmp_path / "ck").mkdir()
    for name in names:
        (tmp_path / name).write_text("mine")
    time.sleep(0.02)
    patches, files = Patches(), UnwrittenFiles()
    files.install(patches)
    yield files
    patches.undo()
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == {*names}
    assert all((tmp_path / name).read_text() == "mine" for name in names)


def write(path, text, mode="w"):
    with open(path, mode) as opened:
        opened.write(text)


def read(path):
    with open(path) as opened:
        return opened.read()


def test_a_file_is_covered_by_what_is_saved(user):
    user.put("new.pt", 2)
    os.replace("new.pt", "ck/1.pt")
    assert user.get("ck/1.pt") == 2
    os.remove("ck/1.pt")
    assert user.get("ck/1.pt") is None
    assert not os.path.exists("ck/1.pt")


def test_what_is_written_over_is_the_scripts_alone(user):
    write("ck/state.json", "1")
    write("ck/state.json", "2")
    assert read("ck/state.json") == "2"
    write("log.txt", " and more", "a")
    assert read("log.txt") == "mine and more"
    write("new.json", "3")
    os.replace("new.json", "ck/state.json")
    assert read("ck/state.json") == "3"
    assert not os.path.exists("new.json")
    with pytest.raises(FileExistsError):
        write("log.txt", "4", "x")


def test_that_files_stay_as_they_were_is_told_once(user):
    told = []
    user.overlay.covers = lambda: told.append(1)
    write("new.txt", "1")
    write("new.txt", "2")
    assert not told
    write("log.txt", "3")
    os.remove("ck/1.pt")
    assert told == [1]
    os.remove("new.txt")


def test_what_is_changed_in_place_or_added_to_twice_is_a_copy(user):
    with open("ck/1.pt", "r+b") as opened:
        user.put(opened, 5)
    assert user.get("ck/1.pt") == 5
    write("log.txt", " and", "a")
    write("log.txt", " more", "a")
    write("log.txt", "M", "r+")
    assert read("log.txt") == "Mine and more"


def test_what_is_too_large_to_be_copied_is_not_marked(user, monkeypatch):
    monkeypatch.setattr(file_functions, "_SMALL", 1)
    with open("ck/1.pt", "r+b") as opened:
        user.put(opened, 5)


def test_what_is_removed_is_out_of_sight(user):
    os.remove("ck/1.pt")
    assert sorted(os.listdir("ck")) == ["2.pt", "state.json"]
    assert not Path("ck/1.pt").exists()
    assert glob.glob("ck/*.pt") == ["ck/2.pt"]
    with pytest.raises(FileNotFoundError):
        read("ck/1.pt")
    with pytest.raises(FileNotFoundError):
        os.remove("ck/1.pt")
    write("ck/1.pt", "again")
    assert read("ck/1.pt") == "again"
    assert sorted(os.listdir("ck")) == ["1.pt", "2.pt", "state.json"]


def test_what_is_renamed_has_another_name(user):
    os.rename("ck/1.pt", "ck/best.pt")
    assert read("ck/best.pt") == "mine"
    assert sorted(os.listdir("ck")) == ["2.pt", "best.pt", "state.json"]
    os.replace("ck/best.pt", "ck/2.pt")
    assert sorted(os.listdir("ck")) == ["2.pt", "state.json"]
    os.rename("ck", "old")
    assert not os.path.isdir("ck")
    assert read("old/2.pt") == "mine"
    assert sorted(os.listdir("old")) == ["2.pt", "state.json"]


def test_a_users_file_stays_as_it_is_under_other_names(user):
    os.rename("ck/1.pt", "ck/renamed.pt")
    os.link("ck/2.pt", "ck/linked.pt")
    os.chmod("log.txt", 0o600)
    for name in ("ck/renamed.pt", "ck/linked.pt", "log.txt"):
        write(name, " and more", "a")
        assert read(name) == "mine and more"
    assert read("ck/2.pt") == "mine"
    write("ck/2.pt", "other")


def test_a_folder_that_is_cleared_is_filled_anew(user):
    shutil.rmtree("ck")
    assert not os.path.isdir("ck")
    assert os.listdir() == ["log.txt"]
    os.makedirs("ck")
    assert os.listdir("ck") == []
    user.put("ck/3.pt", 3)
    write("ck/state.json", "3")
    assert sorted(os.listdir("ck")) == ["3.pt", "state.json"]
    assert user.get("ck/3.pt") == 3
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("ck")


def test_links_lead_to_what_is_not_there(user):
    user.put("ck/3.pt", 3)
    os.symlink("3.pt", "ck/last.pt")
    assert os.path.islink("ck/last.pt")
    assert os.readlink("ck/last.pt") == "3.pt"
    assert user.get("ck/last.pt") == 3
    os.unlink("ck/last.pt")
    os.mkdir("run")
    user.put("run/4.pt", 4)
    os.symlink("run", "latest")
    assert user.get("latest/4.pt") == 4
    assert os.listdir("latest") == ["4.pt"]
    os.link("ck/3.pt", "ck/hard.pt")
    os.remove("ck/3.pt")
    assert user.get("ck/hard.pt") == 3


def test_what_was_saved_to_an_open_file_is_found_by_its_name(user):
    for name in ("ck/1.pt", "new.pt"):
        with open(name, "wb") as opened:
            user.put(opened, name)
        with open(name, "rb") as opened:
            assert user.get(opened) == name
        assert user.get(name) == name


def test_nothing_at_all_may_have_been_saved(user):
    user.put("none.pt", None)
    assert user.get("none.pt", "nothing") is None
    assert user.get("other.pt", "nothing") == "nothing"


def test_what_lies_beside_a_checkpoint_in_a_new_folder_goes_with_it(user):
    os.makedirs("pipe/unet")
    os.makedirs("pipe/scheduler")
    write("pipe/index.json", "1")
    write("pipe/scheduler/config.json", "1")
    user.put("pipe/unet/weights.pt", 1)
    assert sorted(os.listdir("pipe")) == ["index.json", "scheduler", "unet"]


def test_the_newest_is_the_one_that_was_saved_last(user):
    for number in (5, 4, 3):
        user.put(f"ck/{number}.pt", number, 1 << 40)
        time.sleep(0.01)
    newest = max(Path("ck").glob("*.pt"), key=lambda path: path.stat().st_mtime)
    assert newest.name == "3.pt"
    assert newest.stat().st_size == 1 << 40
    shutil.copy("ck/3.pt", "ck/copy.pt")
    assert user.get("ck/copy.pt") == 3


def test_what_is_saved_again_and_again_is_not_kept(user):
    for number in range(10):
        user.put("last.tmp", number)
        os.replace("last.tmp", "last.pt")
    assert user.get("last.pt") == 9
    assert len(user._kept) <= 2


def test_what_was_saved_to_a_buffer_is_found_in_a_copy_of_it(files):
    buffer = io.BytesIO()
    files.put(buffer, [3])
    assert files.get(io.BytesIO(buffer.getvalue())) == [3]
    assert files.get(io.BytesIO(b"another")) is None


def test_folders_that_a_script_made_and_left_empty_are_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    patches = Patches()
    UnwrittenFiles().install(patches)
    os.makedirs("out/checkpoint-1")
    Path("logs").mkdir()
    Path("logs/run.txt").write_text("said")
    os.makedirs("mine", exist_ok=True)
    patches.undo()
    assert sorted(os.listdir()) == ["logs", "mine"]
    os.mkdir("later")
    patches.undo()
    assert os.path.isdir("later")


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
    finally:
        patches.undo()
    assert early.save is before
    assert os.listdir() == []


def test_threads_save_and_look_at_once(user):
    def save(name):
        for number in range(30):
            user.overlay.folder(os.path.abspath(f"{name}{number}"))
            user.put(f"ck/{name}{number}.pt", number)
            assert os.path.exists(f"ck/{name}{number}.pt")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, "abcd"))
    assert len(os.listdir("ck")) == 123
