"""The cache: one entry for one question, a bounded size, and damage that costs only time."""

import errno
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.__main__ import _warning_in_lines
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.kept import Traced
from memcalc.estimation.question import canonical
from memcalc.files import cache
from memcalc.files.trace_file import DamagedTraceError, pack, unpack
from memcalc.records.model import Inventory, Parameter
from memcalc.records.prediction import RuleOfThumb
from memcalc.records.trace import Component, Mark, Phase, Storage, Trace


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(number):
    return f"{number:032x}"


def record(size=0):
    return RuleOfThumb(name="x" * size, bytes_per_parameter=16.0, bytes=1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "gpt2", "gpu": "t4"}, {"model": "openai-community/gpt2", "gpu": "T4"}),
        ({"model": "qwen2.5-7b"}, {"model": "Qwen/Qwen2.5-7B"}),
        ({"model": "gpt2", "gpu": "NVIDIA GeForce RTX 4090"}, {"model": "gpt2", "gpu": "rtx4090"}),
    ],
)
def test_spellings_of_one_question_have_one_entry(one, other):
    keys = {cache.key(canonical(make(settings)), {}, "trace") for settings in (one, other)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "gpt2", "gpu": "T4"}, {"model": "gpt2", "gpu": "L4"}),
        ({"model": "Qwen/Qwen2.5-7B"}, {"model": "Qwen/Qwen2.5-7B-Instruct"}),
        ({"model": "./gpt2"}, {"model": "gpt2"}),
    ],
)
def test_different_questions_have_different_entries(one, other):
    keys = {cache.key(canonical(make(settings)), {}, "trace") for settings in (one, other)}
    assert len(keys) == 2


def test_a_kept_record_comes_back_and_another_kind_of_record_does_not(folder):
    cache.store(entry(1), record())
    assert cache.load(entry(1), RuleOfThumb) == record()
    with pytest.warns(UserWarning, match="ignoring the cached answer"):
        assert cache.load(entry(1), int) is None


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[]", b'{"name": 1}', b"[" * 200_000, b'{"name": NaN}']
)
def test_a_damaged_entry_is_a_miss(folder, data):
    folder.mkdir()
    (folder / f"{entry(1)}.json").write_bytes(data)
    with pytest.warns(UserWarning, match="ignoring the cached answer"):
        assert cache.load(entry(1), RuleOfThumb) is None


@pytest.mark.parametrize(
    "put",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"),
     lambda path: path.symlink_to(path)],
)  # fmt: skip
def test_an_entry_that_is_no_file_is_a_miss(folder, put):
    folder.mkdir()
    put(folder / f"{entry(1)}.json")
    with pytest.warns(UserWarning, match="ignoring the cached answer"):
        assert cache.load(entry(1), RuleOfThumb) is None


