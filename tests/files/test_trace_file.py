"""A trace survives its file, and a damaged file says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.catalog.plan import make
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.files.trace_file import DamagedTraceError, pack, unpack
from memcalc.records.model import Inventory, Parameter
from memcalc.records.trace import Component, Mark, Phase, Storage, Trace

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


@pytest.mark.parametrize("keep", [0, 5, 40, -3])
def test_a_file_cut_short_is_damaged(keep):
    with pytest.raises(DamagedTraceError):
        unpack(pack(_trace(()))[:keep])


def test_a_kept_trace_says_what_its_prediction_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    plan = make({"model": "distilbert-base-cased", "batch": 1, "seq": 8, "optim": "sgd"})
    with Tracer() as tracer:
        fresh, again = tracer.trace(plan), tracer.trace(plan)
    assert isinstance(fresh, Traced)
    assert fresh == again
    living = dict.fromkeys(range(len(fresh.trace.storages)), 0)
    for event in fresh.trace.events:
        living[event if event >= 0 else ~event] += 1 if event >= 0 else -1
    assert set(living.values()) <= {0, 1}
    weights = sum(s.bytes for s in fresh.trace.storages if s.component is Component.WEIGHTS)
    assert weights == fresh.prediction.components[Component.WEIGHTS]
    assert {s.dtype for s in fresh.trace.storages} >= {"float32", "int64"}
