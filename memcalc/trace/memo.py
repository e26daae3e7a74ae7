"""What of a call decides on its results: descriptions by which ``memcalc.trace.outcomes`` are kept.

Results follow from metadata alone (sizes, strides, types, dispatch keys). Which operators are left
out follows the rules of PyTorch's own ``FakeTensorMode.cache``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import (
    FakeTensor,
    OpOverload,
    has_kernel,
)
from memcalc.trace.torch_private.tensors import dispatch_keys

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout)
_REAL = frozenset((torch.Tensor, torch.nn.Parameter))
_NUMBERS = frozenset((int, float, bool))
_VALUES = frozenset((*_PLAIN, torch.memory_format, torch.Size))
_TAGS = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_aten = torch.ops.aten
_LEFT_OUT = {
    # They tell real tensors from fake ones, or what they show depends on a storage's size.
    _aten.lift_fresh.default,
    _aten.lift_fresh_copy.default,
    _aten.lift.default,
    _aten.as_strided.default,
    _aten.as_strided_.default,
    _aten._nested_tensor_from_tensor_list.default,
}


FORM = "_memcalc_form"
"""Attribute of fake tensors: the number of their form, once they were described."""
_forms: dict[Any, Form] = {}
watched = [False]
_numbers: dict[Any, int] = {}


def number_of(func: Any) -> int:
    """What an operator is called in descriptions of its calls."""
    return _numbers.setdefault(func, len(_numbers))


class Form(int):
    """A number for what of a tensor decides on results; a copy of the tensor has another."""

    def __deepcopy__(self, memo: object) -> None:
        return None


@contextmanager
def forms_watched() -> Iterator[None]:
    """Forms stay on tensors inside: whoever gives a tensor other ``data`` calls ``forget``."""
    before, watched[0] = watched[0], True
    try:
        yield
    finally:
        watched[0] = before


def forget(values: Any) -> None:
    """Metadata of these tensors, or of those in lists among them, may have changed."""
    for value in values:
        if isinstance(value, FakeTensor):
            value.__dict__.pop(FORM, None)
        elif isinstance(value, list | tuple):
            forget(value)


def form_of(tensor: Any) -> Form:
    """What results follow from, of one tensor."""
    form = (
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        dispatch_keys(tensor).raw_repr(),
        # Keys stay when a parameter is given data of another device (FSDP1's offload).
        tensor.fake_device,
    )
    found = _forms.get(form)
    if found is None:
        found = _forms[form] = Form(len(_forms))
    if watched[0]:
        tensor.__dict__[FORM] = found
    return found


def can_be_kept(func: Any) -> bool:
    """The operator's results follow from metadata of what it is given."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    if func in _LEFT_OUT or any(tag in func.tags for tag in _TAGS):
        return False
    return not (func.is_view and has_kernel(func.name(), "CompositeImplicitAutograd"))


def numbers_decide(func: Any) -> bool:
    """The values of numbers that the operator is given may decide on sizes, not their types alone.

    Of elementwise operators they do not; an optimizer gives these another number at each step. A
    base that is one makes no tensor of itself.
    """
    if func is torch.ops.aten.pow.Scalar:
        return True
    name = func._schema.name.removeprefix("aten::")
    several = name.startswith(("_foreach_", "_fused_")) and name != "_foreach_norm"
    return not (several or torch.Tag.pointwise in func.tags)


def described(number: int, by_value: bool, args: Any, kwargs: dict[str, Any]) -> Any:
    """What a call is kept by; ``None``: it is not kept.

    Args:
        number: of the operator.
        by_value: see ``numbers_decide``.
        args: by place.
        kwargs: by name.
    """
    # What is made in inference mode has no keys of autograd.
    made_as = ~number if torch.is_inference_mode_enabled() else number
    parts: list[Any] = [made_as, torch.get_default_dtype()]
    try:
        if not _describe(args, by_value, parts):
            return None
        if kwargs:
            parts.append(tuple(kwargs))
            if not _describe(kwargs.values(), by_value, parts):
                return None
    except RuntimeError:
        # Sparse tensors have no strides.
        return None
    return tuple(parts)


def _describe(values: Any, by_value: bool, parts: list[Any]) -> bool:
    for value in values:
        kind = type(value)
        if isinstance(value, FakeTensor):
            if value.constant is not None:
                return False
            form = value.__dict__.get(FORM)
            # Not a number that could be an argument: what is one comes with its type before it.
            parts.append(form_of(value) if form is None else form)
        elif kind in _REAL:
            # A single number may count as a plain one, which nothing shows.
            if not value.is_cpu or not value.dim():
                return False
            keys = dispatch_keys(value).raw_repr()
            parts += (kind, value.shape, value.stride(), value.storage_offset(), value.dtype, keys)
        elif kind in _NUMBERS:
            parts.append(kind)
            if by_value:
                parts.append(value)
        elif kind is list or kind is tuple:
            parts.append((kind, len(value)))
            if not _describe(value, by_value, parts):
                return False
        elif kind in _VALUES:
            parts.append(value)
        else:
            return False
    return True
