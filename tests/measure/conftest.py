"""A stand-in NVML, compiled once."""

import pytest

from tests.measure.driver import Driver, compile_driver


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return compile_driver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library, tmp_path):
    return Driver(folder=library, script=tmp_path / "script")
