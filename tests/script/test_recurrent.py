"""Recurrent layers of scripts, as PyTorch's CUDA code runs them through cuDNN."""

import pytest

# Bytes allocated, and most of them since the last line, after the layers are made and in each
# forward and backward: PyTorch's CUDA build (2.11 and 2.13 alike) over the stand-in driver at
# capability 9.0, with the sizes that cuDNN 9.20 answers.
CASES = {
    "LSTM(96, 200, 2, bidirectional=True, dropout=0.3)": (
        {},
        [
            [5760000, 11523072],
            [18071040, 62111232],
            [18656256, 68597248],
            [23831040, 68408832],
            [18656256, 74357248],
        ],
    ),
    "LSTM(96, 200, 2, bidirectional=True, dropout=0.2)": (
        {"autocast": True},
        [
            [5760000, 11523072],
            [18885632, 57283072],
            [18391040, 60450816],
            [24648704, 63315456],
            [18391040, 66213888],
        ],
    ),
    "GRU(96, 320, 3, bias=False)": (
        {},
        [
            [6535680, 13048320],
            [15398912, 49004032],
            [14391296, 63442432],
            [22729216, 56749056],
            [14391296, 70772736],
        ],
    ),
    "GRU(96, 320, bias=False)": (
        {"autocast": True},
        [
            [1605120, 3202560],
            [4002304, 14091776],
            [3505152, 15933952],
            [5477376, 15758848],
            [3505152, 17409024],
        ],
    ),
    "RNN(96, 64)": (
        {},
        [
            [41472, 83456],
            [306176, 9971200],
            [270336, 10204160],
            [347648, 10089472],
            [270336, 10245632],
        ],
    ),
    "LSTM(96, 256, proj_size=64)": (
        {},
        [
            [729088, 1458176],
            [2787840, 13661184],
            [1657856, 14606336],
            [3516928, 14479360],
            [1657856, 15335424],
        ],
    ),
    "LSTM(96, 160, 2)": (
        {"packed": True},
        [
            [1484800, 2969600],
            [3020800, 22507520],
            [3219456, 24522752],
            [5509632, 24425984],
            [3219456, 26007552],
        ],
    ),
    "LSTM(96, 512, 2)": (
        {"train": False},
        [
            [13402112, 26804224],
            [14299136, 47997440],
            [14299136, 14299136],
            [14299136, 48894464],
            [14299136, 14299136],
        ],
    ),
}
SCRIPT = """
import torch
from torch import nn

def seen():
    print("seen", torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()

layers = nn.{layers}.cuda().train({train})
seen()
for _ in range(2):
    x = torch.randn(24, 12, 96, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled={autocast}):
        y, state = layers({given})
        seen()
    if {train}:
        (y.data if {packed} else y).float().mean().backward()
    seen()
"""
PACKED = "nn.utils.rnn.pack_padded_sequence(x, torch.tensor([24] * 5 + [7] * 7))"


@pytest.mark.parametrize("layers", CASES)
def test_a_layer_takes_what_cudnn_takes(run, capfd, layers):
    settings, expected = CASES[layers]
    given = {"train": True, "autocast": False, "packed": False, **settings}
    given["given"] = PACKED if given["packed"] else "x"
    run(SCRIPT.format(layers=layers, **given), gpu="H100 SXM")
    lines = capfd.readouterr().err.splitlines()
    found = [line.split()[1:] for line in lines if line.startswith("seen")]
    assert [[int(size) for size in sizes] for sizes in found] == expected


def test_without_cudnn_a_layer_is_made_of_cells(run, capfd):
    run(
        """
        import torch
        torch.backends.cudnn.enabled = False
        layer = torch.nn.LSTM(96, 200, 2, batch_first=True, bidirectional=True, dropout=0.3).cuda()
        y, _ = layer(torch.randn(16, 50, 96, device="cuda"))
        print("seen", torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
        """,
        gpu="H100 SXM",
    )
    assert "seen 78498304 79727104" in capfd.readouterr().err
