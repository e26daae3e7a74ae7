"""Answers checks in libraries as in a good run, where made-up numbers would fail them."""

import dis
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch

from memcalc.engine.patches import Around, Patches
from memcalc.engine.values.follower import Values
from memcalc.engine.values.known import KNOWN

CLOSE = "tensors that are computed are taken to be close to what they are compared with"
OVERLAP = "windows of torch.istft on the GPU are assumed to overlap"
ENDLESS = (
    "LBFGS is assumed not to converge: each step makes max_iter iterations, and its history grows "
    "to history_size over several steps (--steps)"
)
_FALLS = 1e-3
"""Relative fall of the loss per evaluation of LBFGS: above the 1e-4 that a line search needs."""
NO_END = "generate() sees no end-of-sequence token: it generates as many tokens as it may"


def install(patches: Patches, values: Values) -> None:
    """Patch allclose, istft, LBFGS and generate's end check to assume a good outcome."""
    say = patches.say

    def answer_no_end(original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        out: torch.Tensor = original(*args, **kwargs)
        if out.is_cuda:
            values.know(out, False)
            say(NO_END)
        return out

    def run_istft(original: Any, spectrum: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not spectrum.is_cuda:
            return original(spectrum, *args, **kwargs)  # type: ignore[no-any-return]
        say(OVERLAP)
        # It checks whether windows leave a gap.
        with values.nothing_equal():
            return original(spectrum, *args, **kwargs)  # type: ignore[no-any-return]

    def answer_close(original: Any, one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(one, other, *args, **kwargs)
        if not any(_is_unknown_float(values, each) for each in (one, other)):
            return out
        say(CLOSE)
        if isinstance(out, bool):
            # The caller of the function's replacement, which calls this one.
            return values.reads.decide(True, sys._getframe(2))
        values.reads.mark_tensors(out.fill_(True))
        return out

    for name in ("allclose", "isclose"):
        patches.wrap(torch, name, answer_close)
        patches.wrap(torch.Tensor, name, answer_close)
    patches.wrap(torch.optim.LBFGS, "step", _wrap_lbfgs_step(values, say))
    patches.wrap(torch, "istft", run_istft)
    patches.wrap(torch.Tensor, "istft", run_istft)
    criteria = "transformers.generation.stopping_criteria"
    patches.wrap_later(criteria, "EosTokenCriteria.__call__", answer_no_end)


def _is_unknown_float(values: Values, tensor: Any) -> bool:
    """Return True for a float tensor on the GPU whose numbers are not all known."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cuda
        and tensor.is_floating_point()
        and values.state(tensor) != KNOWN
    )


def skip_packed_sequences(patches: Patches) -> None:
    """Make transformers find no packed sequences in a batch: each row is one sequence.

    This is true for batches that memcalc makes. Without a mask or cache, a model of transformers
    looks for packed sequences by positions, and would otherwise make a mask over all pairs of
    tokens.
    """

    def find_none(original: Any, *args: Any, **kwargs: Any) -> None:
        return None

    patches.wrap_later("transformers.masking_utils", "find_packed_sequence_indices", find_none)


def _wrap_lbfgs_step(values: Values, say: Callable[[str], None]) -> Around:
    """Return a wrapper of LBFGS's step that makes it run max_iter iterations without converging.

    Each evaluation finds a lower loss and a flatter slope, so a line search accepts the first.
    """

    def run_step(original: Any, optimizer: Any, closure: Any = None) -> Any:
        group = optimizer.param_groups[0]
        # At a minimum it keeps no history.
        endless = dict.fromkeys(("tolerance_grad", "tolerance_change"), -1.0)
        own = {name: group[name] for name in endless}
        group.update(endless)
        losses = (1 - _FALLS * number for number in itertools.count())
        try:
            with Patches() as inside:
                inside.wrap(torch.Tensor, "dot", set_slope)
                return original(
                    optimizer, closure and functools.partial(lower_loss, closure, losses)
                )
        finally:
            group.update(own)
            say(ENDLESS)

    def lower_loss(closure: Callable[[], Any], losses: Iterator[float]) -> Any:
        loss = closure()
        if isinstance(loss, torch.Tensor):
            values.know(loss.detach(), next(losses))
        return loss

    def set_slope(original: Any, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = original(one, other)
        # The caller of the method's replacement, which calls this function.
        caller = sys._getframe(2)
        down = -0.5 if caller.f_code.co_name == "_strong_wolfe" else -1.0
        name = _assigned_name(caller.f_code, caller.f_lasti)
        values.know(out, down if name.startswith("gtd") else 1.0)
        return out

    return run_step


@functools.cache
def _assigned_name(code: CodeType, at: int) -> str:
    """Return the name of the variable to which a running call's result is assigned, or "".

    Reading a frame's variables instead would keep them alive until its function returns.
    """
    for one in dis.get_instructions(code):
        if one.offset > at and one.opname.startswith("STORE_FAST"):
            return one.argval[0] if isinstance(one.argval, tuple) else str(one.argval)
    return ""
