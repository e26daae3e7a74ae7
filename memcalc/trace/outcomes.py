"""What operators make of tensors like these, worked out once.

In PyTorch's fake mode the sizes of an operator's results are worked out anew at each call, mostly
in Python, and a training repeats the same calls: in each layer and in each step. So what comes out
is kept, by what decides on it (``memcalc.trace.memo``). PyTorch does so as well
(``FakeTensorMode.cache``); fake tensors are made here for a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace.memo import FORM, Form, form_of, watched
from memcalc.trace.overlaps import span
from memcalc.trace.torch_private.dispatch import FakeTensor, FakeTensorMode, without_dispatch
from memcalc.trace.torch_private.tensors import make_subclass, pointers_are_null, storage_key

MOST = 1 << 15
"""Calls that are kept; beyond, new ones are worked out each time."""
_META = torch.device("meta")
_aten = torch.ops.aten


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


_kept: dict[bool, dict[Any, Outcome]] = {True: {}, False: {}}


def outcomes(*, with_kernels: bool) -> dict[Any, Outcome]:
    """What this process has kept, by descriptions of calls.

    Args:
        with_kernels: outcomes say what the call's kernel takes.
    """
    return _kept[with_kernels]


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
            storage = storage_key(one)
            if storage in by_name:
                return None
            made.add(storage)
    return Outcome(outputs, several, flops, call)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor that shows the same; what ``aten.alias`` makes of a fake tensor."""
    if not isinstance(tensor, FakeTensor) or _is_strange(tensor):
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
                found.setdefault(storage_key(item), at)
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
    if one is None or type(one) is int:
        # A number follows from sizes, as the longest row does that attention tells its backward.
        return lambda args, mode: one
    if not isinstance(one, FakeTensor):
        return None
    place = _identical(one, args)
    if place is not None:
        return _given(*place)
    if _is_strange(one) or type(one) is not FakeTensor or one.constant is not None:
        return None
    if one.requires_grad:
        return None
    storage = one.untyped_storage()
    dress = _dress(one)
    form = tuple(one.shape), one.stride()
    if storage._cdata in made and storage._cdata not in given:
        return None
    if storage._cdata in given:
        return _view(*given[storage._cdata], int(one.storage_offset()), *form, one.dtype, dress)
    own = span(*form) * one.element_size()
    if one.storage_offset() or storage.nbytes() != own:
        return None
    return _fresh(*form, one.dtype, dress)


def _is_strange(tensor: torch.Tensor) -> bool:
    """It has keys of dispatch that what is made again would not have."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return True
    return tensor._is_zerotensor()


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
        if torch.is_inference_mode_enabled() and not shown.is_inference():
            # A view is an inference tensor where what it shows is one, and not elsewhere.
            with torch.inference_mode(False):
                return view_of(shown, mode)
        return view_of(shown, mode)

    def view_of(shown: torch.Tensor, mode: FakeTensorMode) -> Any:
        view = empty(0, dtype=dtype, device=_META)
        return dress(view.set_(shown.untyped_storage(), offset, shape, stride), mode)

    return make


def _dress(like: FakeTensor) -> Callable[[torch.Tensor, FakeTensorMode], Any]:
    """What makes a fake tensor of a meta tensor: on the device of another."""
    attributes, place = dict(like.__dict__), like.fake_device
    # A mode serves one run, and knows what that run made.
    del attributes["fake_mode"]
    attributes.pop(FORM, None)
    form: Form | None = None

    def dress(plain: torch.Tensor, mode: FakeTensorMode) -> Any:
        nonlocal form
        fake = make_subclass(
            FakeTensor, plain, False, dispatch_device=True, device_for_backend_keys=place
        )
        pointers_are_null(fake)
        own = fake.__dict__
        own.update(attributes)
        own["fake_mode"] = mode
        if watched[0]:
            if form is None:
                form = form_of(fake)
            own[FORM] = form
        return fake

    return dress
