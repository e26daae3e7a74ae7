"""Steps repeated without running them: conserved, level as the step they repeat."""

from hypothesis import given
from hypothesis import strategies as st

from memcalc.records.steady import continued
from memcalc.records.trace import Mark, Phase

PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.ZERO_GRAD)


def run_of(temporaries, held, kept_at_first):
    """Two steps: temporaries come and go, held ones live into the next step, and the end frees."""
    events, marks, kinds, alive = [], [Mark(index=0, phase=Phase.LOAD, step=0)], [], []

    def birth(kind):
        kinds.append(kind)
        events.append(len(kinds) - 1)
        return len(kinds) - 1

    weights = [birth(("weight", 1)) for _ in range(2)]
    for step in range(2):
        for phase in PHASES:
            marks.append(Mark(index=len(events), phase=phase, step=step))
            if phase is Phase.FORWARD:
                fresh = [birth(("held", size)) for size in held]
                events.extend(~number for number in alive)
                alive = fresh
            if phase is Phase.STEP and step == 0:
                weights += [birth(("state", size)) for size in kept_at_first]
            if phase is Phase.BACKWARD:
                passing = [birth(("passing", size)) for size in temporaries]
                events.extend(~number for number in reversed(passing))
    events.extend(~number for number in alive)
    return events, marks, kinds


sizes = st.lists(st.integers(1, 9), max_size=4)


@given(
    temporaries=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    held=sizes,
    kept=sizes,
    more=st.integers(0, 3),
)
def test_repeated_steps_are_as_the_last_and_every_birth_dies_once(temporaries, held, kept, more):
    events, marks, kinds = run_of(temporaries, held, kept)
    count = len(kinds)
    level, living, peaks, where = 0, set(), {}, None
    stream = continued(events, marks, kinds.__getitem__, storages=count, more=more)
    for item in stream:
        if isinstance(item, Mark):
            where = item.step, item.phase
            peaks.setdefault(where, level)
            continue
        size = kinds[(item if item >= 0 else ~item) % count][1]
        if item >= 0:
            assert item not in living
            living.add(item)
            level += size
        else:
            living.remove(~item)
            level -= size
        peaks[where] = max(peaks[where], level)
    assert {step for step, _ in peaks} == set(range(2 + more))
    for step in range(2, 2 + more):
        for phase in PHASES:
            assert peaks[step, phase] == peaks[1, phase]
    # What is left is what an ordinary run leaves: weights and state.
    assert level == 2 + sum(kept)
