"""What a simulated GPU says of itself."""

from __future__ import annotations

from memcalc.kernels.architectures import Architecture
from memcalc.units import MIB


class Properties:
    """As ``torch.cuda.get_device_properties``."""

    def __init__(
        self,
        name: str,
        capability: tuple[int, int],
        total: int | None,
        processors: int,
        architecture: Architecture,
    ) -> None:
        self.name, self.total_memory = name, total
        self.major, self.minor = capability
        self.multi_processor_count = processors
        self.max_threads_per_multi_processor = architecture.threads
        self.warp_size, self.max_threads_per_block = 32, 1024
        self.clock_rate = self.memory_clock_rate = self.memory_bus_width = 0
        self.regs_per_multiprocessor = 65536
        self.is_integrated = self.is_multi_gpu_board = 0
        self.gcnArchName = f"sm_{self.major}{self.minor}"
        self.uuid = "00000000-0000-0000-0000-000000000000"
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0
        self.L2_cache_size = (40 if architecture.sm80 else 4) * MIB
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = architecture.shared_memory_of_block
        self.shared_memory_per_multiprocessor = architecture.shared_memory

    def __repr__(self) -> str:
        total = "unknown" if self.total_memory is None else f"{self.total_memory // MIB}MB"
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={total}, "
            f"multi_processor_count={self.multi_processor_count})"
        )
