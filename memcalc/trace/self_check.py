"""Does this PyTorch do what tracing relies on? Tried out once, before a process traces.

Tracing reads names of PyTorch that are private (``memcalc.trace.torch_private``). Where one of
them means something else in another version, nothing would fail: bytes would be wrong. So each is
tried on a program of a few numbers whose storages are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
import torch.nn.functional as F

from memcalc.errors import EstimateError
from memcalc.kernels.target import Target
from memcalc.trace import device
from memcalc.trace.operators import attention
from memcalc.trace.recorder import TraceRecorder
from memcalc.trace.torch_private.choices import transformers_runs_eagerly
from memcalc.trace.torch_private.names import installed_version
from memcalc.version import NEWEST_TORCH, not_held_against

_AMPERE = Target(capability=(8, 0), multiprocessors=108, torch=(2, 13))
_checked: dict[str, tuple[str, ...]] = {}


class Check(msgspec.Struct, frozen=True):
    """Something that tracing relies on."""

    relies_on: str
    holds: Callable[[TraceRecorder], bool]
    otherwise: str = ""
    """What to assume where it does not hold; empty: nothing can be estimated then."""
    on_gpu_only: bool = False


def run() -> tuple[str, ...]:
    """Try everything out on the device in use; later calls return what the first one did.

    ``attention.install`` has to follow: what it installed before is replaced.

    Returns:
        What to assume of answers: a sentence for each thing that changes no size.

    Raises:
        EstimateError: sizes would be wrong.
    """
    if device.NAME not in _checked:
        _checked[device.NAME] = (*not_held_against(installed_version()), *_try_out())
    return _checked[device.NAME]


def _try_out() -> Iterator[str]:
    on_gpu = device.NAME == device.SIMULATED
    with device.fake_mode(), TraceRecorder(None) as recorder:
        failed = [
            check
            for check in CHECKS
            if (on_gpu or not check.on_gpu_only) and not _holds(check, recorder)
        ]
    for check in failed:
        if not check.otherwise:
            raise EstimateError(
                f"PyTorch {torch.__version__} does not run as it is simulated: {check.relies_on}. "
                f"Install PyTorch {'.'.join(map(str, NEWEST_TORCH))}, or use --method analytic."
            )
        yield check.otherwise


def _holds(check: Check, recorder: TraceRecorder) -> bool:
    try:
        return check.holds(recorder)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False


def _leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device.NAME, requires_grad=True)


@contextmanager
def _made(recorder: TraceRecorder) -> Iterator[list[str]]:
    """The operators that made storages while the context lasted."""
    names: list[str] = []
    first = len(recorder.ledger.entries)
    yield names
    names += [entry.op for entry in recorder.ledger.entries[first:]]


def _deaths(recorder: TraceRecorder) -> bool:
    events = recorder.ledger.events
    first = len(events)
    tensor = torch.empty(4, device=device.NAME)
    view = tensor[:2]
    del tensor
    alive = len(events) == first + 1
    del view
    return alive and events[-1] == ~events[first]


def _sums_in_place(recorder: TraceRecorder) -> bool:
    leaf = _leaf(4)
    loss = (leaf * 2 + leaf * 3).sum()
    with _made(recorder) as names:
        loss.backward()
    return "mul" in names and "add" not in names


class _Twice(torch.autograd.Function):
    """Of the same tensor twice: gradients that it has made itself could meet."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, again: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        once = grad * 1
        return once + grad, None


class _Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        made = grad * 2
        ctx.kept = made.detach()
        return made


def _sums_beside(recorder: TraceRecorder) -> bool:
    """Once the model's own code adds, then the gradient, its storage and again it are held."""
    own, shared, kept, held = (_leaf(4) for _ in range(4))
    parts = _Twice.apply(own, own) + (shared + shared)  # type: ignore[no-untyped-call]
    loss = (parts + (kept.tanh() + _Keeping.apply(kept))).sum()  # type: ignore[no-untyped-call]
    tail = held - held.tanh()
    grad = torch.empty_like(tail)
    with _made(recorder) as names:
        loss.backward()
        tail.backward(grad)
    return names.count("add") == 4


def _writes_in_place(recorder: TraceRecorder) -> bool:
    index = torch.empty(4, 1, dtype=torch.long, device=device.NAME)
    loss = _leaf(4, 4).gather(1, index).sum()
    with _made(recorder) as names:
        loss.backward()
    return "scatter_add" not in names


def _foreach(recorder: TraceRecorder) -> bool:
    weights = [_leaf(4), _leaf(4)]
    for weight in weights:
        weight.grad = torch.empty_like(weight)
    with _made(recorder) as names:
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        torch.optim.Adam(weights).step()
    return "_foreach_norm" in names and "_foreach_sqrt" in names


def _autocast(recorder: TraceRecorder) -> bool:
    weight, inputs = _leaf(4, 4), torch.empty(2, 4, device=device.NAME)
    with _made(recorder) as names:
        for _ in range(2):
            with torch.autocast(device.NAME, torch.bfloat16):
                low = F.linear(F.linear(inputs, weight), weight)
    with torch.autocast(device.NAME, torch.bfloat16):
        wide = low.exp()
    # In each of the first two contexts the input and the weight are cast.
    return names.count("_to_copy") == 4 and wide.dtype is torch.float32


def _attention(recorder: TraceRecorder) -> bool:
    attention.install(_AMPERE)
    query = _leaf(1, 2, 8, 8)
    with _made(recorder) as names:
        F.scaled_dot_product_attention(query, query, query)
    return "_scaled_dot_product_efficient_attention" in names


def _modules(recorder: TraceRecorder) -> bool:
    layer = torch.nn.ModuleDict({"inner": torch.nn.Tanh()})
    with recorder.modules.follow(layer.named_modules()):
        loss = layer["inner"](_leaf(4)).sum()
        first = len(recorder.ledger.entries)
        loss.backward()
    made = [entry for entry in recorder.ledger.entries[first:] if entry.op == "tanh_backward"]
    return bool(made) and made[0].module == "inner"


def _eager_masks(recorder: TraceRecorder) -> bool:
    return transformers_runs_eagerly(_leaf(1))


CHECKS = (
    Check("a storage is seen to live as long as its tensors", _deaths),
    Check("autograd adds gradients in place", _sums_in_place),
    Check("autograd adds to a gradient in place only where nobody else holds it", _sums_beside),
    Check("formulas of gradients write into zeros of their own", _writes_in_place),
    Check("optimizers and clipping choose foreach", _foreach, on_gpu_only=True),
    Check("autocast casts, and each weight once", _autocast, on_gpu_only=True),
    Check("attention takes the kernel that the GPU would", _attention, on_gpu_only=True),
    Check(
        "an operator of backward belongs to the module of its forward",
        _modules,
        "it is not known which module an operator of backward belongs to",
    ),
    Check(
        "transformers makes masks as in an eager run",
        _eager_masks,
        "transformers makes masks as for a graph, not as in an eager run",
    ),
)
