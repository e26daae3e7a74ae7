"""Networks of volumes whose convolutions are recorded, each built by its own package.

MONAI and nnU-Net's dynamic_network_architectures have to be installed; see record_cudnn.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from torch import nn

LEVELS = 6
WIDTHS = (32, 64, 128, 256, 320, 320)


def nnunet(sides: Sequence[int], *, residual: bool = False, flat: int = 0) -> nn.Module:
    """nnU-Net's 3d_fullres: its plain encoder, or the one of residual blocks.

    Args:
        sides: channels, and those of a patch; each halves as long as eight are left.
        residual: ResEnc M.
        flat: how many levels leave the first axis alone, as with thick slices.
    """
    nets = importlib.import_module("dynamic_network_architectures.architectures.unet")
    (channels, *left), strides = sides, [[1, 1, 1]]
    for level in range(1, LEVELS):
        step = [
            2 if n >= 8 and n % 2 == 0 and (at or level >= flat) else 1 for at, n in enumerate(left)
        ]
        if step == [1, 1, 1]:
            break
        strides.append(step)
        left = [n // by for n, by in zip(left, step, strict=True)]
    levels = len(strides)
    shared: dict[str, Any] = {
        "n_stages": levels,
        "features_per_stage": WIDTHS[:levels],
        "conv_op": nn.Conv3d,
        "kernel_sizes": [[1 if level < flat else 3, 3, 3] for level in range(levels)],
        "strides": strides,
        "num_classes": 3,
        "n_conv_per_stage_decoder": 1 if residual else 2,
        "conv_bias": True,
        "norm_op": nn.InstanceNorm3d,
        "nonlin": nn.LeakyReLU,
        "deep_supervision": True,
    }
    if residual:
        blocks = (1, 3, 4, 6, 6, 6)[:levels]
        return nets.ResidualEncoderUNet(channels, n_blocks_per_stage=blocks, **shared)
    return nets.PlainConvUNet(channels, n_conv_per_stage=2, **shared)


def nnunet_residual(sides: Sequence[int]) -> nn.Module:
    """nnU-Net's ResEnc M."""
    return nnunet(sides, residual=True)


def nnunet_flat(sides: Sequence[int]) -> nn.Module:
    """The first level leaves thick slices alone."""
    return nnunet(sides, flat=1)


def nnunet_flatter(sides: Sequence[int]) -> nn.Module:
    """The first two levels do."""
    return nnunet(sides, flat=2)


def _monai(name: str, **options: Any) -> nn.Module:
    nets = importlib.import_module("monai.networks.nets")
    return getattr(nets, name)(spatial_dims=3, **options)


def unet(_: Sequence[int]) -> nn.Module:
    """MONAI's tutorials: residual units of 16 to 256 channels."""
    widths = {"channels": (16, 32, 64, 128, 256), "strides": (2, 2, 2, 2), "num_res_units": 2}
    return _monai("UNet", in_channels=1, out_channels=2, **widths)


def basic_unet(_: Sequence[int]) -> nn.Module:
    """MONAI's BasicUNet."""
    return _monai("BasicUNet", in_channels=1, out_channels=2)


def segresnet(_: Sequence[int]) -> nn.Module:
    """MONAI's SegResNet, as its tutorial on brain tumours has it."""
    depth = {"blocks_down": (1, 2, 2, 4), "blocks_up": (1, 1, 1), "init_filters": 16}
    return _monai("SegResNet", in_channels=4, out_channels=3, **depth)


def vnet(_: Sequence[int]) -> nn.Module:
    """MONAI's VNet."""
    return _monai("VNet", in_channels=1, out_channels=2)


def unetr(_: Sequence[int]) -> nn.Module:
    """MONAI's UNETR."""
    nets = importlib.import_module("monai.networks.nets")
    return nets.UNETR(1, 14, (96, 96, 96), feature_size=16)


def swin_unetr(_: Sequence[int]) -> nn.Module:
    """MONAI's Swin UNETR with 48 features."""
    return _monai("SwinUNETR", in_channels=1, out_channels=14, feature_size=48)


def densenet121(_: Sequence[int]) -> nn.Module:
    """MONAI's DenseNet-121, to classify volumes."""
    return _monai("DenseNet121", in_channels=1, out_channels=2)


def resnet18(_: Sequence[int]) -> nn.Module:
    """MedicalNet's ResNet-18."""
    return _monai("resnet18", n_input_channels=1, num_classes=2)


def resnet50(_: Sequence[int]) -> nn.Module:
    """MedicalNet's ResNet-50."""
    return _monai("resnet50", n_input_channels=1, num_classes=2)


def attention_unet(_: Sequence[int]) -> nn.Module:
    """MONAI's AttentionUnet."""
    widths = {"channels": (16, 32, 64, 128, 256), "strides": (2, 2, 2, 2)}
    return _monai("AttentionUnet", in_channels=1, out_channels=2, **widths)
