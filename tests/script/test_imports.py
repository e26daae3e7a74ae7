"""A script whose packages are not there is not run, and says which Python lacks them."""

import subprocess
import sys

import pytest

from memcalc.errors import EstimateError
from memcalc.script.command import Program
from memcalc.script.imports import check_imports


@pytest.fixture
def check(tmp_path):
    def check(text, python=sys.executable, provided=()):
        (tmp_path / "train.py").write_text(text)
        typed = "torchrun train.py"
        check_imports(Program(path="train.py"), typed, tmp_path, python, provided)

    return check


def test_a_package_that_is_not_there_is_named_with_its_python(check, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EstimateError) as found:
        check("import os, torch, not_there.part\nfrom also_not import x\n")
    told = str(found.value)
    assert told.startswith(f"train.py imports also_not, not_there, and {sys.executable}, which")
    assert "-m pip install " in told
    assert told.endswith(", or name the Python that has it with --python.")


def test_the_python_that_has_it_is_what_to_type(check, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "python"
    other.write_text("#!/bin/sh\necho\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    with pytest.raises(EstimateError, match=r"--python \$\(which python\) -- torchrun train.py"):
        check("import not_there\n")
    other.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(EstimateError, match="pip install"):
        check("import not_there\n")


@pytest.mark.parametrize(
    "text",
    [
        "import os, torch",
        "import mine, compiled\nfrom package import x",
        "try:\n    import not_there\nexcept ImportError:\n    pass",
        "def later():\n    import not_there",
        "import sys\nsys.path.append('..')\nimport not_there",
        "import subprocess\nsubprocess.run(['pip', 'install', 'not_there'])\nimport not_there",
        "from . import not_there",
        "import provided",
        "this is no Python",
    ],
)
def test_what_may_be_there_is_left_to_python(check, tmp_path, text):
    (tmp_path / "mine.py").touch()
    (tmp_path / "compiled.cpython-311-x86_64-linux-gnu.so").touch()
    (tmp_path / "package").mkdir()
    check(text, provided=("provided",))


def test_another_python_is_asked_itself(check, monkeypatch):
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: asked.append(command) or _Said())
    with pytest.raises(EstimateError, match="lacks that"):
        check("import torch, not_there\n", python="/other/python")
    assert asked[0][0] == "/other/python"
    assert asked[0][-2:] == ["not_there", "torch"]


class _Said:
    stdout = "not_there\n"