def test_what_was_of_use_last_stays_when_the_cache_is_full(folder, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE_SIZE", "9 KiB")
    for number in range(4):
        cache.store(entry(number), record(2000))
        os.utime(folder / f"{entry(number)}.json", (number + 1, number + 1))
    (folder / f"{entry(1)}.trace").write_bytes(b"of the same answer")
    os.utime(folder / f"{entry(1)}.trace", (1, 1))
    cache.load(entry(0), RuleOfThumb)
    cache.store(entry(9), record(4000))
    kept = {number for number in (*range(4), 9) if cache.load(entry(number), RuleOfThumb)}
    assert kept == {0, 3, 9}
    assert not (folder / f"{entry(1)}.trace").exists()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 9 << 10


def test_files_that_others_put_there_are_never_deleted(folder, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE_SIZE", "1 KiB")
    folder.mkdir()
    for name in ("thesis.json", "notes.trace", ".memcalc-0123456789ab", "deadbeef.json"):
        (folder / name).write_bytes(bytes(4096))
    cache.store(entry(1), record())
    assert len(list(folder.iterdir())) == 5


def test_what_a_killed_process_left_half_written_goes(folder):
    folder.mkdir()
    half = folder / ".memcalc-0123456789ab"
    half.write_bytes(b"half")
    os.utime(half, (1, 1))
    cache.store(entry(1), record())
    assert [file.name for file in folder.iterdir()] == [f"{entry(1)}.json"]


def test_an_answer_larger_than_the_whole_cache_is_not_kept(folder, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE_SIZE", "1 KiB")
    cache.store(entry(1), record())
    cache.store(entry(2), record(2000))
    assert cache.load(entry(1), RuleOfThumb) == record()
    assert cache.load(entry(2), RuleOfThumb) is None


def test_a_full_cache_is_one_sentence_with_its_folder(folder, monkeypatch, capsys):
    def put(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache, "put", put)
    with _warning_in_lines():
        cache.store(entry(1), record())
        cache.store(entry(2), record())
    why = f"{folder} cannot be written: No space left on device"
    assert capsys.readouterr().err == f"warning: the answer is not cached: {why}\n"


def test_a_size_that_is_none_says_which_variable_to_mend(folder, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE_SIZE", "lots")
    for use in (cache.load, lambda name, _: cache.store(name, record())):
        with pytest.raises(UsageError, match="MEMCALC_CACHE_SIZE"):
            use(entry(1), RuleOfThumb)


def _fill(first, until):
    number = first
    while time.monotonic() < until:
        cache.store(entry(number % 40), record(number * 37 % 3000))
        found = cache.load(entry(number * 7 % 40), RuleOfThumb)
        assert found is None or set(found.name) <= {"x"}
        number += 1


def test_several_processes_share_a_full_cache_without_an_error(folder, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE_SIZE", "20 KiB")
    fork = multiprocessing.get_context("fork")
    until = time.monotonic() + 1
    others = [fork.Process(target=_fill, args=(number, until)) for number in (0, 100, 200)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert [other.exitcode for other in others] == [0, 0, 0]
    left = list(folder.iterdir())
    assert left
    assert all(file.suffix == ".json" for file in left)


storages = st.lists(
    st.builds(
        Storage,
        bytes=st.integers(1, 2**60),
        component=st.sampled_from(Component),
        phase=st.sampled_from(Phase),
        step=st.integers(0, 3),
        module=st.sampled_from(("", "layers.0", "köpfe.1")),
        op=st.sampled_from(("mm", "add")),
        dtype=st.sampled_from(("", "float32")),
    ),
    max_size=20,
).map(tuple)


def _trace(found, events=()):
    weight = Parameter(name="w", shape=(2, 3), dtype="float32")
    return Trace(
        storages=found,
        events=tuple(events),
        marks=(Mark(index=0, phase=Phase.LOAD, step=0),),
        inventory=Inventory(model="m", task="t", head="H", tensors=(weight,)),
        steps=2,
        assumptions=("one",),
        versions={"torch": "2.13.0"},
    )


@given(found=storages)
def test_a_trace_is_read_as_it_was_written(found):
    trace = _trace(found, [*range(len(found)), *(~n for n in range(len(found)))])
    assert unpack(pack(trace)) == trace


@pytest.mark.parametrize("events", [(0, 0), (~0,), (0, ~0, ~0), (0, ~0, 0), (5,)])
def test_storages_that_die_before_they_are_born_are_no_trace(events):
    one = Storage(bytes=8, component=Component.WEIGHTS, phase=Phase.LOAD, step=0)
    with pytest.raises(DamagedTraceError):
        unpack(pack(_trace((one,), events)))


@pytest.mark.parametrize("keep", [0, 5, 40, -3])
def test_a_file_cut_short_is_damaged(keep):
    with pytest.raises(DamagedTraceError):
        unpack(pack(_trace(()))[:keep])


def test_a_kept_trace_says_what_its_prediction_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    plan = make({"model": "distilbert-base-cased", "batch": 1, "seq": 8, "optim": "sgd"})
    answers = Answers()
    fresh, again = answers.trace(plan), answers.trace(plan)
    assert isinstance(fresh, Traced)
    assert fresh == again
    living = dict.fromkeys(range(len(fresh.trace.storages)), 0)
    for event in fresh.trace.events:
        living[event if event >= 0 else ~event] += 1 if event >= 0 else -1
    assert set(living.values()) <= {0, 1}
    weights = sum(s.bytes for s in fresh.trace.storages if s.component is Component.WEIGHTS)
    assert weights == fresh.prediction.components[Component.WEIGHTS]
    assert {s.dtype for s in fresh.trace.storages} >= {"float32", "int64"}
