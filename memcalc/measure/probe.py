"""Reports PyTorch's abilities as JSON, in a process that a broken driver may end."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def main() -> None:
    """Print one JSON object on standard output."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = _torch()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    said = [" ".join(str(warning.message).split())[:300] for warning in caught]
    found["warnings"] = [text for text in said if "CUDA" in text or "driver" in text]
    json.dump(found, sys.stdout)


def _torch() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": str(torch.__version__), "gpus": []}
    found["cuda"] = torch.version.cuda
    found["available"] = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if found["available"] else 0):
        properties = torch.cuda.get_device_properties(index)
        found["gpus"].append(
            {
                "name": properties.name,
                "uuid": str(getattr(properties, "uuid", "")),
                "total": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return found


if __name__ == "__main__":
    main()
