"""The simulated run against PyTorch's own CPU allocator in a real run, peak by peak.

On the CPU the profiler reports every allocation, so the comparison is exact wherever the trace
can see: what it cannot see is scratch inside kernels, which each case bounds and names.
"""

import json
import os

import pytest

from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.estimation.client import trace_all
from memcalc.measure.runs.runner import Request, measure
from memcalc.records.measurement import steady_peaks

SCALARS = 64
"""Bytes of 0-dim tensors that C++ wraps Python numbers in."""
BLOCKS = 256
"""Numbers that bitsandbytes' 4-bit layers make of Python's, a few bytes for each layer."""
PACKED = 512 * 1024
"""Where oneDNN packs operands of bf16 products (CPUs with AMX): 282 KiB seen at the peak."""
SCALES = 16 * 1024
"""A CPU's product of two types casts first: scales of int8 rows live beside that copy."""
GATHER = 64 * 1024
"""Scratch of the CPU's index and embedding kernels, visible where little else is alive."""
COLUMNS = (10 << 20) * (os.cpu_count() or 1)
"""Scratch of oneDNN's convolution for ViT's patches: 8 to 9 MiB seen for each thread."""
SMALL = {
    "distilbert-base-cased": {"n_layers": 2, "vocab_size": 1000},
    "bert-base-cased": {"num_hidden_layers": 2, "vocab_size": 1000},
    "gpt2": {"n_layer": 2, "vocab_size": 1000},
    "t5-small": {"num_layers": 2, "num_decoder_layers": 2, "vocab_size": 1000},
    "meta-llama/Llama-3.2-1B": {"num_hidden_layers": 1, "hidden_size": 512, "vocab_size": 1000,
                                "intermediate_size": 1024},
    "google/vit-base-patch16-224": {"num_hidden_layers": 1},
}  # fmt: skip
NARROW = {
    "distilbert-base-cased": {"dim": 96, "hidden_dim": 384, "n_heads": 4},
    "bert-base-cased": {"hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 4},
    "gpt2": {"n_embd": 96, "n_head": 4},
    "t5-small": {"d_model": 96, "d_ff": 384, "num_heads": 4, "d_kv": 24},
    "meta-llama/Llama-3.2-1B": {"hidden_size": 128, "intermediate_size": 256},
    "google/vit-base-patch16-224": {},
}
CASES = [
    ("distilbert-base-cased", {"optim": "adamw"}, SCALARS),
    ("distilbert-base-cased", {"optim": "adamw", "optim_args": {"foreach": True}}, SCALARS),
    ("distilbert-base-cased", {"optim": "sgd", "checkpointing": True}, GATHER),
    ("bert-base-cased", {"optim": "adafactor"}, SCALARS),
    ("bert-base-cased", {"optim": "adamw", "grad_accum": 2}, SCALARS),
    ("gpt2", {"optim": "sgd"}, SCALARS),
    ("gpt2", {"optim": "adafactor", "checkpointing": True}, GATHER),
    ("t5-small", {"optim": "adamw"}, SCALARS),
    ("meta-llama/Llama-3.2-1B", {"optim": "adamw", "max_grad_norm": 1.0}, SCALARS),
    ("google/vit-base-patch16-224", {"optim": "sgd"}, COLUMNS),
    ("distilbert-base-cased", {"optim": "adamw", "resume": True}, SCALARS),
    ("gpt2", {"optim": "sgd", "eval": 3, "loop": "trainer", "batch": 8}, SCALARS),
    ("gpt2", {"optim": "sgd", "eval": 3, "batch": 8}, SCALARS),
    ("bert-base-cased", {"optim": "adamw", "optim_in_backward": True}, SCALARS),
    ("meta-llama/Llama-3.2-1B", {"quant": "nf4-dq", "precision": "bf16"}, BLOCKS + PACKED),
    ("meta-llama/Llama-3.2-1B", {"quant": "int8", "precision": "bf16"}, BLOCKS + SCALES),
]


def plan_of(folder, model, settings, *, narrow):
    config = {**models.find(model).config, **SMALL[model], **(NARROW[model] if narrow else {})}
    path = folder / model.replace("/", "-") / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config))
    return make({"model": str(path), "batch": 2, "seq": 32, "target": "cpu", **settings})


_NUMBERS = [n if n == 0 else pytest.param(n, marks=pytest.mark.nightly) for n in range(len(CASES))]


@pytest.mark.parametrize("number", _NUMBERS, ids=lambda n: f"{CASES[n][0]}-{n}")
@pytest.mark.parametrize("narrow", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_the_peak_is_what_the_cpu_allocator_reports(tmp_path, number, narrow):
    plan = plan_of(tmp_path, *CASES[number][:2], narrow=narrow)
    (prediction,) = trace_all([plan])
    bound = CASES[number][2]
    measured = steady_peaks(
        measure(Request(plan=plan, device="cpu", steps=2), lambda _: None).phases
    )
    real = max(levels["requested"] for levels in measured.values())
    assert abs(prediction.peak.requested - real) <= bound
    for phase in prediction.phases:
        assert prediction.peak.requested >= phase.requested
