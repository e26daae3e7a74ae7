"""Programs whose tensors a second stream uses."""

from memcalc.estimation.engine import engine
from memcalc.estimation.replays import list_calls
from memcalc.records.replay import UNLIMITED, Card, Wanted

MIB = 1 << 20
OFFLOADS = """
    import torch
    side, weight = torch.cuda.Stream(), torch.ones(1024, 1024, device="cuda", requires_grad=True)

    def pack(tensor):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            kept = tensor.to("cpu", non_blocking=True)
        tensor.record_stream(side)
        return kept

    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(3):
        rows = torch.ones(4096, 1024, device="cuda")
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.cuda()):
            for _ in range(3):
                rows = torch.tanh(rows @ weight)
        rows.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_waits_for_a_stream_is_reserved_and_said_and_replays_alike(run):
    found = run(OFFLOADS)
    traced = found.traced
    peak = traced.prediction.peak
    assert peak.requested <= peak.allocated < peak.reserved - 32 * MIB
    assert "of what shows as cached waits for another stream" in traced.prediction.assumptions[0]
    (replay,) = engine.player()(
        list(list_calls(traced.trace)), [Card(capacity=UNLIMITED)], Wanted()
    )
    assert [(one.allocated, one.reserved) for one in replay.intervals] == [
        (one.allocated, one.reserved) for one in traced.trace.readings
    ]
