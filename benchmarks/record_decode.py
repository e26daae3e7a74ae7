"""Record what decoding takes with PyTorch's CUDA code; writes one compact JSON file.

Run it with a Python whose torch is a CUDA build: on a machine with a GPU, or over the stand-in
driver, whose memory reads as zeros. memcalc is not used: the models are transformers' own, and so
is ``generate``, which is ended by count; runs named ``greedy`` decode in a loop written out here,
those named ``forward`` are one pass. Quantised models are written to files and read from there.
Runs of caches need optimum-quanto and hqq.

    python benchmarks/record_decode.py evidence/standin/decode-torch2.13-cc90.json
    python benchmarks/record_decode.py --quantised evidence/standin/decode-quant-torch2.13-cc90.json
    python benchmarks/record_decode.py --unseen evidence/standin/decode-torch2.13-unseen-cc90.json
    python benchmarks/record_decode.py --caches evidence/standin/decode-caches-torch2.13-cc90.json
"""

import argparse
import gc
import json
import os
import pathlib
import sys
import tempfile
import time

import torch
import transformers

LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}
MHA = {**LLAMA, "num_key_value_heads": 16}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 256}
GEMMA3 = {
    **LLAMA,
    "model_type": "gemma3_text",
    "num_hidden_layers": 8,
    "head_dim": 64,
    "sliding_window": 128,
}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 128, "num_attention_heads": 8}
GEMMA2 = {**GEMMA3, "model_type": "gemma2", "num_hidden_layers": 4}
QWEN3_MOE = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}
FALCON = {
    "model_type": "falcon",
    "hidden_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "multi_query": True,
    "vocab_size": 65024,
}
PHI3 = {**LLAMA, "model_type": "phi3", "pad_token_id": 0, "sliding_window": None}
GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
OPT = {
    "model_type": "opt",
    "hidden_size": 768,
    "ffn_dim": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
}
NEOX = {
    "model_type": "gpt_neox",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "vocab_size": 50304,
}
MLA = {
    "model_type": "deepseek_v3",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 384,
    "kv_lora_rank": 256,
    "vocab_size": 32000,
}
T5 = {
    "model_type": "t5",
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 4,
    "num_heads": 8,
    "vocab_size": 32128,
    "decoder_start_token_id": 0,
}
BART = {
    "model_type": "bart",
    "d_model": 512,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "vocab_size": 50265,
}


def run(config, loop="greedy", batch=4, seq=512, generate=16, **plan):
    """One recording; what is not named is as in the plan of an estimate."""
    plan = {"precision": "bf16", "batch": batch, "seq": seq, "generate": generate, **plan}
    return {"config": config, "loop": loop, "plan": plan}


