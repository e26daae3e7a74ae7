"""The door to NVML, through NVIDIA's own binding, over a stand-in driver that plays every part."""

import json

import pytest

from tests.measure.driver import GIB, SLICE, A, Driver, card, compile_driver, process


@pytest.fixture(scope="module")
def old_library(tmp_path_factory):
    return compile_driver(tmp_path_factory.mktemp("old"), "-DOLD_DRIVER")


READ = """
import json
from memcalc.files.artifact import encode
from memcalc.measure.gpu.nvml import Nvml, NvmlError
try:
    nvml = Nvml()
    cards = nvml.list_cards()
    found = [[c.uuid, encode(c.read_memory()), encode(c.list_processes())] for c in cards]
    print(json.dumps(found))
except NvmlError as error:
    print(json.dumps([error.kind, str(error)]))
"""


def read(driver, **more):
    return json.loads(driver.run(READ, **more))


def test_memory_is_read_by_version_2_with_the_drivers_own_apart(driver):
    driver.write(card(used=5 * GIB), process(77, 4 * GIB))
    [[uuid, memory, users]] = read(driver)
    assert uuid == A
    known = {"total": 80 * GIB, "used": 5 * GIB, "driver_reserved": GIB}
    assert memory == {**known, "version": "v2"}
    assert users == [{"pid": 77, "name": "python", "bytes": 4 * GIB}]


def test_an_old_driver_is_read_by_version_1_and_that_is_said(old_library, tmp_path):
    driver = Driver(folder=old_library, script=tmp_path / "script")
    driver.write(card(used=5 * GIB), process(77, 4 * GIB))
    [[_, memory, users]] = read(driver)
    assert memory["version"] == "v1"
    assert memory["used"] == 6 * GIB
    assert memory["driver_reserved"] is None
    assert users[0]["bytes"] == 4 * GIB


def test_versions_are_never_mixed_within_a_run(driver):
    driver.write(card(used=5 * GIB), "fail nvmlDeviceGetMemoryInfo_v2 13 1")
    code = """
from memcalc.measure.gpu.nvml import Nvml, NvmlError
card = Nvml().list_cards()[0]
print(card.read_memory().version)
try:
    card.read_memory()
except NvmlError as error:
    print(error.kind)
"""
    assert driver.run(code).split("\n") == ["v2", "old driver"]


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("fail nvmlInitWithFlags 9", "no driver", "not loaded"),
        ("fail nvmlInitWithFlags 18", "mismatch", "start the machine again"),
        ("fail nvmlDeviceGetCount_v2 15", "lost", "fallen off the bus"),
        ("fail nvmlDeviceGetUUID 4", "permission", "does not allow"),
        ("fail nvmlDeviceGetMemoryInfo_v2 3", "unsupported", "does not support"),
        ("fail nvmlDeviceGetCount_v2 999", "unknown", "error 999"),
    ],
)
def test_every_failure_of_the_driver_is_one_sentence(driver, line, kind, words):
    driver.write(card(), line)
    found, sentence = read(driver)
    assert found == kind
    assert words in sentence
    assert sentence.count(".") - sentence.count(".so.1") <= 2
    assert "\n" not in sentence


def test_memory_of_a_process_that_is_not_available_is_unknown(driver):
    driver.write(card(), process(5, None), process(6, 81 * GIB), process(0, 7))
    [[_, _, users]] = read(driver)
    assert [(user["pid"], user["bytes"]) for user in users] == [(5, None), (6, None)]


def test_slices_are_cards_of_their_own(driver):
    driver.write(card(used=9 * GIB), f"mig 0 {SLICE} {10 * GIB} 0 {GIB}")
    cards = read(driver)
    assert [uuid for uuid, *_ in cards] == [A, SLICE]
    assert cards[1][1]["total"] == 10 * GIB
