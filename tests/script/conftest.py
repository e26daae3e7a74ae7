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


MEASURED = """
for name, run in CASES.items():
    for again in range(2):
        for leaf in LEAVES:
            leaf.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
    print("taken", torch.cuda.max_memory_allocated() - before, name)
"""


@pytest.fixture
def peaks(run, capfd):
    """Bytes that each of a script's ``CASES`` takes at most, the second time; see ``LEAVES``."""

    def of(script, **settings):
        assert run(script + MEASURED, **settings).ending.code == 0
        lines = [line.split(maxsplit=2) for line in capfd.readouterr().err.splitlines()]
        return {line[2]: int(line[1]) for line in lines if line[:1] == ["taken"]}

    return of
