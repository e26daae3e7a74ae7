"""A process over the stub driver that forks for each test."""

import pytest

from tests.engine.stub_process import StubProcess


@pytest.fixture(scope="session")
def stub_process(shared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMCALC_CACHE", str(shared / "stub"))
        process = StubProcess()
    yield process
    process.close()


@pytest.fixture
def over_stub(stub_process):
    """Run a piece of code in a fork of a process over the stub driver."""
    return stub_process.run


@pytest.fixture
def stub_cache(shared, monkeypatch):
    """The stub driver is compiled once for all tests that do not look at how it is kept."""
    monkeypatch.setenv("MEMCALC_CACHE", str(shared / "stub"))
