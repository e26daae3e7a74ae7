"""Generations of GPUs: the rows against what NVIDIA's guide and PyTorch's sources say."""

import pytest

from memcalc.kernels.architectures import ARCHITECTURES

KIB = 1 << 10


@pytest.mark.parametrize(
    ("capability", "threads", "shared"),
    # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
    [((6, 0), 2048, 64), ((6, 1), 2048, 96), ((7, 0), 2048, 96), ((7, 5), 1024, 64),
     ((8, 0), 2048, 164), ((8, 6), 1536, 100), ((8, 7), 1536, 164), ((8, 9), 1536, 100),
     ((9, 0), 2048, 228), ((10, 0), 2048, 228), ((10, 3), 2048, 228), ((12, 0), 1536, 100),
     ((12, 1), 1536, 100)],
)  # fmt: skip
def test_a_multiprocessor_is_as_large_as_the_guide_says(capability, threads, shared):
    row = ARCHITECTURES[capability]
    assert (row.threads, row.shared_memory) == (threads, shared * KIB)


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_a_row_does_not_contradict_itself(capability):
    row = ARCHITECTURES[capability]
    assert row.shared_memory_of_block <= row.shared_memory
    # What came with 8.0 came together.
    assert row.sm80 == row.bf16 == row.tf32 == (capability >= (8, 0))
    assert (row.tile_bytes > 0) == (capability >= (7, 0))
    assert row.cub == min(max(capability[0], 7), 9)
    assert row.cudnn_attention_first == (row.cudnn_attention != "8.0")
