"""Runs a script on a simulated GPU."""

import textwrap

import pytest

from memcalc.script.simulate import make_plan, simulate


@pytest.fixture(autouse=True)
def _forked(forked_scripts):
    """Each of these tests runs scripts."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Simulate a script that is given as text."""
    monkeypatch.chdir(tmp_path)

    def run(text, *arguments, **settings):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        return simulate(make_plan(["python", "train.py", *arguments], **settings))

    return run
