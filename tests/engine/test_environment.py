"""Where the engine's PyTorch comes from, with tiny wheels and the real uv."""

import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from memcalc.engine.environment import folders, hide
from memcalc.engine.environment.description import describe
from memcalc.engine.environment.releases import Release, of_version, parse_torch
from memcalc.engine.stub import elf
from memcalc.errors import EstimateError, UsageError
from tests.engine import wheels
from tests.engine.python_world import World

FIND = """
import shutil, sys, types
from memcalc.engine.environment import find
from memcalc.records.progress import listening
shutil.disk_usage = lambda _: types.SimpleNamespace(free=10**12)
with listening(lambda at: print(at.text, flush=True)):
    print(find(sys.argv[1]).torch.root)
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def unreachable(*_, **__):
    raise AssertionError("an installer was started")


def refused(call, kind=EstimateError):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_the_installed_cuda_build_is_used_as_it_is(world):
    world.has_torch("2.14.1+cu130", "13.0")
    world.monkeypatch.setattr(subprocess, "Popen", unreachable)
    for named in (None, "2.14", "2.14.1", "2.14.1+cu130"):
        found = world.find(named)
        assert (found.torch.release, found.torch.cuda) == ("2.14.1", "13.0")
        assert found.torch.root == str(world.site / "torch")
        assert found.path == ()
        assert found.variables({"A": "1"}) == {"A": "1"}


def test_a_cpu_build_gets_the_cuda_build_of_its_release_once(world):
    world.has_torch("2.13.0+cpu")
    wheels.cpu_wheel(world.offered, "2.13.0", "+cpu")
    wheels.cuda_wheel(world.offered, "2.13.0", "13.0")
    wheels.cuda_wheel(world.offered, "2.14.0", "13.0")
    found = world.find()
    assert (found.torch.release, found.torch.cuda) == ("2.13.0", "13.0")
    code = "import torch; print(torch.__version__, torch.__file__)"
    environ = found.variables({**os.environ, "PYTHONPATH": str(world.site)})
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2.13.0+cu130", f"{found.torch.root}/__init__.py"]
    shutil.rmtree(world.offered)
    world.set(HF_HUB_OFFLINE="1")
    assert world.find() == world.find("2.13") == found
    assert world.left() == []


def test_a_named_release_is_its_newest_patch_and_brings_what_it_lacks(world):
    world.has_torch("2.14.1+cu130", "13.0")
    world.has("sympy", "1.14")
    needs = ("sympy==1.13.1", "nvidia-cublas==12.4", "triton==3.2; extra == 'x'", "triton==3.2")
    for patch in ("2.6.0", "2.6.2", "2.6.1"):
        wheels.cuda_wheel(world.offered, patch, requires=needs)
    wheels.wheel(world.offered, "sympy", "1.13.1", requires=["tiny-math>=1.1"])
    wheels.wheel(world.offered, "tiny-math", "1.3")
    wheels.wheel(world.offered, "triton", "3.2")
    found = world.find("2.6")
    assert (found.torch.release, found.torch.cuda) == ("2.6.2", "12.4")
    assert {"torch", "sympy", "tiny_math", "triton"} <= set(os.listdir(found.path[0]))


def test_an_index_is_asked_for_the_newest_patch_for_this_python(world):
    wheels.cuda_wheel(world.offered, "2.6.1")
    newer = wheels.cuda_wheel(world.offered, "2.6.2")
    newer.rename(world.offered / "torch-2.6.2-cp38-cp38-manylinux1_x86_64.whl")
    index = wheels.Index(world.offered)
    world.ask_pip(PIP_INDEX_URL=index.url, PIP_FIND_LINKS="")
    assert world.find("2.6").torch.release == "2.6.1"
    assert "GB to fetch" in world.said()[0]
    assert "has no PyTorch 2.6.2 for Python" in refused(lambda: world.find("2.6.2"))


def test_a_cpu_build_under_the_name_of_the_release_is_refused(world):
    wheels.cpu_wheel(world.offered, "2.6.0")
    assert "2.6.0+cpu, a build without CUDA" in refused(lambda: world.find("2.6"))
    assert folders.existing() == {}
    index = wheels.Index(world.offered.with_name("index"))
    wheels.cuda_wheel(index.folder, "2.6.0")
    world.ask_pip(PIP_INDEX_URL=index.url)
    found = world.find("2.6")
    assert found.torch.cuda == "12.4"


def test_a_nightly_build_without_cuda_asks_for_a_release(world):
    world.has_torch("2.16.0.dev20261101+cpu")
    assert "name a release, as in --torch 2.14" in refused(world.find)


def test_a_release_that_no_index_has_is_one_sentence(world):
    text = refused(lambda: world.find("2.6"))
    assert "has no PyTorch 2.6 for Python" in text
    assert folders.existing() == {}


def test_damage_is_seen_and_the_folder_made_anew(world):
    wheels.cuda_wheel(world.offered, "2.6.0")
    found = world.find("2.6")
    library = f"{found.torch.root}/lib/libtorch_cuda.so"
    os.truncate(library, 7)
    with world.monkeypatch.context() as offline:
        offline.setenv("HF_HUB_OFFLINE", "1")
        assert "not in" in refused(lambda: world.find("2.6"))
    assert len(world.left()) == 1
    assert world.find("2.6") == found
    assert os.stat(library).st_size == len(wheels.LARGE)
    assert world.left() == []
    os.unlink(library)
    assert world.find("2.6") == found


def test_a_killed_memcalc_leaves_nothing_that_is_taken_for_whole(world):
    wheels.cuda_wheel(world.offered, "2.6.0")
    world.uv("touch half; sleep 20\n")
    child = start("2.6")
    wait_for(lambda: list(folders.parent().glob("torch-2.6*/.installing/half")))
    child.send_signal(signal.SIGKILL)
    child.wait()
    wait_for(lambda: world.left() == [])
    folders.locate("torch-2.6").mkdir()
    (world.bin / "uv").unlink()
    assert world.find("2.6").torch.release == "2.6.0"
    assert world.left() == []


def test_a_killed_installer_is_a_sentence(world):
    wheels.cuda_wheel(world.offered, "2.6.0")
    world.uv("kill -9 $$\n")
    assert "uv was ended by signal 9" in refused(lambda: world.find("2.6"))
    assert folders.existing() == {}


@pytest.mark.nightly
def test_two_at_once_make_one(world):
    wheels.cuda_wheel(world.offered, "2.6.0")
    log = world.bin / "log"
    world.uv(f'echo one >> {log}; sleep 1; exec {world.real_uv} "$@"\n')
    children = [start("2.6"), start("2.6")]
    told = [child.communicate(timeout=60)[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert told[0][-1] == told[1][-1]
    assert log.read_text() == "one\n"
    waited = [line for lines in told for line in lines if "another memcalc" in line]
    assert len(waited) == 1


def test_a_disk_without_room_is_told_before_anything_is_fetched(world):
    world.has_free(300 << 20)
    world.monkeypatch.setattr(subprocess, "Popen", unreachable)
    text = refused(lambda: world.find("2.6"))
    assert re.search(r"needs about 4\.0 GB in .* 315 MB are free", text)


def test_a_disk_that_fills_up_is_a_sentence(world):
    wheels.cuda_wheel(world.offered, "2.6.0")
    world.uv("echo 'error: write: No space left on device (os error 28)' >&2; exit 2\n")
    assert "is full: make room" in refused(lambda: world.find("2.6"))
    assert folders.existing() == {}


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "UV_OFFLINE"])
def test_offline_starts_no_installer(world, name):
    world.monkeypatch.setattr(subprocess, "Popen", unreachable)
    world.set(**{name: "1"})
    assert "or UV_OFFLINE forbids" in refused(lambda: world.find("2.6"))
    assert "or UV_OFFLINE forbids" in refused(lambda: world.find(None, "4.48"))


def test_a_cache_that_cannot_be_written_is_a_sentence(world, tmp_path):
    (tmp_path / "file").touch()
    world.set(MEMCALC_CACHE=str(tmp_path / "file"))
    assert "set MEMCALC_CACHE" in refused(lambda: world.find("2.6"))
    world.set(MEMCALC_CACHE=str(tmp_path / "a:b"))
    assert "without colons" in refused(lambda: world.find("2.6"))


def test_another_transformers_brings_its_own_packages_and_hides_what_does_not_fit(world):
    world.has_torch("2.14.1+cu130", "13.0")
    world.has("transformers", "5.23.0", requires=["tokenizers>=0.23"])
    world.has("tokenizers", "0.23.3")
    world.has("numpy", "2.4")
    world.has("peft", "0.21", requires=["transformers>=5"], modules={"peftlike/__init__.py": b""})
    world.has("trainers", "1.0", requires=["peft"], modules={"trainerlike/__init__.py": b""})
    world.has("datasets", "4.0", requires=["numpy"])
    needs = ["tokenizers<0.22,>=0.21", "numpy>=1.17", "requests", "torch; extra == 'torch'"]
    wheels.wheel(world.offered, "transformers", "4.48.3", requires=needs)
    wheels.wheel(world.offered, "transformers", "4.49.0", requires=needs)
    wheels.wheel(world.offered, "tokenizers", "0.21.4")
    wheels.wheel(world.offered, "requests", "2.32")
    for version in ("2.3", "2.4"):
        wheels.wheel(world.offered, "numpy", version)
    found = world.find(None, "4.48")
    assert found.torch.release == "2.14.1"
    kept = {"transformers-4.48.3", "tokenizers-0.21.4", "requests-2.32", "numpy-2.4"}
    assert world.brought(found) == kept
    # trainers needs peft, which needs a newer transformers.
    assert found.hidden == ("peftlike", "trainerlike")
    for module in ("peftlike", "trainerlike"):
        assert importlib.util.find_spec(module) is not None
        world.monkeypatch.setitem(sys.modules, module, sys)
    hide(found)
    assert importlib.util.find_spec("peftlike") is None
    assert world.find(None, "5.23").path == ()


def test_a_package_that_refuses_the_release_comes_in_one_that_takes_it_or_is_hidden(world):
    world.has_torch("2.14.1+cu130", "13.0")
    world.has("torchvision", "0.29.0", requires=["torch==2.14.1"])
    world.has("transformers", "5.23.0", requires=["torch>=2.7; extra == 'torch'"])
    wheels.cuda_wheel(world.offered, "2.6.0")
    wheels.cuda_wheel(world.offered, "2.7.0")
    wheels.wheel(world.offered, "torchvision", "0.21.0", requires=["torch==2.6.0"])
    needs = ["torch>=2.1; extra == 'torch'"]
    wheels.wheel(world.offered, "transformers", "4.55.0", requires=needs)
    found = world.find("2.6")
    assert found.hidden == ()
    assert world.brought(found) == {"torch-2.6.0", "torchvision-0.21.0", "transformers-4.55.0"}
    other = world.find("2.7")
    assert other.hidden == ("torchvision",)
    assert world.find("2.14").path == ()


def test_the_oldest_pytorch_brings_what_it_was_built_with(world):
    world.has_torch("2.14.1+cu130", "13.0")
    world.has("numpy", "2.4.0")
    wheels.cuda_wheel(world.offered, "2.2.2")
    wheels.wheel(world.offered, "numpy", "1.26.4")
    assert world.brought(world.find("2.2")) == {"torch-2.2.2", "numpy-1.26.4"}


def test_a_build_without_cuda_of_another_package_is_replaced(world):
    world.has_torch("2.13.0+cpu")
    world.has("torchvision", "0.28.0+cpu", requires=["torch==2.13.0"])
    wheels.cuda_wheel(world.offered, "2.13.0", "13.0")
    wheels.wheel(world.offered, "torchvision", "0.28.0", requires=["torch==2.13.0"])
    found = world.find()
    assert world.brought(found) == {"torch-2.13.0", "torchvision-0.28.0"}
    assert found.hidden == ()


def test_uv_looks_where_pip_is_told_to(world):
    wheels.cuda_wheel(world.offered, "2.6.0")
    index = wheels.Index(world.offered)
    world.ask_pip(PIP_EXTRA_INDEX_URL=index.url, PIP_INDEX_URL=index.url, PIP_FIND_LINKS="")
    assert world.find("2.6").torch.release == "2.6.0"


@pytest.mark.parametrize("requires", [["torch"], pytest.param([], marks=pytest.mark.nightly)])
def test_what_is_compiled_for_another_pytorch_is_hidden(world, requires):
    (real,) = importlib.util.find_spec("torch").submodule_search_locations
    library = os.path.join(real, "lib", "libtorch_python.so")
    assert any(name.startswith("libc10") for name in elf.read_dependencies(pathlib.Path(library)))
    world.has_torch("2.14.1+cu130", "13.0")
    world.has("attention", "2.8", requires=requires, modules={"attention/_C.so": b""})
    world.has("plain", "1.0", requires=["torch"])
    (world.site / "attention" / "_C.so").unlink()
    (world.site / "attention" / "_C.so").symlink_to(library)
    wheels.cuda_wheel(world.offered, "2.6.0")
    found = world.find("2.6")
    assert "attention" in found.hidden
    assert "plain" not in found.hidden


@pytest.mark.parametrize(
    "text", ["x", "", "2", "2.6.0.1", "2.x", "3.0-rc1", "2.6.0+cpu", "2.6+cu124"]
)
def test_what_is_no_release_is_refused(world, text):
    assert "--torch" in refused(lambda: world.find(text), UsageError)


def test_releases_before_2_4_are_refused_and_newer_ones_are_not():
    assert "PyTorch 2.2 and newer" in refused(lambda: parse_torch("2.1.1"), UsageError)
    assert "PyTorch 2.2 and newer" in refused(lambda: parse_torch("1.13"), UsageError)
    assert parse_torch("2.16") == Release(2, 16)
    assert parse_torch("3.1.4") == Release(3, 1, 4)
    assert parse_torch(" v2.12.1+cu126 ") == Release(2, 12, 1, "cu126")
    assert Release(2, 1).matches("2.1.2")
    assert not Release(2, 1).matches("2.10.0")
    assert not Release(2, 12, 1, "cu126").matches("2.12.1+cu130", "13.0")
    assert of_version("2.16.0.dev20261101+cpu") is None


def test_elsewhere_than_on_linux_it_says_what_to_type(world):
    world.monkeypatch.setattr(sys, "platform", "darwin")
    text = refused(lambda: world.find("2.6"))
    assert "--method analytic" in text
    assert "docker" in text
    assert [fact.name for fact in describe()] == ["engine"]


def test_doctor_tells_which_pytorch_runs_and_what_is_kept(world):
    world.has_torch("2.13.0+cpu")
    assert "the first exact estimate fetches" in describe()[0].value
    wheels.cuda_wheel(world.offered, "2.13.0", "13.0")
    found = world.find()
    os.unlink(f"{world.find().torch.root}/version.py")
    facts = {fact.name: fact for fact in describe()}
    assert "unfinished or damaged" in facts["environment"].value
    assert world.find() == found
    facts = {fact.name: fact for fact in describe()}
    assert "exact estimates run torch-2.13.0" in facts["engine"].value
    assert "torch-2.13.0" in facts["environment"].value
    assert f"rm -r {folders.parent()}" in facts["environments"].advice
    world.has_torch("2.13.0+cu130", "13.0")
    assert "the installed PyTorch 2.13.0, built for CUDA 13.0" in describe()[0].value


def start(release):
    return subprocess.Popen(
        [sys.executable, "-c", FIND, release], stdout=subprocess.PIPE, text=True
    )


def wait_for(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
