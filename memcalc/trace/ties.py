"""Which of several scores is the largest where nobody knows them: each of them equally often.

A router sends every token to the experts with the largest scores. Of unknown scores all are equal,
and PyTorch takes the first ones: all tokens would go to the same experts, and the others would get
no gradients and no optimizer states. So equal scores take turns, row by row. Where there are fewer
rows than scores (the next token out of a vocabulary) the first of them stands for any other.
"""

from __future__ import annotations

from typing import Any

import torch

SAID = "of scores that are not known each is the largest equally often: experts share the tokens"
_aten = torch.ops.aten
_LARGEST = {
    _aten.topk.default: True,
    _aten.argmax.default: True,
    _aten.argmin.default: False,
    _aten.max.dim: True,
    _aten.min.dim: False,
}
CHOOSES = frozenset(_LARGEST)
"""Operators that choose among scores."""


class Turns:
    """Runs such operators with equal scores in turns, and remembers whether that made any odds."""

    def __init__(self) -> None:
        self.taken = False
        """Scores have taken turns."""

    def choose(self, func: Any, scores: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """What an operator that chooses makes of what it is given."""
        several = func is _aten.topk.default
        names = ("k", "dim", "largest") if several else ("dim", "keepdim")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        dim: Any = given.get("dim", -1 if several else None)
        found = None
        if dim is not None and scores.dim():
            largest = given.get("largest", _LARGEST[func])
            found = _in_turns(scores, given.get("k", 1), dim, largest=largest)
        if found is None:
            return func(scores, *args, **kwargs)
        self.taken = True
        best = scores.gather(dim, found)
        if not several and not given.get("keepdim"):
            found, best = found.squeeze(dim), best.squeeze(dim)
        return found if func in (_aten.argmax.default, _aten.argmin.default) else (best, found)


def _in_turns(scores: torch.Tensor, count: int, dim: int, *, largest: bool) -> torch.Tensor | None:
    """Where the ``count`` best scores along a dimension are; ``None``: too few rows for turns."""
    turned = scores.movedim(dim, -1)
    among = turned.shape[-1]
    rows = turned.reshape(-1, among)
    if among < 2 or len(rows) < among:
        return None
    first = torch.arange(len(rows)).mul(count).unsqueeze(1)
    order = torch.arange(among).add(first).remainder(among)
    best = rows.gather(1, order).sort(dim=1, descending=largest, stable=True).indices
    found = order.gather(1, best[:, :count])
    return found.view(*turned.shape[:-1], count).movedim(-1, dim)
