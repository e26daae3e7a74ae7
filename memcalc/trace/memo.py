"""What operators make of tensors like these, worked out once.

In PyTorch's fake mode the sizes of an operator's results are worked out anew at each call, mostly
in Python, and a training repeats the same calls: in each layer and in each step. What comes out
follows from metadata alone (sizes, strides, types, dispatch keys), so it is kept by these. PyTorch
does so as well (``FakeTensorMode.cache``); which operators are left out follows its rules, and
its fake tensors are made here for a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    has_kernel,
    without_dispatch,
)
from memcalc.trace.torch_private.tensors import dispatch_keys, make_subclass, pointers_are_null

MOST = 1 << 15
"""Calls that are kept; beyond, new ones are worked out each time."""
_META = torch.device("meta")
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


_FORM = "_memcalc_form"
"""Attribute of fake tensors: the number of their form, once they were described."""
_forms: dict[Any, _Form] = {}
_watched = [False]
_numbers: dict[Any, int] = {}
_kept: dict[bool, dict[Any, Outcome]] = {True: {}, False: {}}


def number_of(func: Any) -> int:
    """What an operator is called in descriptions of its calls."""
    return _numbers.setdefault(func, len(_numbers))


def outcomes(*, with_kernels: bool) -> dict[Any, Outcome]:
    """What this process has kept, by descriptions of calls.

    Args:
        with_kernels: outcomes say what the call's kernel takes.
    """
    return _kept[with_kernels]


class _Form(int):
    """A number for what of a tensor decides on results; a copy of the tensor has another."""

    def __deepcopy__(self, memo: object) -> None:
        return None


@contextmanager
def forms_watched() -> Iterator[None]:
    """Forms stay on tensors inside: whoever gives a tensor other ``data`` calls ``forget``."""
    before, _watched[0] = _watched[0], True
    try:
        yield
    finally:
        _watched[0] = before


def forget(values: Any) -> None:
    """Metadata of these tensors, or of those in lists among them, may have changed."""
    for value in values:
        if isinstance(value, FakeTensor):
            value.__dict__.pop(_FORM, None)
        elif isinstance(value, list | tuple):
            forget(value)


def _form_of(tensor: Any) -> _Form:
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
        found = _forms[form] = _Form(len(_forms))
    if _watched[0]:
        tensor.__dict__[_FORM] = found
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

    Of elementwise operators they do not; an optimizer gives these another number at each step.
    """
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
    parts: list[Any] = [number, torch.get_default_dtype()]
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
            form = value.__dict__.get(_FORM)
            # Not a number that could be an argument: what is one comes with its type before it.
            parts.append(_form_of(value) if form is None else form)
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


class Outcome:
    """What a call makes, and what else follows from metadata.

    Args:
        outputs: how each is made again.
        container: list or tuple where the operator returns several; ``None``: one.
        flops: floating-point operations; ``None``: not known.
        call: what the kernel takes.
    """

    __slots__ = ("call", "container", "decides", "flops", "noted", "outputs")

    def __init__(self, outputs: list[Any], container: Any, flops: int | None, call: Any) -> None:
        self.outputs = outputs
        self.container = container
        self.flops = flops
        self.call = call
        self.decides = True
        """A program could decide by what comes out."""
        self.noted = True
        """Values that it could decide by may go in, come out or be overwritten."""

    def again(self, args: tuple[Any, ...], mode: FakeTensorMode) -> Any:
        """Make it again, of these, in this mode."""
        with without_dispatch():
            if self.container is None:
                return self.outputs[0](args, mode)
            made = [output(args, mode) for output in self.outputs]
        return made if self.container is list else tuple(made)


