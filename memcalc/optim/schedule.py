"""The built-in learning rate schedule: linear preheat, then polynomial decay, by the step alone."""


def schedule_factor(step: int, *, preheat_steps: int, decay_power: float) -> float:
    """Give the factor of lr at a step; it is 1.0 at the end of the preheat.

    With P = max(preheat_steps, 1): step / P up to step P, then (step / P) ** -decay_power.
    decay_power 0 keeps the rate, 0.5 is the inverse square root, 1 the inverse.

    Args:
        step: Count of updates, the coming one included: from 1.
        preheat_steps: Updates until the full rate; 0 or 1 for none.
        decay_power: At least 0.
    """
    progress = step / max(preheat_steps, 1)
    return progress if progress < 1.0 else progress**-decay_power
