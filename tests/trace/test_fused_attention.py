"""In which order fused attention takes its outputs and what it needs beside them."""


def program(dropout, queries):
    """Sizes of what a forward call takes, in order, and the places of what outlives it."""
    import torch

    from memcalc.kernels.target import Target
    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder
    from memcalc.trace.scratch.kernels import TargetKernelMemory

    device.use("cuda")
    overrides.install()
    target = Target(capability=(8, 0), multiprocessors=108, torch=(2, 13))
    with device.fake_mode(), TraceRecorder(TargetKernelMemory(target)) as recorder:
        query, key = (
            torch.zeros(1, 2, length, 64, device=device.NAME, dtype=torch.half, requires_grad=True)
            for length in (queries, 4096)
        )
        first = len(recorder.ledger.events)
        out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, key, dropout)
        events = recorder.ledger.events[first:]
        assert out[0].grad_fn is not None
    born = [event for event in events if event >= 0]
    sizes = [recorder.ledger.entries[number].bytes for number in born]
    return sizes, [place for place, number in enumerate(born) if ~number not in events]


def test_a_seed_made_anew_outlives_the_one_before_it(forked):
    sizes, living = forked(program, 0.1, 4096)
    assert sizes == [2 * 4096 * 64 * 2, 2 * 4096 * 4, 16, 8, 16]
    assert living == [0, 1, 3, 4]


def test_parts_of_split_keys_lie_before_the_seed(forked):
    sizes, living = forked(program, 0.0, 64)
    *_, seed, unused = sizes
    assert (seed, unused) == (16, 8)
    assert len(sizes) == 6
    assert living == [0, 1, 4, 5]
