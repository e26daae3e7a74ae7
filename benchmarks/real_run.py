"""Train one step on the CPU, with real tensors, where a trace fails: does transformers itself?

The default config is used, made smaller only as far as the memory of a desk needs: fewer layers
first, then fewer experts, then fewer words. No width changes, so that parts which do not fit one
another still do not.
"""

import re
from typing import Any

import torch

from memcalc import registry
from memcalc.catalog.models import ModelSource
from memcalc.errors import MemcalcError
from memcalc.records.plan import Plan
from memcalc.workload.job import find_loss
from memcalc.workload.model import build, configure
from memcalc.workload.prepare import make_program
from memcalc.workload.tasks import choose

MOST = 800_000_000
"""Parameters: of fp32, twice with gradients, 6.4 GB."""
LADDER = ((None, None, None), (8, None, None), (4, None, None), (2, None, None), (1, None, None),
          (2, 16, None), (1, 16, None), (1, 16, 32_000), (2, 8, 32_000), (1, 8, 32_000),
          (1, 4, 32_000))  # fmt: skip
"""Layers, experts and words at most."""
NAMES = (
    re.compile(r"^(num_hidden_layers|num_layers|n_layers?|num_blocks|num_(en|de)coder_layers"
               r"|(\w+_)?(en|de)coder_layers|num_timestamp_prediction_layers)$"),
    re.compile(r"^(n_routed_experts|num_local_experts|num_experts)$"),
    re.compile(r"(vocab_size|_vocab)$"),
)  # fmt: skip


def smaller(values: dict[str, Any], caps: tuple[int | None, ...]) -> dict[str, Any]:
    """A config's values with fewer of what is capped; lists by layer are left to its defaults."""
    made: dict[str, Any] = {}
    before = set()
    for name, value in values.items():
        if isinstance(value, dict) and "model_type" in value:
            value = smaller(value, caps)
        elif isinstance(value, int) and not isinstance(value, bool):
            for pattern, cap in zip(NAMES, caps, strict=True):
                if cap is not None and cap < value and pattern.search(name):
                    before.add(value)
                    value = cap
        made[name] = value
    return {k: v for k, v in made.items() if not (isinstance(v, list) and len(v) in before)}


def words(values: dict[str, Any]) -> int:
    """The number of the largest token that a config names, and one more."""
    parts = [words(value) for value in values.values() if isinstance(value, dict)]
    named = [
        value + 1
        for name, value in values.items()
        if isinstance(value, int) and re.search(r"token_(id|index)$", name)
    ]
    return max([*parts, *named], default=0)


def small(model_type: str, task: str) -> ModelSource:
    """The largest of the ladder that is small enough; else the smallest that can be built."""
    source = ModelSource(name=model_type, origin="local", config={"model_type": model_type})
    values = configure(source, choose(source, task)).to_dict()
    found = source
    for layers, experts, most in LADDER:
        caps = (layers, experts, most and max(most, words(values)))
        config = {"model_type": model_type} if caps == LADDER[0] else smaller(values, caps)
        tried = ModelSource(name=model_type, origin="local", config=config)
        try:
            with torch.device("meta"):
                model = build(tried, choose(tried, task))
        except MemcalcError:
            continue
        found = tried
        if sum(parameter.numel() for parameter in model.parameters()) <= MOST:
            break
    return found


def refusal(plan: Plan, model_type: str) -> str:
    """Why a step on the CPU fails, in PyTorch's or transformers' words; empty: it does not."""
    source = small(model_type, plan.task)
    head = choose(source, plan.task)
    torch.manual_seed(0)
    model = build(source, head).train()
    program = make_program(plan, registry.find(plan.optim, {}), model, head.task)
    try:
        outputs = program.model(**program.batch("cpu"))
        find_loss(outputs).backward()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return ""
