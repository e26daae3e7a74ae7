"""A folded trace is the whole trace: storage by storage, event by event, and its FLOPs."""

import subprocess
import sys

import msgspec
import pytest

CASES = [
    ("gpt2", {"optim": "adamw", "seq": 16, "batch": 1}, True),
    ("gpt2", {"optim": "memcalc.adamw8bit", "seq": 16, "batch": 1, "max_grad_norm": 1.0}, True),
    ("bert-base-cased", {"optim": "adam8bit", "seq": 16, "precision": "amp-bf16"}, True),
    ("Qwen/Qwen2.5-0.5B", {"optim": "adamw_torch_fused", "seq": 16, "precision": "bf16"}, True),
    ("google/gemma-3-1b-pt", {"optim": "sgd", "seq": 16, "grad_accum": 2}, None),
    ("bert-base-cased", {"optim": "sgd", "seq": 16, "checkpointing": True}, None),
]
CODE = """
import json, sys
from memcalc import registry
from memcalc.catalog.plan import make
from memcalc.trace.folding import fold
from memcalc.trace.folding.tagged import TaggedTrace, canonical
from memcalc.trace.run import trace
from memcalc.estimation.question import resolve
from memcalc.workload.program import prepare

def form(least):
    fold.LEAST_REPEATS = least
    plan = make(json.loads(sys.argv[1]))
    traced = trace(prepare(plan, registry.find(plan.optim, {})), resolve(plan, None)[0])
    raw = TaggedTrace(storages=list(traced.storages), storage_tags=[],
                      events=list(traced.events), event_tags=[], marks=list(traced.marks))
    folded = any("repeated layers" in said for said in traced.assumptions)
    return (canonical(raw), traced.flops), folded

folded, was_folded = form(4)
whole, _ = form(10**6)
print(folded == whole, was_folded)
"""


@pytest.mark.parametrize(("model", "settings", "folds"), CASES, ids=lambda value: str(value)[:40])
def test_a_folded_trace_equals_the_whole_one(model, settings, folds):
    import json

    request = json.dumps({"model": model, **settings})
    done = subprocess.run(
        [sys.executable, "-c", CODE, request], capture_output=True, text=True, timeout=120
    )
    equal, was_folded = done.stdout.split()[-2:]
    assert equal == "True", done.stderr
    # Where it cannot be proven the model is traced whole, which is always right.
    assert folds is None or was_folded == str(folds)


def test_stacks_are_found_with_their_prefix_and_period():
    import torch

    from memcalc.catalog import models
    from memcalc.trace.folding.layers import Stack, find
    from memcalc.workload import tasks
    from memcalc.workload.model import build

    def stacks(name):
        source = models.find(name)
        with torch.device("meta"):
            return find(build(source, tasks.choose(source, "auto")), 3)

    only = Stack(path="model.layers", prefix=0, period=1, repeats=126, rest=0)
    assert stacks("meta-llama/Llama-3.1-405B") == [only]
    assert [msgspec.structs.astuple(s)[1:] for s in stacks("google/gemma-2-2b")] == [(0, 2, 13, 0)]
    assert [msgspec.structs.astuple(s)[1:] for s in stacks("google/gemma-3-1b-pt")] == [
        (0, 6, 4, 2)
    ]
    assert [msgspec.structs.astuple(s)[1:] for s in stacks("deepseek-ai/DeepSeek-V3")] == [
        (3, 1, 58, 0)
    ]
    assert [s.path for s in stacks("t5-small")] == ["encoder.block", "decoder.block"]
