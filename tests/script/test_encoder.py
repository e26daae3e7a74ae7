"""The fused layers that nn.TransformerEncoder evaluates with, as PyTorch's CUDA code runs them."""

import pytest

# What was allocated (+) and freed (-) in KiB by the second call of each over the stand-in driver
# (2.13): a layer of 256 numbers in 4 heads, 1024 inside, 8 texts of 64 tokens.
PACKED = ["+1536", "+1536", "-1536", "+512", "+0.5", "+512", "-512", "-0.5"]
NORM = ["+512", "+2", "+2", "-2", "-2", "-512"]
CASES = {
    "layer(x)": [
        *("+1536", "+512", "+512", "-512", "-1536", *NORM),
        *("+2048", "+512", "-2048", *NORM, "-512", "-512"),
    ],
    "layer(x, src_key_padding_mask=mask)": [
        *("+2", *PACKED, "-512", "+512", "+512", "-512", "-1536", *NORM),
        *("+2048", "+512", "-2048", *NORM, "-512", "-2", "-512"),
    ],
    "many(x, x, x)[0]": [
        *("+1536", "+1536", "-1536", "+512", "+512", "+512", "-512", "+128", "-512", "-1536"),
        *("-128", "-512"),
    ],
}
SCRIPT = """
import torch
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).cuda().eval()
many = torch.nn.MultiheadAttention(256, 4, batch_first=True).cuda().eval()
x = torch.randn(8, 64, 256, device="cuda")
mask = torch.zeros(8, 64, dtype=torch.bool, device="cuda")
ledger = torch.cuda.MemPool._memory
with torch.no_grad():
    y = {call}
    begin = len(ledger.events)
    y = {call}
    for event in ledger.events[begin:]:
        size = ledger.entries[event if event >= 0 else ~event].bytes / 1024
        print("seen", "+-"[event < 0] + f"{{size:g}}")
"""


@pytest.mark.parametrize("call", CASES)
def test_a_fused_layer_takes_what_it_takes_on_a_gpu(run, capfd, monkeypatch, call):
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    run(SCRIPT.format(call=call), gpu="H100 SXM", cudnn_attention=False)
    lines = capfd.readouterr().err.splitlines()
    assert [line.removeprefix("seen ") for line in lines if line.startswith("seen")] == CASES[call]


def test_padding_is_kept_and_said_to_be(run):
    found = run(
        """
        import torch
        model = torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.ones(4, 16, 64, device="cuda")
        model(x).sum().backward()
        optimizer.step()
        mask = torch.zeros(4, 16, dtype=torch.bool)
        mask[:, 10:] = True
        with torch.no_grad():
            assert model.eval()(x, src_key_padding_mask=mask.cuda()).shape == x.shape
        """
    )
    assert found.ending.code == 0
    said = found.traced.prediction.assumptions
    assert any("evaluates with its padding" in one for one in said)
