"""Code maps, scales and codes against the installed bitsandbytes."""

import bitsandbytes  # noqa: F401  registers torch.ops.bitsandbytes
import pytest
import torch
from bitsandbytes.functional import create_dynamic_map
from hypothesis import given
from hypothesis import strategies as st
from reference import dequantize, quantize

from memcalc.optim.blockwise import code_tables, dynamic_map, nearest_code

THEIRS = torch.ops.bitsandbytes


def some_values(n, seed, spread, signed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, generator=generator) * 10 ** (
        spread * torch.randn(n, generator=generator)
    )
    return values if signed else values.square()


@pytest.mark.parametrize("signed", [True, False])
def test_the_code_map_is_that_of_bitsandbytes_bit_for_bit(signed):
    assert torch.equal(dynamic_map(signed=signed), create_dynamic_map(signed=signed))


@given(
    n=st.integers(1, 1500), seed=st.integers(0, 99), spread=st.floats(0, 3), signed=st.booleans()
)
def test_codes_and_scales_are_those_of_the_exact_kernel_of_bitsandbytes(n, seed, spread, signed):
    values, qmap = some_values(n, seed, spread, signed), dynamic_map(signed=signed)

    codes, absmax = quantize(values, qmap)

    # float64 input takes bitsandbytes' generic kernel, an argmin over all 256 codes.
    their_codes, their_absmax = THEIRS.quantize_blockwise(values.double(), qmap, 256)
    assert torch.equal(codes, their_codes)
    assert torch.equal(absmax, their_absmax)


@given(n=st.integers(1, 1500), seed=st.integers(0, 99), signed=st.booleans())
def test_dequantized_values_are_those_of_bitsandbytes(n, seed, signed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator)
    absmax = torch.rand(-(-n // 256), generator=generator)
    qmap = dynamic_map(signed=signed)
    theirs = THEIRS.dequantize_blockwise(codes, absmax, qmap, 256, torch.float32)
    assert torch.equal(dequantize(codes, absmax, qmap), theirs)


def test_a_small_second_moment_is_not_rounded_to_zero():
    qmap = dynamic_map(signed=False)
    values = torch.tensor([0.0, 1e-30, 1e-7, 1.0])
    assert nearest_code(values, qmap).tolist() == [0, 0, 0, 255]
    assert nearest_code(values, qmap, keep_nonzero=True).tolist() == [0, 1, 1, 255]


@pytest.mark.parametrize("signed", [True, False])
def test_the_tables_give_the_nearest_code_in_every_bin_and_around_every_boundary(signed):
    tables, qmap = code_tables(torch.device("cpu"), signed=signed), dynamic_map(signed=signed)
    top = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int64)
    bits = torch.cat([top << 16, (top << 16) + 0xFFFF, (top << 16) + 0x8000]).to(torch.int32)
    edges = tables.upper[:-1]
    around = [torch.nextafter(edges, torch.tensor(end)) for end in (-2.0, 2.0)]
    values = torch.cat([bits.view(torch.float32), edges, *around])
    values = values[values.isfinite() & (values.abs() <= 1) & (values >= (-1 if signed else 0))]
    low = tables.low[(values.view(torch.int32) >> 16) & 0xFFFF]
    found = (low + (values >= tables.upper[low])).to(torch.uint8)
    assert torch.equal(found, nearest_code(values, qmap, keep_nonzero=not signed))
