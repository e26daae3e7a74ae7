"""What a symbolic trace says of any batch and sequence is what a trace there says, to the byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memcalc.catalog import models

SMALL = {
    "distilbert-base-cased": {"n_layers": 4, "dim": 96, "n_heads": 4, "vocab_size": 999},
    "gpt2": {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 999},
    "t5-small": {"num_layers": 2, "num_decoder_layers": 2, "d_model": 64, "vocab_size": 999},
    "TinyLlama/TinyLlama-1.1B": {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 999,
    },
    "google/vit-base-patch16-224": {"num_hidden_layers": 4, "image_size": 64},
}
CASES = [
    (
        "distilbert-base-cased",
        {"gpu": "l4", "precision": "amp-fp16", "loop": "trainer", "grad_accum": 2},
        "t4",
    ),
    ("gpt2", {"gpu": "a100-40gb", "precision": "bf16", "checkpointing": True}, "b200"),
    ("t5-small", {"gpu": "a100-80gb", "precision": "amp-bf16", "seq": 64}, "l40s"),
    ("TinyLlama/TinyLlama-1.1B", {"gpu": "t4", "lora": "r=4,target=all-linear"}, "v100-16gb"),
    ("google/vit-base-patch16-224", {"gpu": "t4", "optim": "sgd"}, "l4"),
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    questions = []
    for name, plan, other in CASES:
        path = folder / f"{name.replace('/', '--')}.json"
        config = models.find(name).config
        path.write_text(json.dumps({**config, **SMALL[name]}))
        plan = {"model": str(path), "batch": 4, **plan}
        questions.append(json.dumps({"plan": plan, "examples": 4, "other": other}))
    script = Path(__file__).with_name("compare.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        input="\n".join(questions),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{n} {p}" for n, p, _ in CASES])
def test_a_symbolic_trace_equals_a_trace_wherever_it_holds(compared, index):
    assert compared[index]["points"] >= 2
