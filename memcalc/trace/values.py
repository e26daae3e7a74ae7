"""What a value read from the device would be, were all memory there zero.

Programs sometimes decide by a value they computed on the device: how many tokens each expert
gets, whether any entry is negative. The simulated device holds no data. So of every tensor that
such decisions are made from (whole numbers, truths, single numbers) it is remembered how it was
made; when one is read, that recipe is run on the CPU with zeros where it begins. Answers then
agree with each other: counts sum to what was counted.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace.overlaps import written_over
from memcalc.trace.recipes import Recipe, UnansweredError, Unknown, Worked, alone, call, host_value
from memcalc.trace.ties import SAID
from memcalc.trace.torch_private.tensors import storage_key
from memcalc.trace.writes import decides, unwritten, written

LONGEST = 4096
"""Steps of a recipe that are run; a longer one is answered by zero."""


_aten = torch.ops.aten
FILLS = {
    *(_aten.full.default, _aten.ones.default, _aten.eye.default),
    *(_aten.arange.default, _aten.linspace.default, _aten.logspace.default),
}
"""Operators that make tensors of known numbers, beside zeros."""
_SHOWS = {getattr(_aten.set_, name) for name in _aten.set_.overloads() if name.startswith("source")}
_RAISES = _aten._foreach_add_.Scalar
_NORMS = _aten._foreach_norm.Scalar


class Values:
    """Remembers how tensors on the simulated device were made."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], Recipe]] = {}
        self._sharing: dict[int, set[int]] = {}
        """Of each storage: the tensors in it whose making is remembered."""
        self._worked = Worked()

    def said(self) -> tuple[str, ...]:
        """What was assumed of values, beside that they are zeros."""
        return (SAID,) if self._worked.turns.taken else ()

    def remember(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note how an operator's results came about, where a program could decide by them."""
        self.note(func, args, kwargs, out, deciding=decides(func, out))

    def may_note(self, func: Any, args: Any, out: Any) -> bool:
        """Whether there is anything to note of a call with tensors such as these."""
        return (
            func in FILLS
            or decides(func, out)
            or any(isinstance(a, torch.Tensor) and not a.dtype.is_floating_point for a in args)
            or any(True for _ in written(func, args))
        )

    def follows(self, args: Any) -> bool:
        """Whether there may be for these very tensors: here, none of real numbers."""
        return False

    def note(self, func: Any, args: Any, kwargs: Any, out: Any, *, deciding: bool) -> None:
        """The same, where it is known whether a program could decide by these results."""
        if func in _SHOWS:
            # Nothing is written: it shows other memory, of which nobody knows what it holds so.
            self._made.pop(id(args[0]), None)
            return
        # What nobody has written holds no numbers, whatever it was made like.
        known = deciding or (self.counts(func, args) and not unwritten(func))
        if func is _NORMS and not any(id(tensor) in self._made for tensor in args[0]):
            # Zeros, like what is read of any other tensor that nobody knows.
            known = False
        given = self._described(args, kwargs) if known else None
        raised = self._raised(args) if func is _RAISES else []
        given_out = kwargs.get("out") if kwargs else None
        places = [
            *written(func, args),
            *([given_out] if isinstance(given_out, torch.Tensor) else []),
        ]
        others = [(tensor, self._forget(tensor)) for tensor in places]
        for tensor, made in raised:
            self.keep(tensor, made)
        if given is not None:
            self._keep_results(func, given, out)
        for tensor, around in others:
            self._spread(tensor, around)

    def _keep_results(self, func: Any, given: tuple[tuple[Any, Any], int], out: Any) -> None:
        described, depth = given
        several = isinstance(out, list | tuple)
        sure, by_choice = self.sure(func, described), None
        for index, item in enumerate(out if several else (out,)):
            whole = isinstance(item, torch.Tensor) and item.layout is torch.strided
            if whole and depth < LONGEST:
                at = index if several else None
                made = Recipe(func, *described, at, depth + 1, sure=sure, by_choice=by_choice)
                by_choice = made.by_choice
                self.keep(item, made)

    def _forget(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, Recipe]]:
        """Forget what shows the memory of a tensor; returns what others there held."""
        others = []
        for key in self._sharing.pop(storage_key(tensor), ()):
            found = self._made.pop(key, None)
            other = found[0]() if found is not None else None
            if found is not None and other is not None and other is not tensor:
                others.append((other, found[1]))
        return others

    def _spread(self, tensor: torch.Tensor, others: list[tuple[torch.Tensor, Recipe]]) -> None:
        """What was written to a tensor stands in others that show its memory."""
        made = self.recipe_of(tensor)
        for other, before in others:
            now = written_over(other, before, tensor, made)
            if now is not None and now.depth < LONGEST and id(other) not in self._made:
                self.keep(other, now)

    def know(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """A tensor now holds what this one of the host holds."""
        others = self._forget(tensor)
        made = self.arrived(tensor, host)
        if made is not None and host.shape != tensor.shape:
            # It was written along other dimensions too.
            wide = [made, list(tensor.shape)]
            made = Recipe(_aten.expand.default, wide, {}, None, made.depth + 1, sure=made.sure)
        if made is not None:
            self.keep(tensor, made)
        self._spread(tensor, others)

    def arrived(self, tensor: torch.Tensor, host: torch.Tensor) -> Recipe | None:
        """What is remembered of a copy of the host's.

        Whole numbers are, and single ones: optimizers read how many steps they made.
        """
        if host.numel() != 1 and host.dtype.is_floating_point:
            return None
        known = host_value(host.to(tensor.dtype)) if host.dtype != tensor.dtype else None
        return known or host_value(host)

    def copied(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """A tensor that is new holds what another does, byte by byte (``copy.deepcopy``)."""
        made = self.recipe_of(source)
        if made is not None:
            self.keep(tensor, made)

    def _raised(self, args: Any) -> list[tuple[torch.Tensor, Recipe]]:
        """Known numbers among a list that all become larger by one number, such as steps made."""
        tensors, by = args[:2]
        known = [(tensor, self.recipe_of(tensor)) for tensor in tensors if tensor.numel() == 1]
        return [
            (tensor, Recipe(_aten.add.Scalar, [made, by], {}, None, made.depth + 1))
            for tensor, made in known
            if made is not None and made.depth < LONGEST
        ]

    def counts(self, func: Any, args: Any) -> bool:
        """Numbers are filled in, or put in places that are known."""
        if func in FILLS:
            return True
        for arg in args:
            if (
                isinstance(arg, torch.Tensor)
                and not arg.dtype.is_floating_point
                and self.recipe_of(arg) is not None
            ):
                return True
        return False

    def _described(self, args: Any, kwargs: Any) -> tuple[tuple[Any, Any], int]:
        """Arguments with recipes for tensors, and the longest of these recipes."""
        depth = 0

        def described(value: Any) -> Any:
            nonlocal depth
            if isinstance(value, torch.Tensor):
                known = self.recipe_of(value)
                if known is None:
                    return host_value(value) or Unknown(value)
                depth = max(depth, known.depth)
                return known
            if isinstance(value, list | tuple):
                return type(value)(described(item) for item in value)
            return value

        given = described(list(args)), {name: described(item) for name, item in kwargs.items()}
        return given, depth

    def keep(self, tensor: torch.Tensor, made: Recipe) -> None:
        """Remember how a tensor was made."""
        key, storage = id(tensor), storage_key(tensor)

        def forget(_: object) -> None:
            self._made.pop(key, None)
            self._sharing.get(storage, set()).discard(key)

        self._made[key] = (weakref.ref(tensor, forget), made)
        self._sharing.setdefault(storage, set()).add(key)

    def recipe_of(self, tensor: torch.Tensor) -> Recipe | None:
        """How a tensor was made; ``None``: that is not remembered."""
        found = self._made.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def read(
        self,
        tensor: torch.Tensor,
        number: Callable[[Any], int] = int,
        which: int | None = None,
    ) -> bool | int | float:
        """The value of a tensor with one element, were the device's memory zero.

        Args:
            tensor: on the simulated device.
            number: what a size that is a symbol shall be.
            which: names ``number`` among others; ``None``: no size is a symbol.

        Raises:
            UnansweredError: how it was made is not known, or too much to run, or it is infinite
                by what is not known.
        """
        made = self.recipe_of(tensor)
        if made is None:
            raise UnansweredError
        with alone():
            value: bool | int | float = self._worked.value(made, number, which).item()
        if isinstance(value, float) and math.isinf(value) and not made.sure:
            # One by zero, or its logarithm: a program that finds its loss so gives up.
            raise UnansweredError
        return value

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """All values of a tensor, as a tensor of the host.

        Raises:
            UnansweredError: how it was made is not known, or too much to run.
        """
        made = self.recipe_of(tensor)
        if made is None:
            raise UnansweredError
        with alone():
            return self._worked.value(made, int, None).clone()

    def chosen(self, mask: torch.Tensor) -> int | None:
        """How many entries of a mask are not zero; ``None``: the program does not say, or none is.

        Masks of known tokens say it, but where none of these is a special one, such as the end of
        a text, the synthetic ones are at fault. Masks of what was chosen among unknown scores say
        it as well: whatever is chosen, it is as much.
        """
        made = self.recipe_of(mask)
        if made is None or not (made.sure or made.by_choice):
            return None
        with alone():
            try:
                return int(self._worked.value(made, int, None).count_nonzero()) or None
            except UnansweredError:
                return None

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator makes of values such as these, on the host.

        Raises:
            UnansweredError: it cannot be run.
        """
        (given, named), depth = self._described(args, kwargs)
        with alone():
            made = Recipe(func, given, named, None, depth)
            known = {id(part): self._worked.value(part, int, None) for part in made.inputs()}
            return call(made, known, int, self._worked.turns)

    def sure(self, func: Any, described: tuple[Any, Any]) -> bool:
        """What an operator makes follows from its arguments, and all of these are sure."""
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            return False
        pending = [*described[0], *described[1].values()]
        while pending:
            value = pending.pop()
            if isinstance(value, Unknown) or (isinstance(value, Recipe) and not value.sure):
                return False
            if isinstance(value, list | tuple):
                pending.extend(value)
        return True
