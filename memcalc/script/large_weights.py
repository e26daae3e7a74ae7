"""Leaves weights of large models uninitialized on the host: untouched pages take no memory."""

from collections.abc import Mapping
from typing import Any

import torch

from memcalc.engine.patches import Patches
from memcalc.engine.torch_internals import DRAWS

_DRAWN = 200_000_000
"""Numbers of weights that are drawn as on any machine; all further ones stay zeros."""
_LARGE = 1 << 20
"""Elements of a weight that is worth leaving out."""
NOT_HERE = (
    "weights of {} are not on this machine: their shapes are those of its config (--weights "
    "downloads them)"
)
"""What is assumed of a checkpoint that is not fetched."""
_OF_HUB = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
_SAID = "weights beyond the first 0.2 billion are not initialized on the host (--weights does so)"


def of_hub(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``from_pretrained`` that locate files on the hub, as ``revision``."""
    return {key: options[key] for key in _OF_HUB if key in options}


def install(patches: Patches) -> None:
    """Patch torch.nn.init to leave large host weights undrawn after the first 200 million."""
    drawn = [0]

    def draw(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.is_cuda or tensor.numel() < _LARGE:
            return original(tensor, *args, **kwargs)
        drawn[0] += tensor.numel()
        if drawn[0] <= _DRAWN:
            return original(tensor, *args, **kwargs)
        patches.say(_SAID)
        return tensor

    for name in DRAWS:
        patches.wrap(torch.nn.init, name, draw)
