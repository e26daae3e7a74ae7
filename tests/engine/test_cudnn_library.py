"""Which cuDNN plans for a simulated GPU, and how it is fetched."""

import os
import subprocess
import zipfile

import pytest

from memcalc.engine.cudnn import library, loading
from memcalc.engine.environment import folders
from memcalc.errors import EstimateError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(library, "_list_system_folders", lambda paths: iter(()))


def site(folder, *, requires=None, installed=None):
    """A folder of packages with PyTorch's metadata, and perhaps with a cuDNN."""
    metadata = folder / "torch-2.99.0.dist-info"
    metadata.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", "Name: torch", "Version: 2.99.0", "Requires-Dist: sympy"]
    if requires:
        lines.append(f'Requires-Dist: {requires}; platform_system == "Linux"')
    (metadata / "METADATA").write_text("\n".join(lines) + "\n")
    if installed:
        package, version = installed
        (folder / f"{package.replace('-', '_')}-{version}.dist-info").mkdir()
        (folder / "nvidia/cudnn/lib").mkdir(parents=True)
        (folder / "nvidia/cudnn/lib/libcudnn.so.9").touch()
    return [folder]


def wheel(folder, requirement):
    """A wheel of cuDNN that has a file in place of the library."""
    package, _, version = requirement.partition("==")
    name = f"{package.replace('-', '_')}-{version}"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as file:
        file.writestr("nvidia/cudnn/lib/libcudnn.so.9", "a library")
        file.writestr(
            f"{name}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        )
        file.writestr(
            f"{name}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr(f"{name}.dist-info/RECORD", "")


def test_the_installed_library_is_taken(tmp_path):
    paths = site(
        tmp_path / "site",
        requires="nvidia-cudnn-cu13==9.24.0.43",
        installed=("nvidia-cudnn-cu13", "9.19.0.56"),
    )
    found = library.find(paths, (9, 0))
    assert found.folder == str(tmp_path / "site/nvidia/cudnn/lib")
    assert found.planning == found.reported == (9, 19, 0, 56)
    assert not found.assumption
    assert loading.environment(found) == {
        "MEMCALC_STUB_CUDNN": "91900",
        "MEMCALC_CUDNN": found.folder,
        "MEMCALC_CUDNN_COMMAND": "",
        "MEMCALC_CUDNN_ASSUMED": "",
    }


def test_else_the_release_that_pytorch_requires_is_fetched_when_it_is_needed(tmp_path):
    found = library.find(site(tmp_path / "site", requires="nvidia-cudnn-cu13==9.24.0.43"), (9, 0))
    assert found.requirement == "nvidia-cudnn-cu13==9.24.0.43"
    assert found.folder == ""
    told = loading.environment(found)
    assert told["MEMCALC_CUDNN"] == ""
    assert told["MEMCALC_CUDNN_COMMAND"].endswith("cudnn.library nvidia-cudnn-cu13==9.24.0.43")


@pytest.mark.parametrize(
    ("requires", "capability", "asked"),
    [
        ("nvidia-cudnn-cu12==9.1.0.70", (8, 0), "nvidia-cudnn-cu12==9.8.0.87"),
        ("nvidia-cudnn-cu11==9.1.0.70", (8, 0), "nvidia-cudnn-cu12==9.8.0.87"),
        ("nvidia-cudnn-cu12 (==9.5.1.17)", (10, 0), "nvidia-cudnn-cu12==9.12.0.46"),
        ("nvidia-cudnn-cu12==9.10.2.21", (10, 0), "nvidia-cudnn-cu12==9.12.0.46"),
    ],
)
def test_a_release_that_cannot_plan_gives_way_to_the_nearest_later_one(
    tmp_path, requires, capability, asked
):
    found = library.find(site(tmp_path / "site", requires=requires), capability)
    assert found.requirement == asked
    own = requires.rpartition("==")[2].rstrip(")")
    assert found.reported == tuple(map(int, own.split(".")))
    assert f"instead of {'.'.join(own.split('.')[:2])} (cuDNN before" in found.assumption


def test_a_release_that_plans_for_other_gpus_is_taken_there(tmp_path):
    found = library.find(site(tmp_path / "site", requires="nvidia-cudnn-cu12==9.10.2.21"), (12, 0))
    assert found.requirement == "nvidia-cudnn-cu12==9.10.2.21"
    assert not found.assumption


def test_an_installed_release_that_cannot_plan_gives_way_too(tmp_path):
    paths = site(tmp_path / "site", installed=("nvidia-cudnn-cu12", "9.10.2.21"))
    assert library.find(paths, (10, 0)).requirement == "nvidia-cudnn-cu12==9.12.0.46"


@pytest.mark.parametrize(
    ("requires", "offline", "reason"),
    [
        ("nvidia-cudnn-cu12==8.9.2.26", False, "cuDNN 8 does not accept a description of a GPU"),
        (None, False, "names no cuDNN"),
        ("nvidia-cudnn-cu13==9.24.0.43", True, "9.24.0.43 is not here, and this is offline"),
    ],
)
def test_why_there_is_no_library_is_told(tmp_path, requires, offline, reason):
    found = library.find(site(tmp_path / "site", requires=requires), (9, 0), offline=offline)
    assert isinstance(found, library.Missing)
    assert reason in found.reason
    (sentence,) = found.uncounted
    assert sentence.startswith(f"workspaces of cuDNN are not counted ({found.reason})")


def test_versions_are_told_as_cudnn_says_them(tmp_path):
    found = library.find(site(tmp_path / "site", requires="nvidia-cudnn-cu12==8.9.2.26"), (9, 0))
    assert loading.environment(found)["MEMCALC_STUB_CUDNN"] == "8902"


def test_a_release_is_fetched_once(tmp_path, monkeypatch):
    requirement = "nvidia-cudnn-cu12==9.8.0.87"
    wheel(tmp_path / "wheels", requirement)
    left = folders.locate("left-by-a-killed-process")
    left.mkdir(parents=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    folder = library.fetch(requirement)
    assert (folder / "libcudnn.so.9").read_text() == "a library"
    assert not left.exists()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert library.fetch(requirement) == folder
    assert library.find(site(tmp_path / "site", requires=requirement), (9, 0), offline=True).folder


def test_the_shims_command_prints_the_folder(tmp_path, monkeypatch):
    requirement = "nvidia-cudnn-cu12==9.8.0.87"
    wheel(tmp_path / "wheels", requirement)
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    done = subprocess.run(
        library.command(requirement),
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, **settings, "LD_PRELOAD": "/nothing.so", "PYTHONPATH": "/nothing"},
        check=True,
    )
    assert done.stdout == f"{library.find_in_cache(requirement)}\n"
    assert "fetching nvidia-cudnn-cu12==9.8.0.87 (0.7 GB), once" in done.stderr


def test_a_release_that_is_not_there_is_told_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(EstimateError, match=r"cannot be fetched .*type pip install nvidia-cudnn"):
        library.fetch("nvidia-cudnn-cu12==9.8.0.87")
    assert folders.existing() == {}
