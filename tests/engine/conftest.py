import pytest

from tests.engine.stub_process import StubProcess


@pytest.fixture(scope="session")
def stub_process():
    process = StubProcess()
    yield process
    process.close()


@pytest.fixture
def over_stub(stub_process):
    """Run a piece of code in a fork of a process over the stub driver."""
    return stub_process.run
