"""What the parent reads of a run's GPU memory, over a stand-in driver that plays every part."""

import json

from tests.measure.driver import GIB, SLICE, A, B, card, process

OURS = 4242


FOLLOW = """
import json, pathlib, sys
from memcalc.files.artifact import encode
from memcalc.measure.gpu.sampler import Sampler
worlds, uuid, script = json.loads(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
names = ["before", "context", "trained", "freed"]
script.write_text(worlds[0])
sampler = Sampler(interval=0)
for name, world in zip(names, worlds):
    script.write_text(world)
    sampler.tick()
    sampler.record_moment(name, {"uuid": uuid, "reserved": 7} if name != "before" else {}, 4242)
sampler.close()
print(json.dumps({"reading": encode(sampler.reading()), "failure": sampler.failure}))
"""


def follow(driver, *worlds, uuid=A, **more):
    text = json.dumps(["\n".join(world) + "\n" for world in worlds])
    code = f"import sys; sys.argv[1:] = {[text, uuid.split('-', 1)[1], str(driver.script)]!r}"
    found = json.loads(driver.run(f"{code}\n{FOLLOW}", **more))
    return found["reading"], found["failure"]


def levels(reading, key="process"):
    return [moment[key] for moment in reading["moments"]]


def test_the_figure_of_the_process_is_the_drivers_own(driver):
    reading, failure = follow(
        driver,
        [card(used=0)],
        [card(used=GIB), process(OURS, GIB)],
        [card(used=9 * GIB), process(OURS, 9 * GIB)],
        [card(used=2 * GIB), process(OURS, 2 * GIB)],
    )
    assert failure is None
    assert reading["source"] == "process"
    assert levels(reading) == [0, GIB, 9 * GIB, 2 * GIB]
    assert levels(reading, "device") == [0, GIB, 9 * GIB, 2 * GIB]
    assert reading["peak_process"] == reading["peak_device"] == 9 * GIB
    assert reading["memory_info"] == "v2"
    assert reading["driver_reserved"] == GIB
    assert reading["warnings"] == []


def test_in_a_container_the_process_is_the_one_that_appeared(driver):
    other = process(11, GIB, name="other")
    reading, _ = follow(
        driver,
        [card(used=GIB), other],
        [card(used=2 * GIB), other, process(99, GIB)],
        [card(used=5 * GIB), other, process(99, 4 * GIB)],
        [card(used=2 * GIB), other, process(99, GIB)],
    )
    assert reading["source"] == "appeared"
    assert levels(reading) == [0, GIB, 4 * GIB, GIB]
    assert reading["others"] == [{"pid": 11, "name": "other", "bytes": GIB}]
    assert "other (process 11) holds 1.0 GiB" in reading["warnings"][0]


def test_where_no_process_is_listed_the_growth_of_the_device_stands_for_it(driver):
    reading, _ = follow(driver, *([card(used=n * GIB)] for n in (3, 4, 8, 4)))
    assert reading["source"] == "difference"
    assert levels(reading) == [0, GIB, 5 * GIB, GIB]
    assert "--pid=host" in reading["warnings"][0]


def test_memory_that_is_not_available_is_not_zero(driver):
    reading, _ = follow(
        driver,
        [card(used=0)],
        *([card(used=n * GIB), process(OURS, None)] for n in (1, 6, 1)),
    )
    assert reading["source"] == "difference"
    assert levels(reading) == [0, GIB, 6 * GIB, GIB]
    assert "WSL" in reading["warnings"][0]


def test_what_others_grow_by_is_subtracted_and_newcomers_are_named(driver):
    reading, _ = follow(
        driver,
        [card(used=GIB), process(11, GIB, name="other")],
        [card(used=2 * GIB), process(11, GIB, name="other")],
        [card(used=7 * GIB), process(11, 2 * GIB, name="other"), process(12, GIB, name="late")],
        [card(used=2 * GIB), process(11, GIB, name="other")],
    )
    assert levels(reading) == [0, GIB, 4 * GIB, GIB]
    assert any("late (process 12)" in warning for warning in reading["warnings"])


def test_of_several_processes_that_appear_at_once_none_is_taken_for_ours(driver):
    both = [process(98, GIB), process(99, 3 * GIB)]
    reading, _ = follow(driver, [card()], *([card(used=4 * GIB), *both] for _ in range(3)))
    assert reading["source"] == "unknown"
    assert levels(reading) == [0, None, None, None]
    assert reading["peak_device"] == 4 * GIB


def test_a_gpu_that_is_lost_leaves_what_was_read_before(driver):
    reading, failure = follow(
        driver,
        [card(used=0)],
        [card(used=GIB), process(OURS, GIB)],
        [card(used=9 * GIB), "fail nvmlDeviceGetMemoryInfo_v2 15"],
        [card(used=9 * GIB), "fail nvmlDeviceGetMemoryInfo_v2 15"],
    )
    assert "fallen off the bus" in failure
    assert levels(reading) == [0, GIB, None, None]
    assert reading["peak_process"] == GIB
    assert failure in reading["warnings"]


def test_the_card_is_the_one_that_pytorch_names_not_the_first(driver):
    reading, _ = follow(
        driver,
        *(
            [card(A, used=50 * GIB), card(B, used=n * GIB), process(OURS, n * GIB, uuid=B)]
            for n in (0, 1, 2, 1)
        ),
        uuid=B,
        CUDA_VISIBLE_DEVICES="1",
    )
    assert reading["uuid"] == B
    assert reading["peak_device"] == 2 * GIB


def test_a_slice_is_read_and_not_the_card_around_it(driver):
    def world(n):
        return [card(used=60 * GIB), f"mig 0 {SLICE} {10 * GIB} 0 {n * GIB}"]

    worlds = [world(n) for n in (0, 1, 3, 1)]
    for uuid, more in ((SLICE, {}), (A, {"CUDA_VISIBLE_DEVICES": SLICE})):
        reading, _ = follow(driver, *worlds, uuid=uuid, **more)
        assert reading["uuid"] == SLICE
        assert reading["total"] == 10 * GIB
        assert levels(reading) == [0, GIB, 3 * GIB, GIB]


def test_without_a_driver_there_is_no_reading_but_a_reason(driver, tmp_path):
    (tmp_path / "none").mkdir()
    reading, failure = follow(driver, [card()], LD_LIBRARY_PATH=str(tmp_path / "none"))
    assert reading is None
    assert "no NVIDIA driver" in failure
    assert "libnvidia-ml.so.1" in failure
