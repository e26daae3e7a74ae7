"""What a user can do about errors of PyTorch and other packages."""

from __future__ import annotations

import re
import traceback

_ADVICE = (
    (
        re.compile("environment variable RANK expected, but not set"),
        "the script is one process of several: put torchrun --nproc-per-node and its number of "
        "GPUs before it, in place of python.",
    ),
    (
        re.compile("Failed to find C compiler|No suitable C compiler", re.IGNORECASE),
        "Triton compiles its launcher with a C compiler, and there is none: install gcc or clang, "
        "or set CC.",
    ),
    (
        re.compile(r"Python\.h: No such file"),
        "Triton compiles against Python's headers, and they are not here: install python3-dev.",
    ),
    (
        re.compile(r"No module named 'flash_attn'|flash_attn.* doesn't seem to be installed"),
        "flash-attn runs here as it does on a GPU, and it is not installed.",
    ),
    (
        re.compile("No operator found for `memory_efficient_attention"),
        "this xformers has no kernels for this PyTorch: install the release that is built for it.",
    ),
    (
        re.compile("cusparseLt"),
        "only cuSPARSELt knows the size of 2:4 sparse weights, and it needs a GPU: they are not "
        "simulated.",
    ),
    (
        # Its found_inf has the shape [1] (torch/distributed/fsdp/sharded_grad_scaler.py, 2.14).
        re.compile(r"\b_fused_adam\b.*: output with shape \[\] doesn't match"),
        "a GPU raises this error too: PyTorch's fused Adam does not take the GradScaler of FSDP "
        "version 1 (pytorch issue 140514). Use an optimizer that is not fused: --optim-arg "
        'fused=false here, optim="adamw_torch" in TrainingArguments, or bf16.',
    ),
    (
        re.compile("invalid device ordinal"),
        "the program uses a GPU that is not there: name as many as it uses, such as --gpu 2xa10g.",
    ),
    (
        re.compile("Error building extension"),
        "a package compiles an extension of its own, which fails here: install a release of it "
        "that goes with this PyTorch, or do without it.",
    ),
)


def advice(error: BaseException | None) -> str:
    """What a user can do about an error, in one sentence; empty: unknown."""
    while error is not None:
        raised_in = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
        said = f"{' '.join(raised_in)}: {error}"
        for pattern, sentence in _ADVICE:
            if pattern.search(said):
                return sentence
        error = error.__cause__ or error.__context__
    return ""
