"""The constants of PyTorch's CUDA caching allocator.

Source: ``c10/core/AllocatorConfig.h`` of torch 2.11 and 2.13 (``kSmallBuffer``, ``kMinBlockSize``,
``kSmallSize``, ``kMinLargeAlloc``, ``kRoundLarge``, ``large_segment_size_``).
"""

from __future__ import annotations

from typing import Final

from memcalc.units import MIB

MIN_BLOCK: Final = 512
"""Every request is rounded up to a multiple of this."""

SMALL_REQUEST: Final = 1 * MIB
"""A rounded request up to this size lives in the small pool."""

SMALL_SEGMENT: Final = 2 * MIB
"""What the small pool takes from the device at a time."""

LARGE_SEGMENT: Final = 20 * MIB
"""What the large pool takes for a request below ``MIN_OWN_SEGMENT``."""

MIN_OWN_SEGMENT: Final = 10 * MIB
"""A request of at least this size gets a segment of its own size..."""

SEGMENT_ROUNDING: Final = 2 * MIB
"""...rounded up to a multiple of this."""

DEVICE_PAGE: Final = 2 * MIB
"""Physical memory behind ``cudaMalloc`` and ``cuMemCreate`` comes in pages of this size.

Source: ``cuMemGetAllocationGranularity`` on data-center GPUs since Volta.
"""

UNLIMITED: Final = (1 << 64) - 1
"""``std::numeric_limits<size_t>::max()``: a limit that is not set."""

DIVISION_INTERVALS: Final = 16
"""Powers of two from 1 MiB to 32 GiB that ``roundup_power2_divisions`` can set apart."""
