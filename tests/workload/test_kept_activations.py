"""What backward needs is recomputed in part, or lies in host memory until then."""

import json

import pytest

import memcalc
from memcalc.errors import UsageError
from memcalc.records.trace import Component

BATCH, SEQ, WIDTH, INNER, LAYERS, HEADS = 4, 256, 256, 512, 2, 8


@pytest.fixture
def activations(tmp_path):
    """Return what a small Llama keeps for backward at the peak, under settings."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 4, "vocab_size": 4096}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))

    def run(**settings):
        settings = {"batch": BATCH, "seq": SEQ, "precision": "bf16", "padding": False, **settings}
        found = memcalc.estimate(str(path), task="causal-lm", gpu="A100-80GB", **settings)
        return found.components[Component.ACTIVATIONS]

    return run


def test_selective_recomputation_keeps_attention_and_every_second_product(activations):
    tokens = BATCH * SEQ
    # Queries, values, the gate and the last product; attention's result and sums of rows.
    kept = tokens * (2 * (WIDTH + WIDTH // 2 + INNER + WIDTH + WIDTH) + 4 * HEADS)
    recomputed = activations(checkpointing=True)
    selective = activations(checkpointing=True, recompute="selective")
    # Attention returns its random state beside them.
    assert selective - recomputed == LAYERS * (kept + 24)


def test_activations_that_are_offloaded_are_not_on_the_gpu(activations):
    assert activations(offload_activations=True) < activations() / 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"recompute": "selective"}, "needs checkpointing"),
        ({"recompute": "selective", "checkpointing": True, "use_reentrant": True}, "use_reentrant"),
        ({"offload_activations": True, "loop": "trainer"}, "of the plain loop"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(activations, settings, words):
    with pytest.raises(UsageError, match=words):
        activations(**settings)
