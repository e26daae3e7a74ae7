"""How help sorts the options of a plan, and what it shows as examples."""

from __future__ import annotations

GROUPS = {
    "Model": (
        "task",
        "quant",
        "kbit_prepare",
        "lora",
        "freeze",
        "attention",
        "cudnn_attention",
        "liger",
        "compile",
    ),
    "Training": (
        *("preset", "optim", "optim_args", "precision", "batch", "seq", "grad_accum"),
        *("checkpointing", "checkpoint_every", "loss_chunks", "max_grad_norm", "set_to_none"),
        "optim_in_backward",
    ),
    "Loop": ("loop", "keep_outputs", "kv_cache", "padding", "inputs", "resume", "eval"),
    "Inference": ("inference", "generate", "cache", "beams", "engine", "engine_args"),
    "GPU": (
        *("gpu", "torch", "transformers", "cudnn_benchmark"),
        "module_loading",
        "alloc_conf",
        "target",
    ),
    "Several GPUs": (
        "devices",
        "parallel",
        "parallel_args",
        "rank",
        "accelerate_config",
        "deepspeed",
    ),
}
"""Fields of a plan under the headings of help; one that is nowhere stands under the last."""
OTHERS = "More of the plan"

EXAMPLES = {
    "estimate": (
        "memcalc estimate gpt2 --gpu t4",
        "memcalc estimate meta-llama/Llama-3.1-8B --preset qlora --gpu 4090",
        "memcalc estimate gpt2 --optim adamw,adam8bit,adafactor",
    ),
    "fit": (
        "memcalc fit gpt2 --gpu t4",
        "memcalc fit gpt2 --gpus --batch 16",
        "memcalc fit gpt2 --gpu t4 --grid",
    ),
    "explain": (
        "memcalc explain gpt2 --gpu t4 --batch 64",
        "memcalc explain gpt2 --under '8 GiB'",
        "memcalc explain gpt2 --no-remedies --plot",
    ),
    "suggest": (
        "memcalc suggest Qwen/Qwen2.5-1.5B --gpu 4090",
        "memcalc suggest gpt2 --gpu t4 --batch 64 --as trainer",
        "memcalc suggest gpt2 --gpu t4 --tokens 1e9 --price 0.35",
    ),
    "report": (
        "memcalc report gpt2 --gpu t4 -o step.html",
        "memcalc report gpt2 -o step.svg",
        "memcalc report gpt2 -o step.pickle   # for pytorch.org/memory_viz",
    ),
    "measure": (
        "memcalc measure gpt2 --optim adamw,adam8bit",
        "memcalc measure gpt2 --device cpu --batch 1 --seq 64",
        "memcalc measure --suite runs.toml -o runs.json",
    ),
    "run": (
        "memcalc run -- python train.py",
        "memcalc run -o run.json -- torchrun --nproc-per-node 2 train.py",
        "memcalc run -- bash -c 'python a.py; python b.py'",
    ),
    "simulate": (
        "memcalc simulate --gpu t4 -- python train.py --epochs 1",
        "memcalc simulate --steps 5 -o sim.json -- python -m my_package.train",
        "memcalc simulate --gpu a100-80gb -- trl sft --config sft.yaml",
    ),
    "compare": (
        "memcalc compare runs.json",
        "memcalc compare evidence/*.json",
    ),
    "check": (
        "memcalc check",
        "memcalc check memcalc.toml --format github",
        "memcalc check --update-baseline",
    ),
    "init": (
        "memcalc init gpt2",
        "memcalc init gpt2 --gpu t4 --batch 16",
        "memcalc init gpt2 --optim adam8bit",
    ),
    "diff": (
        "memcalc diff before.json after.json",
        "memcalc diff 'gpt2 --batch 4' 'gpt2 --batch 4 --checkpointing'",
        "memcalc diff old.toml new.toml -f markdown",
    ),
    "show": (
        "memcalc show run.json -v",
        "memcalc show snapshot.pickle",
        "memcalc show snapshot.pickle --alloc-conf expandable_segments:True",
    ),
    "doctor": ("memcalc doctor",),
}
"""What to type, by verb."""
