"""A Python that lacks memcalc gets memcalc and what it needs, and none of the other packages."""

import subprocess
import sys

from memcalc.children import bring


def run(python, code, **options):
    command = [*python, "-c", bring.code() + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_a_python_without_packages_imports_memcalc_and_finds_nothing_else():
    bare = [sys.executable, "-I", "-S"]
    done = run(
        bare,
        "import memcalc.script.protect\n"
        "from importlib.util import find_spec\n"
        "print(*(name for name in ('typer', 'torch', 'bitsandbytes') if find_spec(name)))",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_a_memcalc_of_its_own_does_not_come_first(tmp_path):
    (tmp_path / "memcalc").mkdir()
    (tmp_path / "memcalc" / "__init__.py").write_text("raise ImportError('another release')")
    done = run([sys.executable], "import memcalc.errors", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_python_for_which_no_msgspec_is_built_is_told_what_to_install(tmp_path, monkeypatch):
    package = tmp_path / "msgspec" / "__init__.py"
    package.parent.mkdir()
    package.write_text("from . import _core")
    monkeypatch.setattr(bring.msgspec, "__file__", str(package))
    done = run([sys.executable, "-I", "-S"], "print('runs')")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"brings no msgspec: type {sys.executable} -m pip install msgspec" in done.stderr
