"""CNNs of transformers that are not bundled: ``cnn_models:NAME``, with this folder on the path."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

_RESNET: dict[str, Any] = {"hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet_18": ("ResNet", {**_RESNET, "depths": [2, 2, 2, 2]}),
    "resnet_34": ("ResNet", {**_RESNET, "depths": [3, 4, 6, 3]}),
    "resnet_101": ("ResNet", {"depths": [3, 4, 23, 3]}),
    "regnet_y_040": ("RegNet", {}),
    "mobilenet_v1": ("MobileNetV1", {}),
    "mobilenet_v2": ("MobileNetV2", {"tf_padding": False}),
    "convnext_tiny": ("ConvNext", {}),
    "convnext_v2_tiny": ("ConvNextV2", {}),
    "efficientnet_b0": (
        "EfficientNet",
        {
            "width_coefficient": 1.0,
            "depth_coefficient": 1.0,
            "image_size": 224,
            "hidden_dim": 1280,
        },
    ),
    "bit_50": ("Bit", {}),
}


def _made(name: str, settings: dict[str, Any]) -> nn.Module:
    import transformers

    model = getattr(transformers, f"{name}ForImageClassification")
    config = getattr(transformers, f"{name}Config")
    return model(config(num_labels=1000, **settings))  # type: ignore[no-any-return]


def __getattr__(name: str) -> Callable[[], nn.Module]:
    if name in _MODELS:
        return functools.partial(_made, *_MODELS[name])
    raise AttributeError(name)
