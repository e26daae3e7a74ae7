"""Passes of a long decode in compiled code take what they take in memcalc's own allocator."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from memcalc.allocator.replay import Op
from memcalc.allocator.settings import parse_alloc_conf
from memcalc.estimation.decoding import native, small
from memcalc.estimation.decoding.replay import Decode
from memcalc.files import compiled
from memcalc.kernels.target import Target
from memcalc.records.decoding import (
    BORN,
    DIES,
    EMPTIES,
    LEFT,
    Call,
    Curve,
    Cycle,
    Piece,
    Rise,
    aged,
    roles,
)
from memcalc.records.trace import Component, Phase, Storage
from memcalc.symbolic.records import Kind, code
from memcalc.units import MIB

needs_compiler = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")
TARGET = Target(capability=(9, 0), multiprocessors=132, torch=(2, 13))

bytes_of = st.one_of(
    st.integers(1, 2 * MIB), st.integers(MIB, 24 * MIB), st.sampled_from([MIB, 10 * MIB, 20 * MIB])
)
growths = st.one_of(st.just(0), st.integers(1, 4096), st.sampled_from([512, 32768, 131072]))
streams = st.sampled_from([0, 0, 0, 1])
tensors = st.tuples(bytes_of, growths, streams)
layers = st.tuples(tensors, st.lists(tensors, max_size=4))
"""What a layer adds to its cache, and what it makes beside it."""


CONFS = [
    "",
    "large_segment_size_mb:11",
    "per_process_memory_fraction:0.7",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:11,per_process_memory_fraction:0.7",
]


def storage(module, size, stream=0):
    return Storage(
        bytes=size,
        component=Component.KV_CACHE,
        phase=Phase.DECODE,
        step=0,
        module=module,
        stream=stream,
    )


def decode(drawn, passes, in_order):
    """Every layer makes its cache anew and frees the old one; its other results die at its end."""
    made, growth, items = [], [], []
    for number, (cache, others) in enumerate(drawn):
        items += [3 * len(made) + BORN, 3 * number + LEFT]
        made.append(storage(f"cache{number}", cache[0], *cache[2:]))
        growth.append(cache[1])
        first = len(made)
        for size, more, *stream in others:
            items.append(3 * len(made) + BORN)
            made.append(storage(f"other{number}", size, *stream))
            growth.append(more)
        ending = range(first, len(made))
        items += [3 * at + DIES for at in (ending if in_order else reversed(ending))]
    whole = Piece(
        first=4,
        last=3 + passes // 2,
        at=3,
        storages=tuple(made),
        growth=tuple(growth),
        items=tuple(items),
        calls=(),
        left=tuple(role for role in roles(made) if role[0].startswith("cache")),
    )
    named = zip(roles(made), range(len(made)), strict=True)
    before = tuple((role, n) for role, n in named if role[0].startswith("cache"))
    pieces = whole, replace(whole, first=4 + passes // 2, last=3 + passes)
    return Curve(pieces=pieces, first=4, last=3 + passes, shown=0, before=before)


def on_its_stream(curve, number):
    """The event that a storage is born with."""
    known = curve.pieces[0].storages[number]
    return (number, known.bytes, *([known.stream] if known.stream else []))


def both(curve, prefix, allocator, device):
    """The replay in compiled code, and the one in Python."""
    played = Decode(curve, prefix, allocator, TARGET)
    one = played.replayed(device, device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "loaded", lambda _: None)
        other = played.replayed(device, device)
    # Segments that passes take are listed in Python only.
    return (replace(found, device_events=()) for found in (one, other))


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(layers, min_size=1, max_size=5),
    weights=st.lists(bytes_of, max_size=5),
    passes=st.integers(2, 80),
    in_order=st.booleans(),
    room=st.integers(20, 400),
    conf=st.sampled_from(CONFS),
)
def test_compiled_passes_take_what_python_says(drawn, weights, passes, in_order, room, conf):
    curve = decode(drawn, passes, in_order)
    born = [on_its_stream(curve, n) for _, n in curve.before]
    others = [(1000 + n, size) for n, size in enumerate(weights)]
    gone = [(key, 0) for key, _ in others[::2]]
    prefix = [(Op.MARK, (0, Phase.PREFILL)), *others, *born, *gone]
    one, other = both(curve, prefix, parse_alloc_conf(conf), room * MIB)
    assert one == other


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(
        st.tuples(
            st.tuples(st.integers(1, MIB), st.sampled_from([0, 1, 64, 512, 4096]), streams),
            st.lists(st.tuples(st.integers(1, 2 * MIB), st.integers(0, 600), streams), max_size=4),
        ),
        min_size=1,
        max_size=6,
    ),
    passes=st.integers(2, 60),
    most=st.sampled_from([10, 100, 10_000]),
    in_order=st.booleans(),
    conf=st.sampled_from(["", "expandable_segments:True"]),
)
def test_segments_of_small_blocks_are_those_of_python(drawn, passes, most, in_order, conf):
    curve = decode(drawn, passes, in_order)
    born = [on_its_stream(curve, n) for _, n in curve.before]
    asked = curve, [(1000, 300), *born, (1000, 0)], parse_alloc_conf(conf), TARGET
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "_MOST_SMALL", most)
        compiled_ = small.small_segments(*asked)
        patch.setattr(native, "loaded", lambda _: None)
        assert small.small_segments(*asked) == compiled_


def rounds(drawn, period, times, quantised, tail):
    """Passes as of ``decode``, of which every so many make something that lasts until the next.

    What such a pass makes is larger each time, and it empties the allocator's cache.
    """
    plain = decode(drawn, period - 1, False)
    ordinary = replace(plain.pieces[0], last=plain.first + period - 2)
    size, rise = quantised
    lasting = storage("quantised", size)
    number = 3 * len(ordinary.storages)
    names = roles([lasting])
    folding = replace(
        ordinary,
        first=ordinary.last + 1,
        last=ordinary.last + 1,
        storages=(*ordinary.storages, lasting),
        growth=(*ordinary.growth, 0),
        items=(number + BORN, *ordinary.items, 3 * len(ordinary.left) + LEFT, EMPTIES),
        left=(*ordinary.left, aged(names[0])),
    )
    more = (*(g * period for g in ordinary.growth), rise)
    cycle = Cycle(
        pieces=(ordinary, folding),
        rises=(Rise(more[:-1], ()), Rise(more, ())),
        period=period,
        times=times,
    )
    later = replace(
        cycle.piece(0, times), last=ordinary.first + times * period + min(tail, period) - 1
    )
    return replace(
        plain,
        cycle=cycle,
        pieces=(later,),
        last=later.last,
        before=(*plain.before, (aged(names[0]), len(ordinary.storages))),
    )


def born_before(curve):
    known = curve.cycle.pieces[1].storages
    return [
        (n, known[n].bytes, *([known[n].stream] if known[n].stream else []))
        for _, n in curve.before
    ]


drawn_rounds = {
    "drawn": st.lists(layers, min_size=1, max_size=4),
    "period": st.integers(2, 9),
    "times": st.integers(1, 6),
    "quantised": st.tuples(bytes_of, st.integers(0, MIB)),
    "tail": st.integers(1, 9),
}


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(**drawn_rounds, room=st.integers(20, 600), conf=st.sampled_from(CONFS))
def test_passes_that_come_in_rounds_are_the_same_in_both(
    drawn, period, times, quantised, tail, room, conf
):
    curve = rounds(drawn, period, times, quantised, tail)
    prefix = [(Op.MARK, (0, Phase.PREFILL)), *born_before(curve)]
    one, other = both(curve, prefix, parse_alloc_conf(conf), room * MIB)
    assert one == other


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(**drawn_rounds, most=st.sampled_from([10, 200, 10_000]))
def test_small_segments_of_passes_in_rounds_are_those_of_python(
    drawn, period, times, quantised, tail, most
):
    curve = rounds(drawn, period, times, quantised, tail)
    asked = curve, born_before(curve), parse_alloc_conf(""), TARGET
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "_MOST_SMALL", most)
        compiled_ = small.small_segments(*asked)
        patch.setattr(native, "loaded", lambda _: None)
        assert small.small_segments(*asked) == compiled_


@settings(max_examples=30, deadline=None)
@given(**drawn_rounds)
def test_what_passes_in_rounds_hold_is_what_their_events_say(drawn, period, times, quantised, tail):
    curve = rounds(drawn, period, times, quantised, tail)
    prefix = [(Op.MARK, (0, Phase.PREFILL)), *born_before(curve)]
    whole, most = dict(born_before_sizes(curve)), 0
    for piece in curve.passes():
        for step in range(piece.first, piece.last + 1):
            made = {}
            for item in piece.items:
                number, what = divmod(item, 3)
                if item == EMPTIES:
                    continue
                if what == BORN:
                    made[number] = piece.size(number, step)
                elif what == DIES:
                    del made[number]
                else:
                    del whole[piece.left[number]]
                most = max(most, sum(made.values()) + sum(whole.values()))
            whole = {aged(role): size for role, size in whole.items()}
            whole.update((piece.roles[number], size) for number, size in made.items())
    played = Decode(curve, prefix, parse_alloc_conf(""), TARGET).replayed(1 << 40, 1 << 40)
    assert played.intervals[-1].peaks.requested == most


def born_before_sizes(curve):
    sizes = curve.cycle.pieces[1].storages
    return [(role, sizes[n].bytes) for role, n in curve.before]


@needs_compiler
def test_what_kernels_take_grows_in_compiled_code_as_well():
    plain = decode([((MIB, 32768), [(2 * MIB, 4096)])], 600, True)
    call = Call("fixed", ((), (MIB // 2, 3 * MIB, -2, -1)), ((), (4096, 32768, 0, 0)))
    born = 3 * len(plain.pieces[0].storages)
    whole = [
        replace(
            piece,
            storages=(*piece.storages, storage("kernel", code(Kind.AFTER, 0))),
            growth=(*piece.growth, 0),
            items=(*piece.items, born + BORN, born + DIES),
            calls=(call,),
        )
        for piece in plain.pieces
    ]
    curve = replace(plain, pieces=tuple(whole))
    one, other = both(curve, [(0, MIB)], parse_alloc_conf(""), 500 * MIB)
    assert one == other
    assert one.out_of_memory is None
    without, _ = both(plain, [(0, MIB)], parse_alloc_conf(""), 500 * MIB)
    assert without.peaks.requested < one.peaks.requested


@needs_compiler
def test_settings_that_the_compiled_code_does_not_know_are_left_to_python():
    from memcalc.allocator.caching import CachingAllocator
    from memcalc.allocator.device import DeviceMemory

    for conf, known in {
        "": True,
        "expandable_segments:True": True,
        "max_split_size_mb:32": False,
        "roundup_power2_divisions:4": False,
        "per_process_memory_fraction:0.5,garbage_collection_threshold:0.8": False,
    }.items():
        allocator = CachingAllocator(parse_alloc_conf(conf), DeviceMemory(1 << 40))
        assert (native.loaded(allocator) is not None) is known, conf


def test_without_a_compiler_python_answers(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    compiled.library.cache_clear()
    try:
        assert compiled.library(native.SOURCE) is None
    finally:
        compiled.library.cache_clear()
