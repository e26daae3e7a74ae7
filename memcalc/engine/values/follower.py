"""Values that a program reads back from the simulated GPU: what is known is right.

Operators are followed below autograd, by a dispatch key that PyTorch keeps for fake tensors; no
dispatch mode is needed. In backward only operators that ask the GPU for their result's size are
followed, and Python code that runs there: a function's own backward, and a recomputed forward.
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from memcalc.engine.host_view import (
    Place,
    cpu_view,
    has_infinite,
    is_plain,
    largest_plain,
    map_tensors,
    tensors_in,
)
from memcalc.engine.patches import Patches
from memcalc.engine.stub import load as stub
from memcalc.engine.values import threads
from memcalc.engine.values.copies import Transfers
from memcalc.engine.values.deferred import can_wait_large, defer, takes_unknown
from memcalc.engine.values.draws import Draws
from memcalc.engine.values.extensions import own_namespaces
from memcalc.engine.values.known import KNOWN, MADE_UP, UNKNOWN, Numbers
from memcalc.engine.values.reads import Reads
from memcalc.engine.values.rules import (
    COMPARES,
    DISTRIBUTIONS,
    ENDS,
    HIGHEST,
    LARGE,
    LENGTHS,
    MADE,
    MAKES,
    MOVES,
    PUT,
    PUTS,
    SMALL,
    SORTS,
    TRANSFERS,
    ZEROS,
    Followed,
    constant_answer,
    find_masks,
    is_finiteness_test,
    list_followed,
    read_by,
)
from memcalc.engine.values.threads import COUNTS, VALUES
from memcalc.engine.values.updates import Updates, list_writers

Rule = Callable[[Followed, Any, Any], Any]
"""Runs an operator with its positional and keyword arguments, and computes its numbers."""
_aten: Any = torch.ops.aten
_C: Any = torch._C
_UPDATED = 1 << 8
"""Elements of the largest tensors that are updated on the host: running sums, no weights."""


def prepare() -> None:
    """Read the operators to follow, so that forks of this process need not."""
    own_namespaces()
    list_writers()
    for at in (VALUES, COUNTS):
        threads.pass_through(at)
        list_followed(counts=at == COUNTS)


class Values:
    """Follows what a program has on the GPU."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._libraries: list[Any] = []
        self._numbers = Numbers(lambda: self.reads.limit())
        self.reads = Reads(say, self._numbers)
        self._transfers = Transfers(self._numbers, self._compute_on_host)
        self._nothing_equal = False
        self._draws = Draws(self._numbers, self._compute_on_host, say)
        self._updates = Updates(self._numbers)
        driver = ctypes.CDLL(None)
        self._answer = driver.memcalc_stub_answer
        self._when_unknown = driver.memcalc_stub_when_unknown
        self._answer.argtypes, self._answer.restype = [ctypes.c_size_t, ctypes.c_longlong], None
        self._noting = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(self._note)
        self.state, self.know = self._numbers.state, self._numbers.know
        self.knows, self.host = self._numbers.knows, self._numbers.host
        self.vary = self._numbers.unknown.vary
        self._keys = threads.keys()

    def install(self, patches: Patches) -> None:
        """Register the followed operators, and follow this thread and threads it starts."""
        if not stub.maps():
            self.reads.report_no_mapping()
            return
        for at in (VALUES, COUNTS):
            threads.pass_through(at)
            self._register(at)
        # Operators such as flex_attention have Python kernels, and ask for one of the first key.
        patches.wrap(torch._ops, "_compute_keyset", self._drop_followed_keys)
        self._when_unknown(self._noting)
        self._transfers.install(patches)
        self._updates.install(patches)
        stepped = optimizers.register_optimizer_step_post_hook(self._numbers.unknown.go_on)
        patches.also(stepped.remove)
        patches.also(self._end)
        self.reads.install(patches)
        threads.install(patches)

    def _drop_followed_keys(self, original: Any, args: Any, kwargs: Any, keys: Any) -> Any:
        """Compute an operator's dispatch keys without the two of following."""
        return original(args, kwargs, keys - self._keys)

    def stop(self) -> None:
        """Stop following this thread: Python's exit has deleted the operators' code."""
        threads.stop()
        self._when_unknown(None)

    def _end(self) -> None:
        """Stop following, and report the lines that read unknown numbers."""
        self.stop()
        self._libraries.clear()
        self.reads.end()

    def _register(self, at: str) -> None:
        """Register the followed operators at a dispatch key."""
        library = torch.library.Library("aten", "IMPL")
        self._libraries.append(library)
        for followed in list_followed(counts=at == COUNTS):
            made = self._wrap_count(followed) if at == COUNTS else self._wrap_op(followed)
            library.impl(followed.op.name().split("::")[1], made, at)
        if at == COUNTS:
            library.impl("equal", self._equal, at)
        else:
            library.impl("_local_scalar_dense", self._read, at)
            self._updates.implement(library, at)

    def _wrap_op(self, one: Followed) -> Callable[..., Any]:
        """Return a kernel that runs an operator, and computes its result on the host too."""
        keys, guard, on_host = self._keys, _C._ExcludeDispatchKeyGuard, self._numbers.on_host
        follow = self._find_special(one) or self._make_rule(one)

        def call(*args: Any, **kwargs: Any) -> Any:
            with guard(keys):
                out = follow(one, args, kwargs)
                if on_host and not is_finiteness_test(one, args):
                    made = tensors_in((out, *one.written(args, kwargs)))
                    self._numbers.carry_on_host((args, kwargs), made)
                return out

        return call

    def _make_rule(self, one: Followed) -> Rule:
        """Return the function that runs an operator and computes its result on the host."""
        op, base, chooses = one.op, one.base, one.op.name() in HIGHEST
        small = _UPDATED if one.updates else SMALL
        waits, adds = one.makes_one and base not in MOVES, one.makes_one and base == "add"
        most = PUT if base in SORTS else LARGE if base in PUTS else small
        held, postponed = self._numbers.read_mark, self._numbers.unknown.postponed_kind
        end = None if chooses else ENDS.get(base)

        def follow(_: Followed, args: Any, kwargs: Any) -> Any:
            first = args[0] if args else None
            if isinstance(first, list) and first:
                first = next((each for each in first if each.numel()), first[0])
            if not isinstance(first, torch.Tensor) or not first.is_floating_point():
                return self._compute(one, args, kwargs)
            if chooses and first.is_cuda and self.state(first) != KNOWN:
                return self._draws.spread(one, args, kwargs)
            count = first.numel()
            if waits and count <= SMALL:
                out = op(*args, **kwargs)
                if base == "clamp_min" and self._clamps_nothing(first, args[1]):
                    return out
                if not defer(self._numbers, one, args, kwargs, out):
                    self._compute_on_host(one, args, kwargs, out)
                return out
            if count <= most:
                return self._compute(one, args, kwargs)
            # Most calls of a training.
            if not first.is_cuda or type(first) is not torch.Tensor:
                return op(*args, **kwargs)
            known = held(first) or postponed(first) is not None
            known = known or (adds and self._is_known(args[1]))
            if known and count <= LARGE:
                return self._compute(one, args, kwargs)
            out = op(*args, **kwargs)
            if one.given_result:
                self._numbers.forget(one.written(args, kwargs))
            elif one.writes and count > LARGE:
                self._numbers.unknown.drop(first)
            elif base in DISTRIBUTIONS:
                self._draws.distribute(base, out, args[1])
            elif end is not None and isinstance(out, torch.Tensor):
                self._numbers.fill(out, self._numbers.unknown.ends[end])
            return out

        return follow

    def _find_special(self, one: Followed) -> Rule | None:
        """Return the method that runs an operator that copies, draws, makes or compares."""
        if one.base in TRANSFERS:
            return self._transfers.copy
        if one.base == "multinomial":
            return self._draws.choose
        if one.draws is not None:
            return self._draws.draw
        if one.base in MAKES:
            return self._create
        return self._compare if one.base in COMPARES else None

    def _wrap_count(self, one: Followed) -> Callable[..., Any]:
        """Return a kernel that gives an operator the result's size that it asks the GPU for."""
        keys, guard, op, base = self._keys, _C._ExcludeDispatchKeyGuard, one.op, one.base

        def call(*args: Any, **kwargs: Any) -> Any:
            with guard(keys):
                sparse = base == "_coalesce"
                tensors = [args[0]._indices()] if sparse else tensors_in((args, kwargs))
                if not is_plain(tensors):
                    return op(*args, **kwargs)
                if not any(each.is_cuda for each in tensors):
                    out = op(*args, **kwargs)
                    if any(self.state(each) != KNOWN for each in tensors):
                        self.reads.take_size()
                        self._numbers.carry_on_host(tensors, tensors_in((out, args[0])))
                    return out
                chosen_by = [each for each in find_masks(base, args) if self._is_made_up(each)]
                if chosen_by and not one.writes and self.reads.choose():
                    for each in chosen_by:
                        self._numbers.fill(each, True)
                if base in LENGTHS and any(map(self._is_made_up, tensors)):
                    self.reads.take_size()
                most = max(each.numel() for each in tensors)
                made, numbers = self._numbers.time_call(
                    most, read_by, op, base, args, kwargs, self._numbers.host, self.knows
                )
                for size, number in numbers:
                    self._answer(size, number)
                try:
                    out = op(*args, **kwargs)
                finally:
                    self._answer(0, 0)
                if made is not None:
                    made_up = any(self.state(each) == MADE_UP for each in tensors)
                    self._numbers.write_result(out, made, made_up)
                elif base != "index" or self._numbers.knows_some(args[0]):
                    self._compute_on_host(one, args, kwargs, out)
                return out

        return call

    def _clamps_nothing(self, tensor: torch.Tensor, least: Any) -> bool:
        """Return True if unknown numbers are above a lower limit, as in most ReLUs."""
        small = isinstance(least, int | float) and least <= self._numbers.unknown.ends[0]
        return small and tensor.is_cuda and self.state(tensor) == UNKNOWN

    def _is_known(self, tensor: Any) -> bool:
        return type(tensor) is torch.Tensor and tensor.is_cuda and self.state(tensor) == KNOWN

    def _is_made_up(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and self.state(tensor) != KNOWN

    def _create(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Run an operator that makes a tensor, and write or mark its values."""
        out = one.op(*args, **kwargs)
        if not out.is_cuda or not is_plain((out,)) or torch.cuda.is_current_stream_capturing():
            return out
        if one.base in ZEROS:
            if out.numel() <= MADE or not out.is_floating_point():
                self._numbers.mark(out, made_up=False)  # Memory is zero as it is handed out.
        elif one.base == "fill_" and out.numel() <= SMALL and type(args[1]) in (float, int, bool):
            self._numbers.know(out, args[1])
        elif out.numel() <= MADE or not out.is_floating_point():
            self._compute_on_host(one, args, kwargs, out)
        return out

    def _compute(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Run an operator, and compute its result on the host, now or when it is read."""
        out = one.op(*args, **kwargs)
        if one.updates and self._numbers.count(one.op, *args, **kwargs):
            return out
        if can_wait_large(self._numbers, one, args, out) and defer(
            self._numbers, one, args, kwargs, out, most=LARGE
        ):
            return out
        if one.base not in MOVES or self._numbers.knows_some(args[0]):
            self._compute_on_host(one, args, kwargs, out)
        return out

    def _compute_on_host(self, one: Followed, args: Any, kwargs: Any, out: Any) -> None:
        """Compute an operator's result on the host, unless that costs too much."""
        given = tensors_in((args, kwargs) if kwargs else args)
        outs = [] if one.writes else tensors_in((out,))
        most = largest_plain(given, outs)
        if not most:
            return
        written = one.written(args, kwargs)
        state, known = KNOWN, True
        for each in given:
            if one.overwrites and any(each is target for target in written):
                continue
            of_each = self.state(each)
            if of_each == UNKNOWN and each.is_floating_point():
                known &= each.numel() <= SMALL or takes_unknown(self._numbers, one, args, each)
                of_each = MADE_UP
            state = max(state, of_each)
        if not known or most > LARGE or not self._numbers.may_take(most):
            # Some kernels begin with a copy of an argument whose numbers are known.
            self._numbers.forget((*written, *filter(self._numbers.read_mark, outs)))
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if is_finiteness_test(one, args):
            state = KNOWN
        for each in written:
            if each.is_cuda and each.is_floating_point():
                if not self._numbers.prepare_write(each, overwrites=one.overwrites):
                    return
                if not self.state(each):
                    self._numbers.write(each, self.host(each))
        keeps = state == KNOWN or one.base in PUTS or one.base in MOVES
        keeps = keeps or any(map(has_infinite, map(self.host, written)))
        with contextlib.suppress(Exception):
            view = functools.partial(self._numbers.host_argument, written) if written else self.host
            host_kwargs = map_tensors(kwargs, view) if kwargs else kwargs
            made = self._numbers.time_call(most, one.op, *map_tensors(args, view), **host_kwargs)
            if not one.writes:
                finite = None if keeps else map(self.host, given)
                self._numbers.write_result(out, made, state == MADE_UP, finite=finite)
            for each in written:
                if not keeps and each.is_cuda:
                    self._numbers.make_finite(cpu_view(each), Place.from_tensor(each))
                self._numbers.mark(each, state == MADE_UP)

    def _compare(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Run a comparison, and write its result if one holds for all unknown numbers."""
        out = one.op(*args, **kwargs)
        if one.given_result or not isinstance(out, torch.Tensor):
            self._compute_on_host(one, args, kwargs, out)
            return out
        answer = constant_answer(one, args, self.state, self._numbers.unknown.ends)
        if answer is None:
            self._compute_on_host(one, args, kwargs, out)
        elif is_plain((out,)) and self._numbers.may_take(out.numel()):
            self._numbers.fill(out, answer, made_up=not is_finiteness_test(one, args))
        return out

    def _read(self, tensor: torch.Tensor) -> Any:
        """Return ``tensor.item()``, with a made-up number if it is unknown."""
        if tensor.is_cpu and self.state(tensor) != KNOWN:
            self.reads.note()
        with _C._ExcludeDispatchKeyGuard(self._keys):
            if tensor.is_cuda:
                self._numbers.settle(tensor)
            number = _aten._local_scalar_dense.default(tensor)
            if tensor.is_cuda and tensor.is_floating_point() and is_plain((tensor,)):
                number = self._numbers.host(tensor).item()
            return number

    def _equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Return ``torch.equal``: computed on the host, or a decision if values are unknown."""
        with _C._ExcludeDispatchKeyGuard(self._keys):
            self._answer(1, 0)
            found = bool(_aten.equal.default(one, other))
            self._answer(0, 0)
            if self._nothing_equal and one.is_cuda:
                return False
            if not (one.is_cuda and other.is_cuda) or one.shape != other.shape:
                return found
            if not is_plain((one, other)) or one is other:
                return one is other or found
            states = self.state(one), self.state(other)
            if UNKNOWN in states or one.numel() > LARGE:
                return self.reads.decide(True, sys._getframe(1))
            equal = bool(torch.equal(self._numbers.host(one), self._numbers.host(other)))
            return self.reads.decide(equal, sys._getframe(1)) if MADE_UP in states else equal

    def _note(self, address: int) -> None:
        """Record that the host reads an unknown number, unless a copy takes it there."""
        if self._transfers.source is None:
            self.reads.note()

    @contextlib.contextmanager
    def nothing_equal(self) -> Iterator[None]:
        """Let ``torch.equal`` return False in this context."""
        self._nothing_equal = True
        try:
            yield
        finally:
            self._nothing_equal = False
