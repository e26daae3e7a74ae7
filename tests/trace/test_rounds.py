"""Decodes whose passes come in rounds, continued from those that are traced."""

import json

import pytest

from memcalc.kernels.target import Target
from memcalc.records.model import Inventory
from memcalc.records.trace import Aside, Component, Mark, Phase, Storage
from memcalc.trace.decoding import continued
from memcalc.trace.folding.tagged import TaggedTrace, canonical
from memcalc.trace.passes import NotSteadyError, WrittenCalls
from memcalc.trace.rounds import Rounds
from tests.trace.continued import LLAMA, compared

PERIOD = 4
TARGET = Target(capability=(9, 0), multiprocessors=132, torch=(2, 13))


class Run:
    """A decode as a cache would have it that gathers tokens, written down event by event."""

    def __init__(self, prompt, bent=None):
        self.prompt = prompt
        self.bent = bent
        """From so many tokens on each is larger."""

    def trace(self, shift, tokens):
        self.storages, self.events, self.marks, self.asides = [], [], [], []
        held = self.prompt + shift
        self.mark(Phase.PREFILL, 0)
        quantised, gathered, scores = self.born("prompt", 3 * held), None, self.born("head", 8)
        residual = 0
        for step in range(1, tokens):
            self.mark(Phase.DECODE, step)
            held, residual = held + 1, residual + 1
            whole = self.born("whole", 10 * held + (self.bent is not None and held > self.bent))
            if residual == PERIOD:
                fresh = self.born("fold", 3 * held)
                self.dies(quantised)
                quantised, residual = fresh, 0
                self.mark(Phase.DECODE, step)
                self.asides.append(Aside(index=len(self.events), what="empty_cache"))
            fresh = self.born("gathered", 10 * residual) if residual else None
            if gathered is not None:
                self.dies(gathered)
            gathered = fresh
            self.dies(whole)
            self.dies(scores)
            scores = self.born("head", 8)
        return TaggedTrace(
            storages=self.storages,
            storage_tags=[],
            events=self.events,
            event_tags=[],
            marks=self.marks,
            asides=self.asides,
            inventory=Inventory(model="", task="", head="", tensors=()),
        )

    def mark(self, phase, step):
        self.marks.append(Mark(index=len(self.events), phase=phase, step=step))
        self.step = phase, step

    def born(self, module, size):
        phase, step = self.step
        self.storages.append(
            Storage(bytes=size, component=Component.KV_CACHE, phase=phase, step=step, module=module)
        )
        self.events.append(len(self.storages) - 1)
        return len(self.storages) - 1

    def dies(self, number):
        self.events.append(~number)


def found(run, tokens):
    calls = WrittenCalls(TARGET.torch)

    return continued(
        Rounds(run.trace, calls, tokens, period=PERIOD, lasting=True), tokens, TARGET, calls
    )


def as_told(trace):
    """Where the cache is emptied: how many events of which pass are before."""
    return [
        (aside.what, [mark.step for mark in trace.marks if mark.index <= aside.index][-1])
        for aside in trace.asides
    ]


@pytest.mark.parametrize("tokens", [25, 26, 27, 28, 29, 60, 103])
def test_rounds_that_are_continued_are_those_that_happen(tokens):
    run = Run(prompt=7)
    one, whole = found(run, tokens).tagged, run.trace(0, tokens)
    # The program's end frees nothing in either.
    assert canonical(one)[:-1] == canonical(whole)[:-1]
    assert as_told(one) == as_told(whole)


def test_rounds_that_do_not_grow_evenly_are_not_continued():
    with pytest.raises(NotSteadyError, match="rounds do not grow evenly"):
        found(Run(prompt=7, bent=80), 103)


def test_too_few_tokens_for_two_rounds_are_said_to_be():
    with pytest.raises(NotSteadyError, match="too few tokens"):
        found(Run(prompt=7), 20)


FEW = {"_MOST_WHOLE": 128}
"""Limits under which the decodes here are continued."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cache", "package"), [("quantized", "optimum.quanto"), ("quantized-hqq", "hqq")]
)
def test_a_quantised_cache_that_is_continued_takes_what_it_takes_whole(
    tmp_path, forked, cache, package
):
    pytest.importorskip(package)
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(LLAMA))
    settings = {"batch": 16, "seq": 300, "generate": 700, "cache": cache}
    whole, written, curve = forked(compared, str(path), settings, FEW)
    assert written[0] == whole[0]
    assert curve[1]
    for (_, *said), (_, *known) in zip(curve[0], whole[0], strict=True):
        assert said[:2] == known[:2]
        # Of small blocks' segments not all passes are looked at.
        assert said[2] == pytest.approx(known[2], rel=0.03)
