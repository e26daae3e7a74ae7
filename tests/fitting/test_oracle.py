"""An oracle answers by growth while plain traces agree, and by tracing when they do not."""

import pytest
from msgspec.structs import replace

from memcalc.catalog.plan import make
from memcalc.errors import EstimateError
from memcalc.estimation import from_growth
from memcalc.files.trace_file import write
from memcalc.fitting import ask
from memcalc.fitting.ask import Question
from memcalc.fitting.devices import device_for
from memcalc.fitting.oracle import Oracle
from memcalc.growth.records import Growth, Kind, Point, code
from memcalc.records.model import Inventory
from memcalc.records.prediction import Verdict
from memcalc.records.trace import Component, Mark, Phase, Storage, Trace

PLAN = make({"model": "made-up", "batch": 4, "seq": 64, "gpu": "t4"})
KIB = 1 << 10


def trace_of(size):
    """Weights, and one activation of so many bytes that lives through a step."""
    sizes = ((1 << 30, Component.WEIGHTS, Phase.LOAD), (size, Component.ACTIVATIONS, Phase.FORWARD))
    return Trace(
        storages=tuple(
            Storage(bytes=count, component=kind, phase=phase, step=0)
            for count, kind, phase in sizes
        ),
        events=(0, 1, ~1, ~0),
        marks=(
            Mark(index=0, phase=Phase.LOAD, step=0),
            Mark(index=1, phase=Phase.FORWARD, step=0),
        ),
        inventory=Inventory(model="made-up", task="none", head="Made", tensors=()),
        steps=1,
        seq=64,
    )


def truth(plan):
    return replace(trace_of(plan.batch * plan.seq * 512 * KIB), seq=plan.seq)


def growth_of(formula, conditions=("b >= 2", "s >= 2")):
    return Growth(
        trace=trace_of(code(Kind.SIZE, 0)),
        learnt_at=Point(batch=4, seq=64),
        sizes=(formula,),
        calls=(),
        choices=(),
        conditions=conditions,
        default_seq=64,
        longest=None,
    )


class Client:
    """Traces the made-up program, and grows what it is told to."""

    def __init__(self, growth):
        self.growth, self.grown, self.traced = growth, 0, []

    def grow(self, plan):
        self.grown += 1
        return self.growth

    def ask(self, plan, keep):
        self.traced.append(plan.batch)
        write(keep, truth(plan))
        return object()


def answered(growth):
    client = Client(growth)
    oracle = Oracle([client], None, use_cache=False)
    question = Question(seq=False)
    try:
        found = ask._answer(PLAN, question, oracle)
    except ask.GrowthRefutedError:
        found = ask._answer(PLAN, question, oracle)
    return found, client, oracle


def brute_force():
    device = device_for(PLAN, None)
    oracle = Oracle([Client(EstimateError("no"))], None, use_cache=False)
    batches = range(300, 500)
    plans = [replace(PLAN, batch=batch) for batch in batches]
    fitting = [b for b, p in zip(batches, plans, strict=True) if oracle.verify(p, device).fits]
    return max(fitting)


def test_a_true_growth_takes_two_traces_and_finds_what_every_size_would():
    found, client, _ = answered(growth_of(f"{512 * KIB}*b*s"))
    (limit,) = found.limits
    assert limit.best.batch == brute_force()
    assert client.grown == 1
    assert client.traced == [limit.best.batch, limit.best.batch + 1]
    assert limit.best.traced
    assert limit.best.fits
    assert not limit.above.fits


def test_a_false_growth_is_caught_and_every_size_traced():
    found, client, _ = answered(growth_of(f"{512 * KIB}*b*s + 512"))
    assert found.limits[0].best.batch == brute_force()
    assert len(client.traced) > 3


def test_a_program_that_cannot_run_on_symbols_is_traced():
    found, client, oracle = answered(EstimateError("it looks at its values"))
    assert found.limits[0].best.batch == brute_force()
    assert client.grown == 1
    assert any("it looks at its values" in note for note in oracle.notes)


def test_a_growth_is_not_used_where_its_conditions_do_not_hold():
    growth = growth_of(f"{512 * KIB}*b*s + 10**9 * (b % 2)", ("b >= 2", "(b % 2) == 0"))
    found, _, _ = answered(growth)
    # The odd ones are traced: nothing is said of them by the growth of the even ones.
    assert found.limits[0].best.batch == brute_force()


def table(*clients):
    """A table of batches beside and beyond the T4's memory, by these clients."""
    oracle = Oracle(clients, None, use_cache=False)
    oracle.learn([PLAN, replace(PLAN, batch=1)])
    plans = [replace(PLAN, batch=1 << power) for power in range(13)]
    return plans, oracle.table(plans, device_for(PLAN, None))


def test_a_table_is_answered_by_growths_that_each_client_learns_and_proves():
    one = growth_of(f"{512 * KIB}*s", ("b == 1", "s >= 2"))
    one = replace(one, learnt_at=Point(batch=1, seq=32))
    first, second = Client(growth_of(f"{512 * KIB}*b*s")), Client(one)
    plans, found = table(first, second)
    assert (first.grown, second.grown) == (1, 1)
    assert sorted(first.traced + second.traced) == [1, 1 << 12]
    sure = Oracle([Client(EstimateError("no"))], None, use_cache=False)
    for plan, probe in zip(plans, found, strict=True):
        traced = sure.verify(plan, device_for(PLAN, None))
        assert probe.fit.verdict is traced.fit.verdict
        if probe.fit.metric == "allocated":
            # What every layout needs is a bound; all else is the answer of a plain trace.
            assert not probe.fits
            assert probe.fit.capacity < probe.fit.needed < traced.fit.needed
        else:
            assert probe.fit == traced.fit


def test_a_false_growth_is_caught_in_a_table():
    with pytest.raises(ask.GrowthRefutedError):
        table(Client(growth_of(f"{512 * KIB}*b*s + 512")))


def test_the_verdict_of_the_plan_itself_is_said():
    found, _, _ = answered(growth_of(f"{512 * KIB}*b*s"))
    assert found.here.fit.verdict is Verdict.FITS


@pytest.mark.parametrize("damage", ["b.real", "b +", "'x'"])
def test_a_damaged_growth_on_disk_is_left_alone(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    config = {"model_type": "made-up"}
    from_growth.keep(PLAN, config, growth_of("b*s"))
    assert len(list(from_growth.load(PLAN, config))) == 1
    from_growth.keep(PLAN, config, growth_of(damage))
    assert len(list(from_growth.load(PLAN, config))) == 1


def test_a_growth_whose_trace_is_lost_answers_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    config = {"model_type": "made-up"}
    from_growth.keep(PLAN, config, growth_of("b*s"))
    assert from_growth.answer(PLAN, config) is not None
    for file in tmp_path.glob("*.trace"):
        file.unlink()
    assert from_growth.answer(PLAN, config) is None
