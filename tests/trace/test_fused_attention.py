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


def masks():
    """Bytes of the gradients of two alike masks whose rows are padded to sixteen numbers."""
    import torch

    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder

    device.use("cuda")
    overrides.install()
    found = []
    with device.fake_mode(), TraceRecorder(None):
        for _ in range(2):
            query = torch.zeros(1, 2, 36, 32, device=device.NAME)
            mask = torch.zeros(1, 2, 36, 36, device=device.NAME)
            call = torch.ops.aten._scaled_dot_product_efficient_attention
            out, rows, *seeds = call(query, query, query, mask, True)
            back = torch.ops.aten._scaled_dot_product_efficient_attention_backward
            found.append(
                back(query, query, query, query, mask, out, rows, *seeds, 0.0, [True] * 4)[3]
            )
    return [grad.untyped_storage().nbytes() for grad in found]


def test_the_gradient_of_a_second_mask_lies_in_whole_rows_too(forked):
    assert forked(masks) == [2 * 36 * 48 * 4] * 2
