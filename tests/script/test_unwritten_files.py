"""What a script saves is not written, and found again by all it may be looked for with."""

import io
import os
import shutil
import sys
import types
from pathlib import Path

import pytest
import safetensors.torch
import torch

from memcalc.script import empty_folders, saving
from memcalc.script.files import UnwrittenFiles
from memcalc.script.patches import Patches


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


def test_a_file_of_the_user_is_covered_and_stays(files, tmp_path):
    Path("best.pt").write_text("mine")
    files.put("new.pt", 2)
    os.replace("new.pt", "best.pt")
    assert files.get("best.pt") == 2
    assert Path("best.pt").read_text() == "mine"
    os.remove("best.pt")
    assert files.get("best.pt") is None
    assert Path("best.pt").read_text() == "mine"


def test_other_files_are_what_they_are(files, tmp_path):
    Path("mine.txt").write_text("mine")
    os.rename("mine.txt", "yours.txt")
    assert os.listdir() == ["yours.txt"]
    with pytest.raises(FileNotFoundError):
        os.stat("mine.txt")
    os.remove("yours.txt")
    assert os.listdir() == []


def test_what_was_saved_to_a_buffer_is_found_in_a_copy_of_it(files):
    buffer = io.BytesIO()
    files.put(buffer, [3])
    assert files.get(io.BytesIO(buffer.getvalue())) == [3]
    assert files.get(io.BytesIO(b"another")) is None


def test_folders_that_a_script_made_and_left_empty_are_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    patches = Patches()
    empty_folders.install(patches)
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
    saving.install(patches, lambda _: None)
    try:
        early.save({"weight": torch.ones(3)}, "a.safetensors")
        with early.safe_open("a.safetensors", framework="pt") as file:
            assert file.get_tensor("weight").tolist() == [1, 1, 1]
    finally:
        patches.undo()
    assert early.save is before
    assert os.listdir() == []
