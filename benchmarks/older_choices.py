"""Ask a release of PyTorch which attention kernel it would run, case by case.

Usage: memcalc simulate --backend driver --python PYTHON --gpu GPU -- python older_choices.py

The digits that it prints (0: plain, 1: flash, 2: memory-efficient, 3: cuDNN) are kept by release
and GPU in evidence/standin/attention-choices.json.
"""

import itertools

TYPES = "float16", "bfloat16", "float32"
WIDTHS = 32, 60, 64, 72, 128, 160, 256
LENGTHS = (64, 64), (64, 128), (1, 64)
MASKS = None, "added", "of texts"
BATCH, HEADS = 2, 4


def cases():
    """Type, width of a head, lengths, mask, dropout, causal, with gradients."""
    chances, switches = (0.0, 0.1), (False, True)
    grid = itertools.product(TYPES, WIDTHS, LENGTHS, MASKS, chances, switches, switches)
    return [case for case in grid if not (case[3] and case[5])]


def main():
    import torch

    chosen = []
    for kind, width, (rows, columns), masked, dropout, causal, grad in cases():
        dtype = getattr(torch, kind)
        given = [
            torch.empty(BATCH, HEADS, length, width, device="cuda", dtype=dtype, requires_grad=grad)
            for length in (rows, columns, columns)
        ]
        mask = None
        if masked:
            mask_type = dtype if masked == "added" else torch.bool
            mask = torch.zeros(BATCH, 1, rows, columns, device="cuda", dtype=mask_type)
        chosen.append(torch._fused_sdp_choice(*given, mask, dropout, causal))
    print("choices", "".join(map(str, chosen)), flush=True)


if __name__ == "__main__":
    main()
