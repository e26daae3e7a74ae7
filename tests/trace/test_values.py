"""Values read from the simulated device agree with each other, as those of zeroed memory would."""


def reads():
    import torch

    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder

    device.use("cuda")
    overrides.install()
    recorder = TraceRecorder(None)
    with device.fake_mode(), recorder:
        on = device.NAME
        scores = torch.randn(6, 4, device=on)
        chosen = scores.topk(2, dim=1).indices
        gates = torch.zeros(6, 4, device=on).scatter(1, chosen, 1)
        assert sum(gates.long().sum(0).tolist()) == 12
        assert torch.arange(5, device=on).sum().item() == 10
        assert bool((scores >= 0).all())
        assert not scores.isnan().any()
        hit = (chosen.sum(1) >= 0).nonzero()
        assert [int(row[0]) for row in hit] == list(range(6))
        assert f"expert_{hit[3][0]}" == "expert_3"

        ids = torch.ones(2, 3, dtype=torch.long, device=on)
        assert ids.sum().item() == 6
        ids[:, -1:].zero_()
        # Written through a view: what was known of the whole is gone, and it reads as zeros.
        assert ids.sum().item() == 0
        steps = torch.full((), 3.0, device=on)
        steps += 1
        assert steps.item() == 4
        assert torch.unique_consecutive(ids.sum(1)).numel() == 1
        assert ids[ids.bool()].shape == (6,)
    return list(recorder.assumptions)


def test_what_is_read_is_what_zeroed_memory_gives(forked):
    assert any("taken to be those of zeros" in text for text in forked(reads))