def outcome_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, flops: int | None, call: Any
) -> Outcome | None:
    """How a call's results are made again; ``None``: they are not understood."""
    several = type(out) if isinstance(out, list | tuple) else None
    if several not in (None, list, tuple):
        return None
    given, by_name = _storages(args), _storages(tuple(kwargs.values()))
    made: set[int] = set()
    outputs = []
    for one in out if several else (out,):
        output = _output(one, args, given, made)
        if output is None:
            return None
        outputs.append(output)
        if isinstance(one, FakeTensor):
            storage = one.untyped_storage()._cdata
            if storage in by_name:
                return None
            made.add(storage)
    return Outcome(outputs, several, flops, call)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor that shows the same; what ``aten.alias`` makes of a fake tensor."""
    if not isinstance(tensor, FakeTensor):
        same: torch.Tensor = _aten.alias.default(tensor)
        return same
    with without_dispatch():
        shape, stride = tuple(tensor.shape), tensor.stride()
        offset = int(tensor.storage_offset())
        make = _view(0, None, offset, shape, stride, tensor.dtype, _dress(tensor))
        made: torch.Tensor = make((tensor,), tensor.fake_mode)
        return made


_Place = tuple[int, int | None]


def _storages(args: tuple[Any, ...]) -> dict[int, _Place]:
    """Where among arguments each storage is found."""
    found: dict[int, _Place] = {}
    for place, value in enumerate(args):
        for index, item in enumerate(value if isinstance(value, list | tuple) else (value,)):
            if isinstance(item, FakeTensor):
                at = (place, index if item is not value else None)
                found.setdefault(item.untyped_storage()._cdata, at)
    return found


def _identical(one: Any, args: tuple[Any, ...]) -> _Place | None:
    """Where among arguments this very tensor is."""
    for place, value in enumerate(args):
        for index, item in enumerate(value if isinstance(value, list | tuple) else (value,)):
            if item is one:
                return place, (index if item is not value else None)
    return None


def _output(
    one: Any, args: tuple[Any, ...], given: dict[int, _Place], made: set[int]
) -> Callable[..., Any] | None:
    if one is None:
        return lambda args, mode: None
    if not isinstance(one, FakeTensor):
        return None
    place = _identical(one, args)
    if place is not None:
        return _given(*place)
    strange = one.layout is not torch.strided or one.is_conj() or one.is_neg()
    if strange or type(one) is not FakeTensor or one.constant is not None or one.requires_grad:
        return None
    storage = one.untyped_storage()
    dress = _dress(one)
    form = tuple(one.shape), one.stride()
    if storage._cdata in made and storage._cdata not in given:
        return None
    if storage._cdata in given:
        return _view(*given[storage._cdata], int(one.storage_offset()), *form, one.dtype, dress)
    own = _span(*form) * one.element_size()
    if one.storage_offset() or storage.nbytes() != own:
        return None
    return _fresh(*form, one.dtype, dress)


def _span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _at(args: tuple[Any, ...], place: int, index: int | None) -> Any:
    return args[place] if index is None else args[place][index]


def _given(place: int, index: int | None) -> Callable[..., Any]:
    return lambda args, mode: _at(args, place, index)


def _fresh(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, dress: Any
) -> Callable[..., Any]:
    empty = torch.empty_strided

    def make(args: Any, mode: FakeTensorMode) -> Any:
        return dress(empty(shape, stride, dtype=dtype, device=_META), mode)

    return make


def _view(
    place: int,
    index: int | None,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    dress: Any,
) -> Callable[..., Any]:
    empty = torch.empty

    def make(args: Any, mode: FakeTensorMode) -> Any:
        shown = args[place] if index is None else args[place][index]
        view = empty(0, dtype=dtype, device=_META)
        return dress(view.set_(shown.untyped_storage(), offset, shape, stride), mode)

    return make


def _dress(like: FakeTensor) -> Callable[[torch.Tensor, FakeTensorMode], Any]:
    """What makes a fake tensor of a meta tensor: on the device of another."""
    attributes, place = dict(like.__dict__), like.fake_device
    # A mode serves one run, and knows what that run made.
    del attributes["fake_mode"]
    attributes.pop(_FORM, None)
    form: _Form | None = None

    def dress(plain: torch.Tensor, mode: FakeTensorMode) -> Any:
        nonlocal form
        fake = make_subclass(
            FakeTensor, plain, False, dispatch_device=True, device_for_backend_keys=place
        )
        pointers_are_null(fake)
        own = fake.__dict__
        own.update(attributes)
        own["fake_mode"] = mode
        if _watched[0]:
            if form is None:
                form = _form_of(fake)
            own[_FORM] = form
        return fake

    return dress
