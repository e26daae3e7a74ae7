"""The file of cases that were recorded on one GPU, or over the stand-in driver for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


def write(path: str, cases: dict[str, list[int]], **more: Any) -> None:
    """Write which PyTorch and GPU it was, what else there is to say, then a line for each case."""
    head = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        **more,
    }
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in cases.items())
    opened = json.dumps(head, indent=1)[:-2]
    Path(path).write_text(f'{opened},\n "cases": {{\n{rows}\n }}\n}}\n')
