"""The rules of thumb that people know, for comparison with the exact figures.

Sources: transformers documentation, "Methods and tools for efficient training on a single GPU"
(8, 4 and 2 bytes of optimizer state per parameter) and "Model training anatomy" (18 bytes per
parameter for mixed-precision training with AdamW, 6 for inference); 24 bytes per parameter for
fp32 training with AdamW is 16 for weights, gradients and states and half as much again.
"""

from __future__ import annotations

from memcalc.records import Plan, Rule

_MIXED_TRAINING = 18
_MIXED_INFERENCE = 6
_WHOLE = 24


def rules_of_thumb(plan: Plan, parameters: int, state_rule: float | None) -> tuple[Rule, ...]:
    """The rules that a model's size lets people compute in their head.

    Args:
        plan: for the optimizer's name.
        parameters: number of parameters, tied once.
        state_rule: bytes of state per parameter that the rule gives this optimizer.
    """
    rules = []
    if state_rule is not None:
        rules.append((f"{plan.optim} state", state_rule))
    rules.append(("mixed-precision AdamW training", _MIXED_TRAINING))
    rules.append(("mixed-precision inference", _MIXED_INFERENCE))
    rules.append(("fp32 AdamW training, all told", _WHOLE))
    return tuple(
        Rule(name=name, bytes_per_parameter=each, bytes=round(parameters * each))
        for name, each in rules
    )