RUNS = [
    run(LLAMA),
    run(LLAMA, batch=1, seq=100, generate=200),
    run(LLAMA, batch=3, seq=700, generate=300),
    run(LLAMA, batch=8, seq=1000, generate=500),
    run(LLAMA, batch=2, seq=64, generate=64, precision="fp32"),
    run(LLAMA, batch=2, seq=512, generate=40, attention="eager"),
    run(LLAMA, cache="static"),
    run(LLAMA, batch=2, seq=300, generate=150, cache="static"),
    run(MHA, batch=2, seq=256, generate=100),
    run(MHA, batch=16, seq=512, generate=20),
    run(MISTRAL, seq=600, generate=32),
    run(MISTRAL, batch=2, seq=200, generate=120, cache="sliding"),
    run(MISTRAL, batch=2, seq=200, generate=100, cache="static"),
    run(GEMMA3, batch=2, seq=100, generate=100),
    run(QWEN3, batch=2, seq=400, generate=100),
    run(PHI3, batch=2, seq=256, generate=50),
    run(GPT2, seq=256, generate=100),
    run(OPT, batch=2, seq=128, generate=64, precision="fp16"),
    run(NEOX, batch=2, seq=200, generate=64),
    run(MLA, batch=2, seq=256, generate=64),
    run(MLA, batch=8, seq=512, generate=30),
    run(LLAMA, "generate", batch=2, seq=200, generate=100),
    run(LLAMA, "generate", batch=2, seq=200, generate=50, beams=4),
    run(GPT2, "generate", batch=2, seq=100, generate=60, beams=3),
    run(LLAMA, "generate", batch=2, seq=200, generate=50, cache="static"),
    run(MISTRAL, "generate", batch=2, seq=200, generate=100),
    run(MLA, "generate", batch=2, seq=200, generate=40),
    run(T5, "generate", batch=4, seq=256, generate=100),
    run(T5, "generate", batch=2, seq=128, generate=40, beams=4),
    run(T5, "generate", batch=2, seq=128, generate=40, cache="static"),
    run(BART, "generate", batch=4, seq=256, generate=64),
    run(T5, "generate", batch=4, seq=128, generate=300),
    run(T5, "generate", batch=2, seq=64, generate=160, beams=4),
    run(LLAMA, "generate", batch=1, seq=100, generate=200, beams=4),
    run(GEMMA2, batch=2, seq=100, generate=100),
    # generate() decodes with another implementation of experts than forward takes.
    run(QWEN3_MOE, "generate", batch=2, seq=200, generate=60),
    run(FALCON, batch=4, seq=200, generate=100),
    run(BART, "generate", batch=2, seq=128, generate=200),
]
SMALL = {**LLAMA, "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}
MAMBA = {"hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 32000}
HYBRID = {**SMALL, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 32000}
SEQ2SEQ = {**BART, "max_position_embeddings": 512, "vocab_size": 32000}
KINDS = [
    run({**SMALL, "model_type": "granite"}, batch=2, seq=200, generate=64),
    run({**SMALL, "model_type": "olmo2"}, batch=3, seq=300, generate=64),
    run({**SMALL, "model_type": "stablelm"}, batch=2, seq=256, generate=64),
    run({**SMALL, "model_type": "cohere"}, batch=2, seq=128, generate=64),
    run({**SMALL, "model_type": "qwen2"}, batch=8, seq=256, generate=80),
    run(
        {**SMALL, "model_type": "starcoder2", "sliding_window": 128}, batch=2, seq=100, generate=90
    ),
    run({**SMALL, "model_type": "mistral", "sliding_window": 64}, batch=2, seq=30, generate=100),
    run({**SMALL, "model_type": "smollm3", "pad_token_id": 0}, batch=2, seq=300, generate=40),
    run(
        {**SMALL, "model_type": "glm4", "head_dim": 64, "pad_token_id": 0},
        batch=4,
        seq=250,
        generate=40,
    ),
    run({**SMALL, "model_type": "nemotron"}, batch=2, seq=100, generate=60),
    run({**SMALL, "model_type": "phi"}, batch=2, seq=257, generate=40, precision="fp16"),
    run({**SMALL, "model_type": "cohere2", "sliding_window": 64}, batch=2, seq=100, generate=60),
    run(
        {
            **SMALL,
            "model_type": "mixtral",
            "num_local_experts": 4,
            "intermediate_size": 1024,
        },
        "generate",
        batch=2,
        seq=128,
        generate=50,
    ),
    run(
        {"model_type": "bloom", "hidden_size": 512, "n_layer": 4, "n_head": 8, "vocab_size": 50000},
        "generate",
        batch=2,
        seq=200,
        generate=60,
    ),
    run(
        {"model_type": "gptj", "n_embd": 512, "n_layer": 3, "n_head": 8, "rotary_dim": 32},
        "generate",
        batch=2,
        seq=100,
        generate=60,
    ),
    run(
        {
            "model_type": "gpt_neo",
            "hidden_size": 512,
            "num_layers": 4,
            "num_heads": 8,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 64,
        },
        "generate",
        batch=2,
        seq=100,
        generate=60,
    ),
    run(
        {"model_type": "mpt", "d_model": 512, "n_layers": 4, "n_heads": 8, "vocab_size": 50000},
        "generate",
        batch=2,
        seq=100,
        generate=60,
    ),
    run(
        {"model_type": "gpt_bigcode", "n_embd": 512, "n_layer": 4, "n_head": 8},
        "generate",
        batch=4,
        seq=200,
        generate=60,
    ),
    run({**MAMBA, "model_type": "mamba"}, "generate", batch=2, seq=200, generate=60),
    run(
        {**MAMBA, "model_type": "mamba2", "num_heads": 16, "head_dim": 64, "n_groups": 2},
        "generate",
        batch=2,
        seq=200,
        generate=60,
    ),
    run({**MAMBA, "model_type": "falcon_mamba"}, "generate", batch=2, seq=100, generate=40),
    run(
        {
            **HYBRID,
            "model_type": "jamba",
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "use_mamba_kernels": False,
        },
        "generate",
        batch=2,
        seq=200,
        generate=60,
    ),
    run(
        {
            **HYBRID,
            "model_type": "lfm2",
            "layer_types": ["conv", "conv", "full_attention", "conv"],
        },
        "generate",
        batch=2,
        seq=200,
        generate=60,
    ),
    run(
        {
            **HYBRID,
            "model_type": "qwen3_next",
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "shared_expert_intermediate_size": 256,
            "linear_num_value_heads": 8,
            "linear_num_key_heads": 4,
            "head_dim": 64,
        },
        "generate",
        batch=2,
        seq=120,
        generate=40,
    ),
    run(
        {
            **SMALL,
            "model_type": "recurrent_gemma",
            "num_hidden_layers": 3,
            "attention_window_size": 128,
            "lru_width": 768,
        },
        "generate",
        batch=2,
        seq=100,
        generate=60,
    ),
    run(
        {
            **MLA,
            "model_type": "deepseek_v2",
            "kv_lora_rank": 128,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "q_lora_rank": None,
            "n_group": None,
            "topk_group": None,
            "topk_method": "greedy",
        },
        "generate",
        batch=2,
        seq=200,
        generate=60,
    ),
    run(
        {
            **SMALL,
            "model_type": "gpt_oss",
            "num_local_experts": 4,
            "head_dim": 64,
            "sliding_window": 64,
            "intermediate_size": 512,
        },
        "generate",
        batch=2,
        seq=100,
        generate=60,
    ),
    run({**SEQ2SEQ, "model_type": "pegasus"}, "generate", batch=2, seq=200, generate=60),
    run({**SEQ2SEQ, "model_type": "mbart"}, "generate", batch=4, seq=100, generate=60),
    run(
        {**SEQ2SEQ, "model_type": "marian", "pad_token_id": 0, "decoder_start_token_id": 0},
        "generate",
        batch=2,
        seq=100,
        generate=40,
        beams=4,
    ),
    run({**SEQ2SEQ, "model_type": "blenderbot"}, "generate", batch=2, seq=100, generate=40),
    run({**SEQ2SEQ, "model_type": "m2m_100"}, "generate", batch=2, seq=100, generate=40),
    run({**GEMMA3, "layer_types": None}, "generate", batch=2, seq=300, generate=60),
    run(
        {**T5, "model_type": "mt5", "feed_forward_proj": "gated-gelu"},
        "generate",
        batch=2,
        seq=128,
        generate=60,
    ),
]
UNTIED = {**LLAMA, "num_key_value_heads": 8, "num_hidden_layers": 3, "tie_word_embeddings": False}
TIED = {**QWEN3, "tie_word_embeddings": True}
QUANTISED = [
    run(LLAMA, "generate", batch=1, quant="nf4-dq"),
    run(LLAMA, "generate", batch=4, quant="nf4-dq"),
    run(LLAMA, "generate", batch=1, quant="int8"),
    run(LLAMA, "generate", batch=4, quant="int8"),
    run(GPT2, "generate", batch=1, quant="nf4-dq"),
    run(GPT2, "generate", batch=4, quant="nf4-dq"),
    run(GPT2, "generate", batch=1, quant="int8"),
    run(GPT2, "generate", batch=4, quant="int8", precision="fp16"),
    run(UNTIED, "generate", batch=1, seq=1000, generate=60, quant="nf4"),
    run(UNTIED, "generate", batch=2, seq=100, generate=40, quant="fp4", precision="fp16"),
    run(UNTIED, "generate", batch=16, seq=200, generate=20, quant="nf4-dq"),
    run(UNTIED, "generate", batch=1, seq=100, generate=40, quant="nf4-dq", precision="fp32"),
    run(TIED, "generate", batch=1, seq=300, generate=40, quant="nf4-dq", cache="static"),
    run(TIED, "generate", batch=2, seq=200, generate=30, quant="nf4-dq", beams=4),
    run(MISTRAL, "generate", batch=1, seq=600, generate=32, quant="int8"),
    run(NEOX, "generate", batch=1, seq=200, generate=64, quant="nf4-dq"),
    run(OPT, "generate", batch=2, seq=128, generate=40, quant="int8", precision="fp16"),
    run(LLAMA, "generate", batch=1, quant="torchao-int8"),
    run(TIED, "generate", batch=4, seq=200, generate=30, quant="torchao-float8"),
    run(LLAMA, "forward", batch=1, generate=None, quant="nf4-dq"),
    run(LLAMA, "forward", batch=4, generate=None, quant="int8"),
    run(GPT2, "forward", batch=4, generate=None, quant="nf4-dq"),
]
MORE = [
    run(GEMMA2, "generate", batch=2, seq=100, generate=60, beams=3),
    run(MISTRAL, "generate", batch=3, seq=230, generate=50, beams=2),
    run(GEMMA3, "generate", batch=3, seq=300, generate=30, cache="static"),
    run(QWEN3_MOE, "generate", batch=4, seq=333, generate=30, cache="static"),
    run(QWEN3_MOE, "generate", batch=1, seq=77, generate=40, beams=2),
    run(LLAMA, "generate", batch=4, seq=150, generate=40, quant="nf4-dq", cache="static"),
    run(UNTIED, "generate", batch=2, seq=90, generate=30, quant="int8", beams=3),
    run({**SMALL, "model_type": "exaone4", "sliding_window": 64}, "generate", seq=90, generate=50),
    run({**SMALL, "model_type": "olmo3", "sliding_window": 64}, "generate", seq=50, generate=70),
    run({**SMALL, "model_type": "granitemoe", "num_local_experts": 4}, "generate", generate=30),
    run({**SMALL, "model_type": "arcee"}, "generate", batch=5, seq=111, generate=64),
    run(
        {**SMALL, "model_type": "helium", "head_dim": 64},
        "generate",
        batch=1,
        seq=1000,
        generate=30,
    ),
    run({**SMALL, "model_type": "seed_oss", "head_dim": 64}, "generate", seq=65, generate=70),
    run(
        {
            **SMALL,
            "model_type": "codegen",
            "n_embd": 512,
            "n_head": 8,
            "n_layer": 3,
            "rotary_dim": 32,
        },
        "generate",
        batch=2,
        seq=100,
        generate=40,
    ),
    run(
        {
            "model_type": "xglm",
            "d_model": 512,
            "num_layers": 3,
            "attention_heads": 8,
            "ffn_dim": 1024,
            "vocab_size": 32000,
        },
        "generate",
        batch=2,
        seq=100,
        generate=40,
    ),
    run(
        {
            "model_type": "biogpt",
            "hidden_size": 512,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "intermediate_size": 1024,
        },
        "generate",
        batch=2,
        seq=100,
        generate=40,
    ),
    run({**T5, "model_type": "umt5"}, "generate", batch=3, seq=90, generate=33, beams=3),
    run({**SEQ2SEQ, "model_type": "plbart"}, "generate", batch=2, seq=100, generate=40, beams=2),
    run(
        {**SEQ2SEQ, "model_type": "pegasus"},
        "generate",
        batch=3,
        seq=77,
        generate=30,
        cache="static",
    ),
    run({**MAMBA, "model_type": "mamba"}, "generate", batch=1, seq=333, generate=30, beams=2),
]
"""Kinds and settings that nothing had been made for, in one run each."""
CACHES = [
    run(LLAMA, "generate", cache="offloaded"),
    run(LLAMA, "generate", batch=1, seq=100, generate=200, cache="offloaded"),
    run(LLAMA, "generate", batch=8, seq=1000, generate=100, cache="offloaded"),
    run(GEMMA3, "generate", batch=2, seq=100, generate=100, cache="offloaded"),
    run(GEMMA3, "generate", batch=8, seq=400, generate=20, cache="offloaded"),
    run(MLA, "generate", batch=2, seq=200, generate=40, cache="offloaded"),
    run(LLAMA, "generate", batch=2, seq=200, generate=50, beams=4, cache="offloaded"),
    run(UNTIED, "generate", batch=1, seq=300, generate=40, quant="nf4-dq", cache="offloaded"),
    run(LLAMA, "generate", batch=2, seq=300, generate=60, cache="offloaded-static"),
    run(GEMMA3, "generate", batch=2, seq=100, generate=60, cache="offloaded-static"),
    run(LLAMA, "generate", cache="quantized"),
    run(LLAMA, "generate", batch=1, seq=128, generate=400, cache="quantized"),
    run(MHA, "generate", batch=4, seq=300, generate=300, cache="quantized"),
    run(GPT2, "generate", batch=2, seq=128, generate=200, cache="quantized"),
    run(LLAMA, "generate", batch=2, seq=256, generate=150, precision="fp16", cache="quantized"),
    run(LLAMA, "generate", batch=2, seq=256, generate=150, beams=4, cache="quantized"),
    run(LLAMA, "generate", cache="quantized-hqq"),
    run(LLAMA, "generate", batch=1, seq=128, generate=400, cache="quantized-hqq"),
    run(QWEN3, "generate", batch=2, seq=256, generate=150, cache="quantized-hqq"),
    run(LLAMA, "generate", cache="quantized-fp8"),
    run(LLAMA, "generate", batch=1, seq=100, generate=300, cache="quantized-fp8"),
    run(GPT2, "generate", batch=2, seq=128, generate=100, cache="quantized-fp8"),
    run(LLAMA, "generate", batch=1, seq=100, generate=300, cache="quantized"),
    run(LLAMA, "generate", batch=2, seq=60, generate=700, cache="quantized"),
    run(QWEN3, "generate", batch=3, seq=77, generate=300, cache="quantized-hqq"),
    run(LLAMA, "generate", batch=1, seq=200, generate=1500, cache="quantized"),
    run(LLAMA, "generate", batch=2, seq=90, generate=1500, cache="quantized-hqq"),
    run(GPT2, "generate", batch=1, seq=40, generate=700, cache="quantized-hqq", precision="fp16"),
]
UNSEEN = [
    run(
        {**GEMMA2, "sliding_window": 48},
        "generate",
        batch=3,
        seq=37,
        generate=150,
        attention="eager",
    ),
    run(
        MISTRAL,
        "generate",
        batch=1,
        seq=333,
        generate=45,
        precision="fp32",
        beams=3,
        cache="static",
    ),
    run(
        {**FALCON, "alibi": True, "multi_query": False},
        "generate",
        batch=3,
        seq=130,
        generate=70,
        precision="fp16",
    ),
    run(
        {
            "model_type": "bloom",
            "hidden_size": 768,
            "n_layer": 3,
            "n_head": 12,
            "vocab_size": 60000,
        },
        "generate",
        batch=2,
        seq=90,
        generate=40,
        beams=3,
    ),
    run(
        {"model_type": "mpt", "d_model": 768, "n_layers": 3, "n_heads": 12, "vocab_size": 50000},
        "generate",
        batch=1,
        seq=77,
        generate=60,
        precision="fp32",
    ),
    run({**MLA, "first_k_dense_replace": 1}, "generate", batch=2, seq=150, generate=40, beams=2),
    run(MLA, "generate", batch=3, seq=90, generate=50, cache="static"),
    run(
        {**MAMBA, "model_type": "mamba2", "num_heads": 16, "head_dim": 64},
        "generate",
        batch=5,
        seq=61,
        generate=40,
        precision="fp32",
    ),
    run(
        {
            **HYBRID,
            "model_type": "bamba",
            "attn_layer_indices": [1, 3],
            "mamba_n_heads": 16,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 64,
        },
        "generate",
        batch=2,
        seq=120,
        generate=40,
    ),
    run(
        {
            **HYBRID,
            "model_type": "zamba2",
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "mamba_ngroups": 1,
            "n_mamba_heads": 16,
        },
        "generate",
        batch=2,
        seq=70,
        generate=30,
    ),
    run(
        {
            **HYBRID,
            "model_type": "falcon_h1",
            "mamba_n_heads": 16,
            "mamba_d_head": 64,
            "mamba_d_ssm": 1024,
            "mamba_d_state": 64,
        },
        "generate",
        batch=3,
        seq=100,
        generate=40,
    ),
    run({**BART, "vocab_size": 32000}, "generate", batch=3, seq=55, generate=33, beams=5),
    run(T5, "generate", batch=2, seq=99, generate=30, beams=4, cache="static"),
    run(
        {**SEQ2SEQ, "model_type": "mbart"},
        "generate",
        batch=3,
        seq=70,
        generate=40,
        precision="fp16",
        beams=2,
    ),
    run(PHI3, "generate", batch=3, seq=64, generate=40, quant="nf4"),
    run(MISTRAL, "generate", batch=2, seq=250, generate=30, quant="int8", beams=2),
    run(NEOX, "generate", batch=7, seq=19, generate=90, precision="fp16", cache="static"),
    run(
        {
            **SMALL,
            "model_type": "olmoe",
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "intermediate_size": 512,
        },
        "generate",
        batch=3,
        seq=91,
        generate=50,
        attention="eager",
    ),
    run(
        {
            **SMALL,
            "model_type": "qwen2_moe",
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        "generate",
        batch=1,
        seq=45,
        generate=60,
        precision="fp16",
        beams=4,
    ),
    run(
        {**GEMMA3, "vocab_size": 262144},
        "generate",
        batch=2,
        seq=513,
        generate=80,
        precision="fp16",
    ),
    run(
        {
            "model_type": "switch_transformers",
            "d_model": 512,
            "d_ff": 1024,
            "num_layers": 4,
            "num_decoder_layers": 4,
            "num_sparse_encoder_layers": 2,
            "num_sparse_decoder_layers": 2,
            "num_heads": 8,
            "num_experts": 4,
            "decoder_start_token_id": 0,
        },
        "generate",
        batch=2,
        seq=64,
        generate=40,
    ),
    run(
        {
            "model_type": "led",
            "d_model": 512,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 1024,
            "decoder_ffn_dim": 1024,
            "attention_window": 128,
            "vocab_size": 50265,
            "decoder_start_token_id": 2,
        },
        "generate",
        batch=2,
        seq=300,
        generate=40,
    ),
    run({**SMALL, "model_type": "diffllama"}, "generate", batch=2, seq=100, generate=40),
    run(
        {
            "model_type": "ctrl",
            "n_embd": 512,
            "n_layer": 3,
            "n_head": 8,
            "dff": 1024,
            "vocab_size": 5000,
        },
        "generate",
        batch=2,
        seq=60,
        generate=40,
    ),
    run(
        {"model_type": "rwkv", "hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 20000},
        "generate",
        batch=2,
        seq=60,
        generate=40,
    ),
]
"""Written down before any of them was recorded or estimated. A Whisper was among them: cuDNN, which
its convolutions need, does not run over the stand-in driver."""
SCHEMES = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-dq": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}
TORCHAO = {"torchao-int8": "Int8WeightOnlyConfig", "torchao-float8": "Float8WeightOnlyConfig"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Meter:
    """Peaks by phase; a decode pass begins where the model is called again."""

    def __init__(self, model):
        self.peaks = {}
        self._phase = "load"
        self._calls = 0
        model.register_forward_pre_hook(self._called, prepend=True)

    def turn(self, phase):
        """End the phase that runs."""
        stats = torch.cuda.memory_stats()
        self.peaks[self._phase] = [
            stats[f"{rung}_bytes.all.peak"] for rung in ("requested", "allocated", "reserved")
        ]
        torch.cuda.reset_peak_memory_stats()
        self._phase = phase

    def _called(self, *_):
        self._calls += 1
        if self._calls == 2:
            self.turn("decode")


def greedy(model, ids, mask, plan):
    """Greedy decoding as ``generate`` does it: token by token, scores in fp32."""
    config = model.config
    if plan.get("cache") == "static":
        places = plan["seq"] + plan["generate"] - 1
        cache = transformers.StaticCache(config=config, max_cache_len=places)
    else:
        cache = transformers.DynamicCache(config=config)
    unfinished = torch.ones(ids.shape[0], dtype=torch.long, device="cuda")
    tokens = ids
    for made in range(plan["generate"]):
        given = tokens if not made else tokens[:, -1:]
        positions = (mask.cumsum(-1) - 1)[:, -given.shape[1] :]
        named = {} if config.model_type in ("opt",) else {"position_ids": positions}
        out = model(given.clone(), past_key_values=cache, use_cache=True, logits_to_keep=1, **named)
        scores = out.logits[:, -1].to(copy=True, dtype=torch.float32)
        chosen = scores.argmax(-1) * unfinished
        tokens = torch.cat([tokens, chosen[:, None]], dim=-1)
        mask = torch.cat([mask, mask.new_ones((mask.shape[0], 1))], dim=-1)
        del out
    return tokens


def ended_by_count(count):
    """What ``generate`` asks before every token: is there one to make?"""
    left = iter([True] * count + [False])
    return lambda *_, **__: next(left)


def without_triton():
    """Let cuBLAS make products of a single column.

    PyTorch's own Triton kernel for them takes nothing beside its output, and needs a real driver.
    """
    native = getattr(torch, "_native", None)
    if native is not None:
        native.triton_utils.deregister_op_overrides()


def without_compiling():
    """Let optimum-quanto's extension do what its host code does: it allocates what it returns.

    Its kernels need CUDA's headers to be compiled, and a real driver to run.
    """
    import optimum.quanto  # noqa: F401
    from optimum.quanto.library.extensions.extension import get_extension

    class Host:
        @staticmethod
        def unpack(packed, bits):
            return packed.new_empty((packed.shape[0] * (8 // bits), *packed.shape[1:]))

    get_extension("quanto_cuda")._lib = Host


def quantisation(scheme, dtype):
    """What ``from_pretrained`` is told."""
    if scheme in TORCHAO:
        import torchao.quantization

        return transformers.TorchAoConfig(getattr(torchao.quantization, TORCHAO[scheme])())
    settings = dict(SCHEMES[scheme])
    if "load_in_4bit" in settings:
        settings["bnb_4bit_compute_dtype"] = dtype
    return transformers.BitsAndBytesConfig(**settings)


def placed(one):
    """The model of a run on the GPU, as a script loads it."""
    plan = one["plan"]
    config = transformers.AutoConfig.for_model(**one["config"])
    auto = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    attention, dtype = plan.get("attention"), DTYPES[plan["precision"]]
    model = auto.from_config(config, attn_implementation=attention).to(dtype)
    if "quant" not in plan:
        return model.to("cuda").eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del model
        return auto.from_pretrained(
            folder,
            quantization_config=quantisation(plan["quant"], dtype),
            device_map={"": 0},
            dtype=dtype,
        ).eval()


def kept_in(cache):
    """What ``generate`` is told of its cache."""
    if cache in ("dynamic", "sliding"):
        return {}
    name, _, backend = cache.partition("-")
    if name != "quantized":
        return {"cache_implementation": cache.replace("-", "_")}
    settings = {"cache_config": {"backend": backend}} if backend else {}
    return {"cache_implementation": name, **settings}


def record(one):
    """Peaks of one run by phase."""
    plan = one["plan"]
    model = placed(one)
    meter = Meter(model)
    meter.turn("forward" if one["loop"] == "forward" else "prefill")
    with torch.no_grad():
        ids = torch.ones(plan["batch"], plan["seq"], dtype=torch.long, device="cuda")
        mask = None if one["loop"] == "forward" else torch.ones_like(ids)
        if mask is None:
            out = model(ids)
        elif one["loop"] == "greedy":
            out = greedy(model, ids, mask, plan)
        else:
            model._has_unfinished_sequences = ended_by_count(plan["generate"])
            out = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=plan["generate"],
                do_sample=False,
                num_beams=plan.get("beams", 1),
                disable_compile=True,
                **({"pad_token_id": 0} if model.generation_config.pad_token_id is None else {}),
                **kept_in(plan.get("cache", "dynamic")),
            )
    meter.turn("end")
    del out, model
    return meter.peaks


def write(output, runs):
    """The whole file, after every run."""
    environment = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    lines = ",\n".join(json.dumps(one) for one in runs)
    head = json.dumps({"environment": environment})[:-1]
    output.write_text(f'{head}, "runs": [\n{lines}\n]}}\n')


def chosen_runs(arguments):
    """The list that is asked for."""
    if arguments.quantised:
        return QUANTISED
    if arguments.caches:
        return CACHES
    if arguments.more:
        return MORE
    if arguments.unseen:
        return UNSEEN
    return KINDS if arguments.kinds else RUNS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=pathlib.Path)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--quantised", action="store_true", help="runs over quantised bases")
    chosen.add_argument("--kinds", action="store_true", help="many kinds of models, one run each")
    chosen.add_argument("--more", action="store_true", help="more kinds and settings")
    chosen.add_argument("--unseen", action="store_true", help="kinds that were planned ahead")
    chosen.add_argument("--caches", action="store_true", help="offloaded and quantised caches")
    arguments = parser.parse_args()
    output = arguments.output
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    without_triton()
    if arguments.caches:
        without_compiling()
    known = {}
    if output.exists():
        kept = json.loads(output.read_text())["runs"]
        known = {
            json.dumps({k: r[k] for k in ("config", "loop", "plan")}): r["peaks"] for r in kept
        }
    runs = []
    for one in chosen_runs(arguments):
        started = time.monotonic()
        peaks = known.get(json.dumps(one))
        if peaks is None:
            peaks = record(one)
            gc.collect()
            if "bitsandbytes.functional" in sys.modules:
                # Tables of codes on the GPU, which a fresh process makes anew.
                sys.modules["bitsandbytes.functional"].name2qmap.clear()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            seconds = time.monotonic() - started
            print(one["config"]["model_type"], one["plan"], f"{seconds:.1f} s", flush=True)
        runs.append({**one, "peaks": peaks})
        write(output, runs)
    os._exit(0)


if __name__ == "__main__":
    main()
