"""Learns a symbolic trace and holds it against plain traces; for a process of its own."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memcalc import registry
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.estimation.question import resolve
from memcalc.files.artifact import decode, encode
from memcalc.symbolic.evaluate import Evaluator
from memcalc.symbolic.records import Point, SymbolicTrace
from memcalc.trace.folding.tagged import same
from memcalc.trace.generalize import generalize
from memcalc.trace.run import trace
from memcalc.workload.prepare import prepare


def compare(plan, examples, other_gpu):
    """How many points were compared, and how many of them on the other GPU."""
    plan = make(plan)
    choice = registry.of(plan)
    targets = [resolve(plan, gpus.find(name))[0] for name in (plan.gpu, other_gpu)]
    program = prepare(plan, choice)
    evaluator = Evaluator(generalize(program, targets[0], trace(program, targets[0])))
    compared = {"points": 0, "elsewhere": 0}
    step = 1 if "(s % 8) == 0" not in evaluator.symbolic.conditions else 8
    step = 16 if "(s % 16) == 0" in evaluator.symbolic.conditions else step
    longest = min(evaluator.symbolic.longest or 768, 768)
    lengths = st.integers(2, longest) if step == 1 else st.integers(1, longest // step)

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(batch=st.integers(1, 200), size=lengths, index=st.integers(0, 1))
    def hold(batch, size, index):
        seq = size * step if program.seq is not None else None
        point = Point(batch=batch, seq=seq)
        if not evaluator.holds(point, targets[index]):
            assert batch == 1 or index == 1 or seq == 2, (
                plan,
                point,
                evaluator.symbolic.conditions,
            )
            return
        found = evaluator.trace(point, targets[index])
        assert same(found, trace(program.resized(batch, seq), targets[index])), (plan, point)
        compared["points"] += 1
        compared["elsewhere"] += index

    hold()
    return compared


def held_on(plan, names):
    """On which of these GPUs a symbolic trace holds that was learnt on the plan's own."""
    plan = make(plan)
    targets = {name: resolve(plan, gpus.find(name))[0] for name in (plan.gpu, *names)}
    program = prepare(plan, registry.of(plan))
    learnt = generalize(program, targets[plan.gpu], trace(program, targets[plan.gpu]))
    # It goes from one process to another, so nothing in it may be a symbol any more.
    learnt = decode(SymbolicTrace, encode(learnt))
    point = Point(batch=plan.batch, seq=plan.seq)
    return [name for name in names if Evaluator(learnt).holds(point, targets[name])]
