import textwrap

import pytest

from memcalc.script.simulate import plan_of, simulate, simulating_parent


@pytest.fixture(scope="session")
def parent():
    """One warm process that forks a child for each script."""
    with simulating_parent() as parent:
        yield parent


@pytest.fixture
def run(parent, tmp_path, monkeypatch):
    """Simulate a script that is given as text."""
    monkeypatch.chdir(tmp_path)

    def run(text, *arguments, **settings):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        # Figures in the tests are those of this release, whichever is installed.
        settings.setdefault("torch", "2.13")
        return simulate(plan_of(["python", "train.py", *arguments], **settings), parent)

    return run
