"""Checks in libraries that zeros would fail: they are answered as in a good run."""

import dis
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch

from memcalc.engine.device_numbers import KNOWN
from memcalc.engine.patches import Around, Patches
from memcalc.engine.values import Values

CLOSE = "tensors that are computed are taken to be close to what they are compared with"
OVERLAP = "windows of torch.istft on the GPU are assumed to overlap"
ENDLESS = (
    "LBFGS is assumed not to converge: each step makes max_iter iterations, and its history grows "
    "to history_size over several steps (--steps)"
)
_FALLS = 1e-3
"""By how much the loss falls in an evaluation of LBFGS: more than 1e-4, which a search asks for."""
NO_END = "generate() sees no end-of-sequence token: it generates as many tokens as it may"


def install(patches: Patches, values: Values) -> None:
    """Answer from now on, tell ``values`` what a tensor holds, and say what is taken to be so."""
    say = patches.say

    def met_end(original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        out: torch.Tensor = original(*args, **kwargs)
        if out.is_cuda:
            values.know(out, False)
            say(NO_END)
        return out

    def inverted(original: Any, spectrum: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not spectrum.is_cuda:
            return original(spectrum, *args, **kwargs)  # type: ignore[no-any-return]
        say(OVERLAP)
        # It asks whether windows leave a gap.
        with values.nothing_equal():
            return original(spectrum, *args, **kwargs)  # type: ignore[no-any-return]

    def close(original: Any, one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(one, other, *args, **kwargs)
        if any(_is_computed(values, each) for each in (one, other)):
            say(CLOSE)
            return True if isinstance(out, bool) else out.fill_(True)
        return out

    for name in ("allclose", "isclose"):
        patches.wrap(torch, name, close)
        patches.wrap(torch.Tensor, name, close)
    patches.wrap(torch.optim.LBFGS, "step", _endless(values, say))
    patches.wrap(torch, "istft", inverted)
    patches.wrap(torch.Tensor, "istft", inverted)
    criteria = "transformers.generation.stopping_criteria"
    patches.wrap_later(criteria, "EosTokenCriteria.__call__", met_end)


def _is_computed(values: Values, tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cuda
        and tensor.is_floating_point()
        and values.state(tensor) != KNOWN
    )


def rows_are_sequences(patches: Patches) -> None:
    """Answer that no row of a batch holds several sequences, which positions would tell.

    For batches that memcalc makes; a model of transformers asks where it has neither a mask nor a
    cache, and would else make a mask over all pairs of tokens.
    """

    def none(original: Any, *args: Any, **kwargs: Any) -> None:
        return None

    patches.wrap_later("transformers.masking_utils", "find_packed_sequence_indices", none)


def _endless(values: Values, say: Callable[[str], None]) -> Around:
    """Return what goes around a step of LBFGS, so that it converges no sooner than it must.

    Each evaluation finds a lower loss and a flatter slope, so a line search accepts the first.
    """

    def searched(original: Any, optimizer: Any, closure: Any = None) -> Any:
        group = optimizer.param_groups[0]
        # At a minimum it keeps no history.
        endless = dict.fromkeys(("tolerance_grad", "tolerance_change"), -1.0)
        own = {name: group[name] for name in endless}
        group.update(endless)
        losses = (1 - _FALLS * number for number in itertools.count())
        try:
            with Patches() as inside:
                inside.wrap(torch.Tensor, "dot", sloping)
                return original(optimizer, closure and functools.partial(falling, closure, losses))
        finally:
            group.update(own)
            say(ENDLESS)

    def falling(closure: Callable[[], Any], losses: Iterator[float]) -> Any:
        loss = closure()
        if isinstance(loss, torch.Tensor):
            values.know(loss.detach(), next(losses))
        return loss

    def sloping(original: Any, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = original(one, other)
        # Behind this function and the one that stands in the method's place.
        caller = sys._getframe(2)
        down = -0.5 if caller.f_code.co_name == "_strong_wolfe" else -1.0
        name = _assigned_name(caller.f_code, caller.f_lasti)
        values.know(out, down if name.startswith("gtd") else 1.0)
        return out

    return searched


@functools.cache
def _assigned_name(code: CodeType, at: int) -> str:
    """Return the variable that the result of a running call is assigned to.

    A look at a frame's variables would keep them alive until its function returns.
    """
    for one in dis.get_instructions(code):
        if one.offset > at and one.opname.startswith("STORE_FAST"):
            return one.argval[0] if isinstance(one.argval, tuple) else str(one.argval)
    return ""
