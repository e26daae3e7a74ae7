"""Gradients of what is put into places are new tensors, also where nobody else holds what came.

Figures are those of PyTorch 2.13's own CUDA code over the stand-in driver.
"""

SCRIPT = """
import torch
one = torch.ones(512, 1024, device="cuda", requires_grad=True)
other = torch.ones(512, 1024, device="cuda", requires_grad=True)
places = torch.zeros(512, 1024, dtype=torch.long, device="cuda")
rows = torch.arange(256, device="cuda")
mask = (torch.arange(512) % 3 == 0).cuda()[:, None].expand(512, 1024)
LEAVES = [one, other]
def back(out):
    out.backward(torch.zeros_like(out))
CASES = {
    "scatter": lambda: back((one * 1).scatter(0, places, other)),
    "scatter of a number": lambda: back((one * 1).scatter(0, places, 1.0)),
    "index_put": lambda: back((one * 1).index_put((rows,), other[:256])),
    "put": lambda: back((one * 1).put(places[:4], other[:4])),
    "index_fill": lambda: back((one * 1).index_fill(0, rows, 0.0)),
    "index_copy": lambda: back((one * 1).index_copy(0, rows, other[:256])),
    "index_add": lambda: back((one * 1).index_add(0, rows, other[:256])),
    "take": lambda: back((one * 1).take(places[:2])),
    "masked_select": lambda: back((one * 1).masked_select(mask)),
    "masked_scatter": lambda: back((one * 1).masked_scatter(mask, other)),
}
"""
CASES = {
    "scatter": 10_485_760,
    "scatter of a number": 8_388_608,
    "index_put": 10_485_760,
    "put": 10_485_760,
    "index_fill": 8_388_608,
    "index_copy": 10_485_760,
    "index_add": 8_388_608,
    "take": 4_210_688,
    "masked_select": 10_324_480,
    "masked_scatter": 11_186_176,
}


def test_they_take_what_they_take_on_a_gpu(peaks):
    assert peaks(SCRIPT, gpu="A100-80GB") == CASES
