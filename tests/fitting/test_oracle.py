"""An oracle answers by a symbolic trace while plain traces agree, else by tracing."""

import pytest
from msgspec.structs import replace

from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.errors import EstimateError
from memcalc.estimation import from_symbolic
from memcalc.estimation.fits import device_of
from memcalc.fitting import ask
from memcalc.fitting.ask import Question
from memcalc.fitting.oracle import Oracle
from memcalc.fitting.records import FitAnswer
from memcalc.records.model import Inventory
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import Component, Mark, Phase, Storage, Trace
from memcalc.symbolic.records import Kind, Point, SymbolicTrace, code

PLAN = make({"model": "made-up", "batch": 4, "seq": 64, "gpu": "t4"})
NOTHING = FitAnswer(plan=PLAN, device=None, capacity=None, context=None, here=None)
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


def symbolic_trace(formula, conditions=("b >= 2", "s >= 2")):
    return SymbolicTrace(
        trace=trace_of(code(Kind.SIZE, 0)),
        learnt_at=Point(batch=4, seq=64),
        sizes=(formula,),
        calls=(),
        choices=(),
        asked={},
        conditions=conditions,
        default_seq=64,
        longest=None,
    )


class Client:
    """Traces the made-up program, and grows what it is told to."""

    def __init__(self, symbolic):
        self.symbolic, self.grown, self.traced = symbolic, 0, []

    def grow(self, plan):
        self.grown += 1
        return self.symbolic

    def trace(self, plan):
        self.traced.append(plan.batch)
        return object(), truth(plan)


def answered(symbolic):
    client = Client(symbolic)
    oracle = Oracle([client], None, use_cache=False)
    question = Question(seq=False)
    try:
        found = ask._answer(NOTHING, question, oracle)
    except ask.SymbolicTraceRefutedError:
        found = ask._answer(NOTHING, question, oracle)
    return found, client, oracle


def brute_force():
    device = device_of(gpus.find("t4"))
    oracle = Oracle([Client(EstimateError("no"))], None, use_cache=False)
    batches = range(300, 500)
    plans = [replace(PLAN, batch=batch) for batch in batches]
    fitting = [b for b, p in zip(batches, plans, strict=True) if oracle.verify(p, device).fits]
    return max(fitting)


def test_a_true_symbolic_trace_takes_two_traces_and_finds_what_every_size_would():
    found, client, _ = answered(symbolic_trace(f"{512 * KIB}*b*s"))
    (limit,) = found.limits
    assert limit.best.batch == brute_force()
    assert client.grown == 1
    assert client.traced == [limit.best.batch, limit.best.batch + 1]
    assert limit.best.traced
    assert limit.best.fits
    assert not limit.above.fits


def test_a_false_symbolic_trace_is_caught_and_every_size_traced():
    found, client, _ = answered(symbolic_trace(f"{512 * KIB}*b*s + 512"))
    assert found.limits[0].best.batch == brute_force()
    assert len(client.traced) > 3


def test_a_program_that_cannot_run_on_symbols_is_traced():
    found, client, oracle = answered(EstimateError("it looks at its values"))
    assert found.limits[0].best.batch == brute_force()
    assert client.grown == 1
    assert any("it looks at its values" in note for note in oracle.notes)


def test_a_symbolic_trace_is_not_used_where_its_conditions_do_not_hold():
    symbolic = symbolic_trace(f"{512 * KIB}*b*s + 10**9 * (b % 2)", ("b >= 2", "(b % 2) == 0"))
    found, _, _ = answered(symbolic)
    # The odd ones are traced: nothing is said of them by the symbolic trace of the even ones.
    assert found.limits[0].best.batch == brute_force()


def table(*clients):
    """A table of batches beside and beyond the T4's memory, by these clients."""
    oracle = Oracle(clients, None, use_cache=False)
    oracle.learn([PLAN, replace(PLAN, batch=1)])
    plans = [replace(PLAN, batch=1 << power) for power in range(13)]
    return plans, oracle.table(plans, device_of(gpus.find("t4")))


def test_a_table_is_answered_by_symbolic_traces_that_each_client_learns_and_proves():
    one = symbolic_trace(f"{512 * KIB}*s", ("b == 1", "s >= 2"))
    one = replace(one, learnt_at=Point(batch=1, seq=32))
    first, second = Client(symbolic_trace(f"{512 * KIB}*b*s")), Client(one)
    plans, found = table(first, second)
    assert (first.grown, second.grown) == (1, 1)
    assert sorted(first.traced + second.traced) == [1, 1 << 12]
    sure = Oracle([Client(EstimateError("no"))], None, use_cache=False)
    for plan, probe in zip(plans, found, strict=True):
        traced = sure.verify(plan, device_of(gpus.find("t4")))
        assert probe.fit.verdict is traced.fit.verdict
        if probe.fit.metric == "allocated":
            # What every layout needs is a bound; all else is the answer of a plain trace.
            assert not probe.fits
            assert probe.fit.capacity < probe.fit.needed < traced.fit.needed
        else:
            assert probe.fit == traced.fit


def test_a_false_symbolic_trace_is_caught_in_a_table():
    with pytest.raises(ask.SymbolicTraceRefutedError):
        table(Client(symbolic_trace(f"{512 * KIB}*b*s + 512")))


def test_the_verdict_of_the_plan_itself_is_said():
    found, _, _ = answered(symbolic_trace(f"{512 * KIB}*b*s"))
    assert found.here.fit.verdict is FitVerdict.FITS


@pytest.mark.parametrize("damage", ["b.real", "b +", "'x'"])
def test_a_damaged_symbolic_trace_on_disk_is_left_alone(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    config = {"model_type": "made-up"}
    from_symbolic.keep(PLAN, config, symbolic_trace("b*s"))
    assert len(list(from_symbolic.load(PLAN, config))) == 1
    from_symbolic.keep(PLAN, config, symbolic_trace(damage))
    assert len(list(from_symbolic.load(PLAN, config))) == 1


def test_a_symbolic_trace_whose_trace_is_lost_answers_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    config = {"model_type": "made-up"}
    from_symbolic.keep(PLAN, config, symbolic_trace("b*s"))
    assert from_symbolic.answer(PLAN, config) is not None
    for file in tmp_path.glob("*.trace"):
        file.unlink()
    assert from_symbolic.answer(PLAN, config) is None
