"""The line of a plan says what was asked."""

import pytest

from memcalc.catalog.plan import make
from memcalc.records.fields import FIELDS
from memcalc.report.rows import describe

ASKED = {
    "attention": ("eager", "attention eager"),
    "alloc_conf": ("expandable_segments:True", "alloc-conf expandable_segments:True"),
    "keep_outputs": (False, "no-keep-outputs"),
    "max_grad_norm": (0.5, "max-grad-norm 0.5"),
    "optim_args": ({"fused": True, "eps": 1e-6}, "optim-arg fused=true eps=1e-06"),
    "loss_chunks": (8, "loss-chunks 8"),
    "torch": ("2.6", "torch 2.6"),
    "checkpointing": (True, "checkpointing"),
    "grad_accum": (2, "accumulation 2"),
}


@pytest.mark.parametrize("name", ASKED)
def test_each_setting_that_was_asked_for_stands_in_the_line_of_the_plan(name):
    value, words = ASKED[name]
    usual = describe(make({"model": "gpt2"}), 512)
    assert describe(make({"model": "gpt2", name: value}), 512).replace(words, "") != usual
    assert words in describe(make({"model": "gpt2", name: value}), 512)
    assert FIELDS[name].option is not None


def test_the_dtype_of_shards_stands_in_the_line_of_the_plan():
    asked = {"parallel": "fsdp2", "devices": 8, "parallel_args": {"param_dtype": "bfloat16"}}
    line = describe(make({"model": "gpt2", **asked}), 512)
    assert line.endswith("fsdp2, 8 GPUs, parallel-arg param_dtype=bfloat16")


def test_a_usual_plan_has_a_short_line():
    usual = "adamw, fp32, batch 8 x 512 tokens"
    assert describe(make({"model": "gpt2"}), 512) == usual
    assert describe(make({"model": "gpt2", "gpu": "t4", "preset": "qlora"}), 512).endswith(
        "checkpointing, nf4-dq base, LoRA r=16,target=all-linear"
    )
