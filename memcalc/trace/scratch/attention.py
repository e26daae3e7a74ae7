"""What attention kernels take on CUDA beside their outputs.

Readers as in ``memcalc.trace.scratch.readers``: they find shapes in the arguments of an operator.
"""

from __future__ import annotations

from typing import Any

from memcalc.kernels.formulas import KernelCall
from memcalc.trace.scratch.shapes import bytes_of


def _flash_forward(args: tuple[Any, ...], out: Any) -> KernelCall:
    # The dispatcher leaves trailing defaults out.
    query, key = args[:2]
    dropout = args[3] if len(args) > 3 else 0.0
    return KernelCall("flash_forward", (tuple(query.shape), key.shape[2], dropout))


def _flash_backward(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Source: flash_attn attention_backward.cu, ``_flash_attention_backward`` (2.11 and 2.13)."""
    grad, query, key, _, out_of_forward = args[:5]
    copies = _copied(grad, out_of_forward)
    return KernelCall(
        "flash_backward", (tuple(query.shape), tuple(key.shape), query.element_size(), copies)
    )


def _efficient_forward(args: tuple[Any, ...], out: Any) -> KernelCall:
    query, _, value = args[:3]
    return KernelCall(
        "efficient_forward", (tuple(query.shape), value.shape[-1], query.element_size())
    )


def _efficient_backward(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Source: attention_backward.cu, ``_efficient_attention_backward`` (2.11 and 2.13)."""
    grad, query, key, value = args[:4]
    sizes = tuple(query.shape), tuple(key.shape), value.shape[-1], query.element_size()
    return KernelCall("efficient_backward", (*sizes, _copied(grad)))


def _copied(*tensors: Any) -> tuple[int, ...]:
    """Bytes of those (B, H, S, D) that do not lie in rows of (B, S, H, D)."""
    turned = (tensor.transpose(1, 2) for tensor in tensors)
    return tuple(bytes_of(t) for t in turned if not t.is_contiguous())


def _cudnn_forward(args: tuple[Any, ...], out: Any) -> KernelCall:
    return KernelCall("cudnn_forward")


def _cudnn_backward(args: tuple[Any, ...], out: Any) -> KernelCall:
    """A gradient whose last dimension is strided is copied first.

    Source: aten/src/ATen/native/cudnn/MHA.cpp, ``run_cudnn_SDP_bprop`` (2.11 and 2.13).
    """
    grad, query, key, value = args[:4]
    copied = 0 if grad.stride(-1) == 1 else bytes_of(grad)
    return KernelCall(
        "cudnn_backward", (tuple(query.shape), tuple(key.shape), value.shape[-1], copied)
    )


READERS = {
    "_scaled_dot_product_flash_attention": _flash_forward,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention": _cudnn_forward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
