"""The steps of the Dockerfile, run in a folder and a Python of their own: no Docker is needed.

What stands for the image's root is a folder, for its Python a virtual environment. What apt brings
is taken from this machine.
"""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv

import pytest

from tests.conftest import ROOT

PLACES = ("/src", "/work", "/var/cache/memcalc", "/tmp")
"""Folders of the image that the steps name."""


def instructions():
    """Return each instruction with its arguments; comments and continued lines are joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def is_left_out(path):
    """Return True if .dockerignore keeps a file out of what is built from."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    first = path.split("/")[0]
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    inside = any(fnmatch.fnmatch(part, "__pycache__") for part in path.split("/"))
    return rules[0] == "*" and (first not in kept or inside)


def copy(arguments, folder):
    *names, _ = arguments.split()
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in tracked:
        if (names == ["."] or name in names) and not is_left_out(name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def test_the_image_is_built_from_what_pip_needs_and_nothing_else():
    steps = instructions()
    assert [name for name, _ in steps].count("FROM") == 1
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    needed = {wheel["hooks"]["custom"]["path"], *wheel.get("force-include", ()), "pyproject.toml"}
    for path in (*needed, "memcalc/cli/app.py", "configs/gpus.toml", "constraints.txt"):
        assert not is_left_out(path), path
    for path in (
        "tests/conftest.py",
        "evidence/README.md",
        "memcalc/__pycache__/x.pyc",
        ".git/HEAD",
    ):
        assert is_left_out(path)
    copied = {word for name, rest in steps if name == "COPY" for word in rest.split()[:-1]}
    assert all(word == "." or (ROOT / word).exists() for word in copied)
    entry = next(rest for name, rest in steps if name == "ENTRYPOINT")
    assert entry == '["memcalc"]'


@pytest.mark.nightly
def test_the_steps_of_the_image_give_a_memcalc_that_estimates_for_a_gpu(tmp_path):
    root, python = tmp_path / "root", tmp_path / "python" / "bin" / "python"
    venv.create(tmp_path / "python", with_pip=True)
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    environment.pop("VIRTUAL_ENV", None)
    environment.pop("PYTHONPATH", None)
    (root / "tmp").mkdir(parents=True)
    (root / "var" / "cache").mkdir(parents=True)
    folder = root

    def here(text):
        places = "|".join(PLACES)
        text = re.sub(rf"(?<![\w/])({places})\b", lambda match: f"{root}{match[1]}", text)
        return text.replace("--system", f"--python {python}")

    for name, rest in instructions():
        if name == "WORKDIR":
            folder = root / rest.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            copy(rest, folder)
        elif name == "ENV":
            key, _, value = rest.partition("=")
            environment[key] = here(value)
        elif name == "RUN" and not rest.startswith("apt-get"):
            done = subprocess.run(
                ["sh", "-c", here(rest)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{rest}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    lists = subprocess.run(
        [python, "-m", "pip", "list"], capture_output=True, text=True, check=True
    )
    assert not re.search(r"^(nvidia-(?!ml-py)|triton)", lists.stdout, re.MULTILINE)
    typed = shlex.split("memcalc estimate gpt2 --batch 1 --seq 32 --gpu t4")
    done = subprocess.run(
        typed, cwd=folder, env=environment | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "fits on T4" in done.stdout
    assert sys.prefix not in done.stdout
