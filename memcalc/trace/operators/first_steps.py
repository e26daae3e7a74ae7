"""Steps of optimizers as PyTorch 2.0 made them: what is worked out lives on to the end of the step.

Of each only the lists of tensors that it makes are here, in their order, and which tensors it
writes to. Later releases write into one list where 2.0 made another. Source: torch/optim/*.py,
``_multi_tensor_*`` (2.0.1); held against what 2.0.1 and 2.1.2 allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from memcalc.trace import device
from memcalc.trace.operators import release
from memcalc.trace.torch_private.choices import wrap_foreach_step

_SINCE = (2, 1)
"""From this release on steps are those of today, but for a few lists of one tensor."""
_aten = torch.ops.aten
Step = Callable[..., None]
Tensors = list[torch.Tensor]


def install() -> None:
    """Let optimizers step so wherever it is 2.0 that runs."""
    for name, own in _STEPS.items():
        wrap_foreach_step(name, _before(own))


def _before(own: Step) -> Callable[[Step], Step]:
    def wrap(original: Step) -> Step:
        def step(params: Tensors, *rest: Any, **more: Any) -> None:
            simulated = bool(params) and params[0].device.type == device.NAME
            old = simulated and not release.is_since(*_SINCE)
            (own if old else original)(params, *rest, **more)

        return step

    return wrap


def _groups(*lists: Tensors) -> Iterator[Any]:
    """Those of one type after the other."""
    given: Any = list(lists)
    for group, _ in Optimizer._group_tensors_by_device_and_dtype(given).values():
        yield group


def _prepared(grads: Any, params: Any, decay: float, maximize: bool) -> Any:
    if maximize:
        grads = _aten._foreach_neg(grads)
    return _aten._foreach_add(grads, params, alpha=decay) if decay else grads


def _moved(averages: Any, squares: Any, grads: Any) -> None:
    _aten._foreach_mul_(averages, 0.9)
    _aten._foreach_add_(averages, grads, alpha=0.1)
    _aten._foreach_mul_(squares, 0.999)
    _aten._foreach_addcmul_(squares, grads, grads, 0.001)


def _adam(
    params: Tensors,
    grads: Tensors,
    averages: Tensors,
    squares: Tensors,
    largest: Tensors,
    steps: Tensors,
    *_: Any,
    amsgrad: bool = False,
    weight_decay: float = 0,
    maximize: bool = False,
    capturable: bool = False,
    decoupled_weight_decay: bool = False,
    **__: Any,
) -> None:
    for group in _groups(params, grads, averages, squares, largest, steps):
        weights, given, average, square, most, step = group
        _aten._foreach_add_(step, 1)
        decay = 0 if decoupled_weight_decay else weight_decay
        given = _prepared(given, weights, decay, maximize)
        _moved(average, square, given)
        if capturable:
            corrections = [[torch.pow(0.9, one) for one in step] for _ in range(2)]
            size, root = (
                _aten._foreach_div(corrections[0], 1.0),
                _aten._foreach_sqrt(corrections[1]),
            )
        roots = _aten._foreach_sqrt(most if amsgrad else square)
        if capturable:
            _aten._foreach_div_(roots, _aten._foreach_mul(root, size))
            small = _aten._foreach_div(size, 1.0)
            below = _aten._foreach_add(roots, small)
        else:
            below = _aten._foreach_add(roots, 1e-8)
        _aten._foreach_addcdiv_(weights, average, below)


def _nadam(
    params: Tensors,
    grads: Tensors,
    averages: Tensors,
    squares: Tensors,
    products: Tensors,
    steps: Tensors,
    *,
    weight_decay: float = 0,
    **_: Any,
) -> None:
    for group in _groups(params, grads, averages, squares, products, steps):
        weights, given, average, square, _, step = group
        _aten._foreach_add_(step, 1)
        given = _prepared(given, weights, weight_decay, False)
        _moved(average, square, given)
        roots = _aten._foreach_sqrt(square)
        below = _aten._foreach_add(roots, 1e-8)
        _aten._foreach_addcdiv_(weights, average, below)


def _radam(
    params: Tensors,
    grads: Tensors,
    averages: Tensors,
    squares: Tensors,
    steps: Tensors,
    *,
    weight_decay: float = 0,
    **_: Any,
) -> None:
    for group in _groups(params, grads, averages, squares, steps):
        weights, given, average, square, step = group
        _aten._foreach_add_(step, 1)
        given = _prepared(given, weights, weight_decay, False)
        _moved(average, square, given)
        roots = _aten._foreach_sqrt(square)
        below = _aten._foreach_div(roots, 1.0)
        _aten._foreach_addcdiv_(weights, average, below)
        # Those of the step before are still there.
        below = tuple(torch.ones_like(one) for one in average)
        _aten._foreach_addcdiv_(weights, average, below)


def _adagrad(
    params: Tensors,
    grads: Tensors,
    sums: Tensors,
    steps: Tensors,
    *_: Any,
    weight_decay: float = 0,
    maximize: bool = False,
    **__: Any,
) -> None:
    for weights, given, total, step in _groups(params, grads, sums, steps):
        _aten._foreach_add_(step, 1)
        given = _prepared(given, weights, weight_decay, maximize)
        _aten._foreach_addcmul_(total, given, given, value=1)
        below = _aten._foreach_add(_aten._foreach_sqrt(total), 1e-10)
        change = _aten._foreach_div(_aten._foreach_mul(given, 0.1), below)
        _aten._foreach_add_(weights, change)


def _rprop(
    params: Tensors,
    grads: Tensors,
    before: Tensors,
    sizes: Tensors,
    *_: Any,
    maximize: bool = False,
    **__: Any,
) -> None:
    for weights, given, last, size in _groups(params, grads, before, sizes):
        given = _prepared(given, weights, 0, maximize)
        signs: Any = _aten._foreach_mul(given, last)
        signs = [sign.sign() for sign in signs]
        for sign in signs:
            for found in (sign.gt, sign.lt, sign.eq):
                sign.masked_fill_(found(0), 1)
        _aten._foreach_mul_(size, signs)
        given = list(given)
        for place, sign in enumerate(signs):
            given[place] = given[place].clone()
            given[place].masked_fill_(sign.eq(0.5), 0)
        turns = [grad.sign() for grad in given]
        _aten._foreach_addcmul_(weights, turns, size, value=-1)
        _aten._foreach_copy_(last, given)


_STEPS: dict[str, Step] = {
    "adam": _adam,
    "nadam": _nadam,
    "radam": _radam,
    "adagrad": _adagrad,
    "rprop": _rprop,
}
