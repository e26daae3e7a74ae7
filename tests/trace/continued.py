"""What a decode takes whole, continued and written down, and continued as a curve."""

import pytest

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def peaks(path, settings, limits, most):
    """Of every phase and rung, with these limits of a trace and so many events written down."""
    from memcalc.catalog.plan import make
    from memcalc.estimation.tracing import Desk
    from memcalc.trace import decoding, generation

    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(generation, name, value)
        patch.setattr(decoding, "MOST_EVENTS", most)
        found, trace = Desk().estimate(make({"model": path, "precision": "bf16", **settings}))
    figures = [(p.phase.value, p.requested, p.allocated, p.reserved) for p in found.phases]
    return figures, trace.curve is not None


def compared(path, settings, few):
    """Three answers; ``few`` are the limits under which a decode is continued."""
    whole = peaks(path, settings, dict.fromkeys(few, 1 << 20), 1 << 40)
    written = peaks(path, settings, few, 1 << 40)
    curve = peaks(path, settings, few, 0)
    return [whole, written, curve]
