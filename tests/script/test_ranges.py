"""Quantization-aware training takes what PyTorch's CUDA code takes over the stand-in driver."""

SCRIPT = """
import torch
import torch.ao.quantization as q

x = torch.randn(64, 40, 30, device="cuda", requires_grad=True)
scale, point = (torch.ones(40, device="cuda", requires_grad=True) for _ in range(2))
channels = {"qscheme": torch.per_channel_symmetric, "dtype": torch.qint8, "ch_axis": 1}

def trained(kind, *args, **how):
    rounding = kind(*args, **how).cuda()
    return lambda: rounding(x).sum().backward()

def learned(of, *args):
    return lambda: of(x, *args, 0, 255, 1.0).sum().backward()

CASES = {
    "one range": trained(q.FakeQuantize, q.MovingAverageMinMaxObserver, 0, 255),
    "channels": trained(q.FakeQuantize, q.PerChannelMinMaxObserver, -128, 127, **channels),
    "fused": trained(q.FusedMovingAvgObsFakeQuantize, q.MovingAverageMinMaxObserver, 0, 255),
    "set": lambda: torch.fake_quantize_per_tensor_affine(x, 1.0, 0, 0, 255).sum().backward(),
    "learned": learned(torch._fake_quantize_learnable_per_tensor_affine, scale[:1], point[:1]),
    "learned channels": learned(
        torch._fake_quantize_learnable_per_channel_affine, scale, point, 1),
}
LEAVES = x, scale, point
"""
TAKEN = {
    "one range": 385_536,
    "channels": 385_024,
    "fused": 385_024,
    "set": 385_024,
    "learned": 923_648,
    "learned channels": 924_160,
}


def test_rounding_to_ranges_takes_what_it_takes_on_a_gpu(peaks):
    assert peaks(SCRIPT, gpu="t4") == TAKEN


def test_ranges_of_channels_get_their_size_when_they_are_first_observed(run):
    found = run(
        """
import torch
import torch.ao.quantization as q
rounding = q.FusedMovingAvgObsFakeQuantize(
    q.MovingAveragePerChannelMinMaxObserver, -128, 127,
    qscheme=torch.per_channel_symmetric, dtype=torch.qint8,
).cuda()
rounding(torch.ones(3000, 8, device="cuda"))
observer = rounding.activation_post_process
assert rounding.scale.shape == observer.min_val.shape == (3000,)
taken = torch.cuda.memory_stats()["allocated_bytes.all.current"]
assert taken == 4 * 12288 + 3 * 512, taken
""",
        gpu="t4",
    )
    assert found.ending.code == 0
