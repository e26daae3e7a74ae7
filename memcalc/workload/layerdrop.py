"""Layers that a model leaves out at random in training (LayerDrop): all of them run here.

Steps that leave layers out take less; the first that leaves none out takes what the answer says.
Source: Fan, Grave, Joulin, "Reducing Transformer Depth on Demand with Structured Dropout", 2019;
transformers 5.23, ``encoder_layerdrop``, ``decoder_layerdrop`` and ``layerdrop`` of configs, which
models read there or copy to attributes of their modules.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_NAME = re.compile("layer_?drop")


def notes(model: torch.nn.Module) -> Iterator[str]:
    """Yield a note if the model has LayerDrop, with its probabilities."""
    shares = sorted({share for _, _, share in _find_layerdrops(model)})
    if shares:
        listed = ", ".join(f"{share:g}" for share in shares)
        yield f"no layer is dropped at random (layerdrop {listed})"


@contextmanager
def off(model: torch.nn.Module) -> Iterator[None]:
    """Set all LayerDrop probabilities to 0 inside the block."""
    places = list(_find_layerdrops(model))
    for holder, name, _ in places:
        setattr(holder, name, 0.0)
    try:
        yield
    finally:
        for holder, name, share in places:
            setattr(holder, name, share)


def _find_layerdrops(model: torch.nn.Module) -> Iterator[tuple[Any, str, float]]:
    """Yield the module or config, attribute name and value of each LayerDrop probability."""
    seen: set[int] = set()
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            if holder is None or id(holder) in seen:
                continue
            seen.add(id(holder))
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                # Few attributes are numbers above zero: their names are looked at last.
                if type(value) in (int, float) and value > 0 and _NAME.search(name):
                    yield holder, name, float(value)
