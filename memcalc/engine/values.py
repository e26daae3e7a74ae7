"""Values that a program reads back from the simulated GPU: what is known is right.

Kernels do nothing over the stub driver, but its device memory is real memory of the host. What was
copied there is read back. Behind an operator of PyTorch's that moves, compares or computes known
numbers, the same operator runs on CPU tensors over the same bytes. Random numbers are drawn on the
host. Numbers that nobody computes read as `memcalc.engine.unknown` says, and what follows from them
is marked as made up.

Operators are followed below autograd, by a dispatch key that PyTorch keeps for fake tensors; no
dispatch mode is needed. In backward only those are that ask the GPU how large their result is,
but for Python code that runs there: a function's own backward, and a forward that is run again.
"""

import contextlib
import ctypes
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from memcalc.engine import following
from memcalc.engine.followed_operators import (
    AGAINST_A_NUMBER,
    COMPARES,
    DISTRIBUTIONS,
    ENDS,
    HIGHEST,
    MAKES,
    MASKS,
    MOVES,
    PUTS,
    RESULTS,
    TRANSFERS,
    WITH_COUNTS,
    Followed,
    counted_in,
    is_composed,
    read_by,
    spread,
)
from memcalc.engine.following import COUNTS, VALUES, key
from memcalc.engine.host_view import is_plain, on_host, one_thread, over, span, tensors_in
from memcalc.engine.patches import Patches
from memcalc.engine.reads import Reads
from memcalc.engine.stub import load as stub
from memcalc.engine.unknown import ENDS_OF_RANGE, Unknown, distribution

_aten: Any = torch.ops.aten
_C: Any = torch._C
UNKNOWN, KNOWN, MADE_UP = range(3)
"""What the numbers of a tensor are, as the stub driver counts them."""
_SMALL = 1 << 12
"""Elements of the largest tensors whose numbers are computed even from unknown ones: a microsecond
each, where a call of PyTorch's takes five."""
_UPDATED = 1 << 8
"""Elements of the largest tensors that are updated on the host: running sums, no weights."""
_PUT = 1 << 20
"""Elements of the largest tensors of unknown floats into which known numbers are put."""
_LARGE = 1 << 27
"""Elements of the largest tensors that are computed: 0.1 s for a simple operator."""
_MOST_SECONDS = 20.0
"""Seconds for all operators over tensors of more than 65,536 elements; then they are unknown."""
_TIMED = 1 << 16
_READ = 1 << 22
"""Elements of the largest unknown tensor that is handed to the host as numbers and not as zeros,
which take no memory: states and checkpoints that are offloaded are larger."""
BALANCED = (
    "`topk`, `argmax` and the like choose each place equally often where scores are not computed "
    "here, as a balanced router does"
)


class Values:
    """Follows what a program has on the GPU."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._libraries: list[Any] = []
        self.reads = Reads(say)
        self._unknown = Unknown()
        self._nothing_equal = False
        self._source: Any = None
        """What is copied at the moment."""
        self._generators: dict[int, torch.Generator] = {}
        self._draws = 0
        self._left = _MOST_SECONDS
        driver = ctypes.CDLL(None)
        self._mark, self._holds = driver.memcalc_stub_mark, driver.memcalc_stub_holds
        self._zero, self._answer = driver.memcalc_stub_zero, driver.memcalc_stub_answer
        self._holds.argtypes = self._zero.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._mark.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._mark.restype = self._zero.restype = None
        self._answer.argtypes, self._answer.restype = [ctypes.c_size_t, ctypes.c_longlong], None
        self._when_unknown = driver.memcalc_stub_when_unknown
        self._noting = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(self._note)
        self._keys = _C.DispatchKeySet(key(VALUES)) | _C.DispatchKeySet(key(COUNTS))

    def install(self, patches: Patches) -> None:
        """Follow from now on, in this thread and in those that the program starts."""
        if not stub.maps():
            self.reads.none_is_known()
            return
        for at, names in ((VALUES, RESULTS), (COUNTS, WITH_COUNTS)):
            through = torch.library.Library("_", "IMPL")
            # Library.fallback is there since PyTorch 2.5.
            assert through.m is not None
            through.m.fallback_fallthrough(at)
            self._libraries.append(through)
            self._implement(at, names)
        # Operators such as flex_attention have Python kernels, and ask for one of the first key.
        patches.wrap(torch._ops, "_compute_keyset", self._without_ours)
        self._when_unknown(self._noting)
        patches.also(self._end)
        self.reads.install(patches)
        following.install(patches)

    def _without_ours(self, original: Any, args: Any, kwargs: Any, keys: Any) -> Any:
        return original(args, kwargs, keys - self._keys)

    def stop(self) -> None:
        """Follow no more in this thread: Python's exit has taken the operators' code away."""
        following.stop()
        self._when_unknown(None)

    def _end(self) -> None:
        self.stop()
        self._libraries.clear()
        self.reads.end()

    def _implement(self, at: str, names: Sequence[str]) -> None:
        library = torch.library.Library("aten", "IMPL")
        self._libraries.append(library)
        known = set(_C._dispatch_get_all_op_names())
        done: set[str] = set()
        for base in names:
            for name in {base, base if base.endswith("_") else f"{base}_"} - done:
                done.add(name)
                packet = getattr(_aten, name, None)
                for overload in packet.overloads() if packet is not None else ():
                    op = getattr(packet, overload)
                    followed = Followed.of(op, base)
                    counts = at == COUNTS
                    skipped = counts and followed.given_result
                    if op.name() not in known or skipped or is_composed(op):
                        continue
                    made = self._counted(followed) if counts else self._followed(followed)
                    library.impl(op.name().split("::")[1], made, at)
        if at == COUNTS:
            library.impl("equal", self._equal, at)
        else:
            library.impl("_local_scalar_dense", self._read, at)

    # ---- operators

    def _followed(self, one: Followed) -> Callable[..., Any]:
        """Return an operator that also computes its numbers."""
        keys, guard, op, base = self._keys, _C._ExcludeDispatchKeyGuard, one.op, one.base
        chooses = HIGHEST.get(op.name())
        special: Callable[..., Any] | None = None
        if base in TRANSFERS:
            special = self._transfer
        elif one.draws is not None and chooses is None:
            special = self._draw
        elif base in MAKES:
            special = self._computed
        elif base in COMPARES:
            special = self._compared
        small = _UPDATED if one.updates else 1 if base.startswith("_foreach") else _SMALL
        puts, spreads = base in PUTS, base in DISTRIBUTIONS
        end = ENDS.get(base) if chooses is None else None

        def called(*args: Any, **kwargs: Any) -> Any:
            with guard(keys):
                if special is not None:
                    return special(one, args, kwargs)
                first = args[0] if args else None
                if isinstance(first, list) and first:
                    first = first[0]
                if not isinstance(first, torch.Tensor) or not first.is_floating_point():
                    return self._computed(one, args, kwargs)
                if one.given_result:
                    return op(*args, **kwargs)
                if chooses and first.is_cuda and self.state(first) != KNOWN:
                    return self._spread(op(*args, **kwargs), args, kwargs, *chooses)
                count = first.numel()
                if count <= small or (puts and count <= _PUT):
                    return self._computed(one, args, kwargs)
                # Most calls of a training.
                if not first.is_cuda or type(first) is torch.nn.Parameter:
                    return op(*args, **kwargs)
                if count <= _LARGE and (self._held(first) or (count <= _PUT and self.state(first))):
                    return self._computed(one, args, kwargs)
                out = op(*args, **kwargs)
                if one.writes:
                    self._unknown.drop(first)
                elif spreads:
                    self._distribute(base, out, args[1])
                elif end is not None and isinstance(out, torch.Tensor):
                    self._fill(out, ENDS_OF_RANGE[end])
                return out

        return called

    def _counted(self, one: Followed) -> Callable[..., Any]:
        """Return an operator that is told how large its result is."""
        keys, guard, op, base = self._keys, _C._ExcludeDispatchKeyGuard, one.op, one.base

        def called(*args: Any, **kwargs: Any) -> Any:
            with guard(keys):
                sparse = base == "_coalesce"
                tensors = [args[0]._indices()] if sparse else list(tensors_in((args, kwargs)))
                if not any(each.is_cuda for each in tensors) or not is_plain(tensors):
                    return op(*args, **kwargs)
                chosen_by = [each for each in _masks(base, args) if self._is_made_up(each)]
                if chosen_by and not one.writes and self.reads.choose():
                    for each in chosen_by:
                        self._fill(each, True)
                with self._timed(tensors):
                    made, numbers = read_by(op, base, args, kwargs, self.host, self.knows)
                for size, number in numbers:
                    self._answer(size, number)
                try:
                    out = op(*args, **kwargs)
                finally:
                    self._answer(0, 0)
                if made is not None:
                    self._put(out, made, any(self.state(each) == MADE_UP for each in tensors))
                elif base != "index" or self.knows_some(args[0]):
                    self._work_out(one, args, kwargs, out)
                return out

        return called

    def _is_made_up(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and self.state(tensor) != KNOWN

    def _computed(self, one: Followed, args: Any, kwargs: Any) -> Any:
        out = one.op(*args, **kwargs)
        if one.base not in MOVES or self.knows_some(args[0]):
            self._work_out(one, args, kwargs, out)
        return out

    def _work_out(self, one: Followed, args: Any, kwargs: Any, out: Any) -> None:
        """Compute the numbers of an operator's result on the host, unless that costs too much."""
        given = list(tensors_in((args, kwargs)))
        outs = given if out is None else list(tensors_in((out,)))
        if not any(each.is_cuda for each in outs) or not is_plain(given) or not is_plain(outs):
            return
        written = one.written(args, kwargs)
        targets = {id(each) for each in written}
        sources = [each for each in given if not (one.overwrites and id(each) in targets)]
        state, known = KNOWN, True
        for each in sources:
            of_each = self.state(each)
            if of_each == UNKNOWN and each.is_floating_point():
                known &= each.numel() <= _SMALL or one.base in PUTS or one.base in COMPARES
                of_each = MADE_UP
            state = max(state, of_each)
        sizes = [each.numel() for each in (*given, *outs)]
        if not known or max(sizes, default=0) > _LARGE or not self._may_take(sizes):
            self.forget(written)
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if _asks_whether_finite(one, args):
            state = KNOWN
        for each in written:
            if each.is_cuda and each.is_floating_point() and not self.state(each):
                self._unknown.write(each)
        view = functools.partial(self._seen, targets)
        with contextlib.suppress(Exception), self._timed(given):
            host_args, host_kwargs = on_host(args, view), on_host(kwargs, view)
            host_kwargs.pop("pin_memory", None)
            made = one.op(*host_args, **host_kwargs)
            keeps = state == KNOWN or one.base in PUTS or one.base in MOVES
            if not one.writes:
                self._put(out, made, state == MADE_UP, finite=not keeps)
            for each in written:
                if not keeps and each.is_cuda:
                    self._make_finite(over(each), each)
                self._mark_all(each, state == MADE_UP)

    def _seen(self, targets: set[int], tensor: torch.Tensor) -> torch.Tensor:
        return over(tensor) if id(tensor) in targets else self.host(tensor)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a CPU tensor with the numbers that a tensor reads as; it may not be written to."""
        if not tensor.is_cuda:
            return tensor
        if tensor.dtype.is_floating_point and tensor.numel() and not self.state(tensor):
            return self._unknown.like(tensor)
        self._settle(tensor)
        return over(tensor)

    def _settle(self, tensor: torch.Tensor) -> None:
        made = self._unknown.settle(tensor)
        if made is not None:
            self._mark(*made)

    def _distribute(self, base: str, out: torch.Tensor, dim: int) -> None:
        """Rows of a softmax over unknown numbers sum to one when they are read."""
        if out.numel() <= _LARGE and out.is_contiguous() and is_plain((out,)):
            log = base == "_log_softmax"
            make = functools.partial(distribution, out.shape, dim, log=log, dtype=out.dtype)
            self._unknown.postpone(out, make, made_up=True)

    def _spread(self, out: Any, args: Any, kwargs: Any, place: int, default: int | None) -> Any:
        """Of scores that are not known each is the highest as often as any other."""
        places = out[1] if isinstance(out, tuple) else out
        dim = args[place] if place < len(args) else kwargs.get("dim", default)
        if places.numel() <= _PUT and args[0].numel() and is_plain((places, args[0])):
            self._put(places, spread(places, args[0], dim), made_up=True)
            self._say(BALANCED)
        return out

    def _compared(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Compare, and where one answer holds for all unknown numbers, at any size."""
        out = one.op(*args, **kwargs)
        if one.given_result or not isinstance(out, torch.Tensor):
            self._work_out(one, args, kwargs, out)
            return out
        everywhere = self._everywhere(one, args)
        if everywhere is None:
            self._work_out(one, args, kwargs, out)
        elif is_plain((out,)) and self._may_take([out.numel()]):
            self._fill(out, everywhere, made_up=not _asks_whether_finite(one, args))
        return out

    def _everywhere(self, one: Followed, args: Any) -> bool | None:
        """Return what a comparison answers for each unknown number; None: it depends."""
        first, others = args[0], args[1:]
        if not isinstance(first, torch.Tensor) or first.numel() <= _SMALL:
            return None
        if not (first.is_cuda and first.is_floating_point()) or self.state(first):
            return None
        if one.base.startswith("is"):
            return False
        if one.base not in AGAINST_A_NUMBER or not others:
            return None
        other = others[0]
        if isinstance(other, torch.Tensor):
            if other.is_cuda and one.base in ("eq", "ne") and other.data_ptr() == first.data_ptr():
                return one.base == "eq"
            return None
        ends = one.op(torch.tensor(ENDS_OF_RANGE, device="cpu"), other).tolist()
        return bool(ends[0]) if ends[0] == ends[1] else None

    def _draw(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Draw random numbers on the host: large ones of floats when they are read."""
        out = one.op(*args, **kwargs)
        if not out.is_cuda or not is_plain((out,)) or torch.cuda.is_current_stream_capturing():
            return out
        if not out.is_floating_point() or out.numel() <= _SMALL:
            drawn = functools.partial(self._drawn_now, one, out.device.index)
            self._work_out(dataclasses.replace(one, op=drawn), args, kwargs, out)
            return out
        self.forget((out,))
        alone = out.is_contiguous() and out.untyped_storage().nbytes() == out.nbytes
        if out.numel() <= _LARGE and alone and not any(tensors_in((args[1:], kwargs))):
            self._draws += 1
            seed = torch.cuda.default_generators[out.device.index or 0].initial_seed()
            make = functools.partial(
                _drawn_later, one, args[1:], seed + self._draws, out.shape, out.dtype
            )
            self._unknown.postpone(out, make, made_up=False)
        return out

    def _drawn_now(self, one: Followed, device: int | None, *args: Any, **kwargs: Any) -> Any:
        """Draw on the host, whose own generator stays where it is."""
        generator = self._generator(device)
        if one.draws:
            return one.op(*args, **{**kwargs, "generator": generator})
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(generator.get_state())
            made = one.op(*args, **kwargs)
            generator.set_state(torch.get_rng_state())
        return made

    def _put(self, out: Any, made: Any, made_up: bool, *, finite: bool = False) -> None:
        """Write what was computed on the host behind the operator's own result."""
        for one, other in zip(tensors_in((out,)), tensors_in((made,)), strict=False):
            if one.is_cuda and one.numel() and one.shape == other.shape:
                # Memory that is handed out is zero, and pages that stay so cost nothing.
                if one.numel() <= _TIMED or bool(other.any()):
                    over(one).copy_(other)
                if finite and made_up:
                    self._make_finite(over(one), one)
                self._mark_all(one, made_up)

    def _make_finite(self, numbers: torch.Tensor, tensor: torch.Tensor) -> None:
        """Replace what is infinite or NaN in numbers that follow from unknown ones."""
        if numbers.is_floating_point():
            finite = numbers.isfinite()
            if not bool(finite.all()):
                numbers.copy_(torch.where(finite, numbers, self._unknown.like(tensor)))

    def _fill(self, out: torch.Tensor, value: float | bool, *, made_up: bool = True) -> None:
        """Let every element be this value."""
        if value and out.numel() and (out.dtype in MASKS or out.numel() <= _PUT):
            over(out).fill_(value)
        self._mark_all(out, made_up)

    def _mark_all(self, tensor: torch.Tensor, made_up: bool) -> None:
        if tensor.is_cuda and tensor.numel():
            self._mark(tensor.data_ptr(), _extent(tensor), made_up)

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Something was written there that is not known."""
        for one in tensors:
            if one.is_cuda and one.numel() and one.is_floating_point():
                self._unknown.drop(one)
                self._zero(one.data_ptr(), _extent(one))

    def _transfer(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Copy, which may be between the GPU and the host."""
        source = args[1 if one.writes else 0]
        if not isinstance(source, torch.Tensor):
            return one.op(*args, **kwargs)
        if source.is_cuda and source.numel() <= _LARGE:
            self._settle(source)
        self._source = source
        try:
            out = one.op(*args, **kwargs)
        finally:
            self._source = None
        if not (out.is_cuda or source.is_cuda) or not is_plain((out, source)):
            return out
        if not source.is_cuda:
            self._arrive(out, source)
        elif not out.is_cuda:
            self._leave(out, source)
        elif source.numel() <= _SMALL or (self._held(source) and not _is_weight(source)):
            self._work_out(one, args, kwargs, out)
        elif one.writes:
            self.forget((out,))
        return out

    def _arrive(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """Keep numbers from the host that the driver did not: large ones, or laid out anew."""
        if self._held(out) and out.dtype is source.dtype:
            return
        weight = out.is_floating_point() and (_is_weight(source) or _is_weight(out))
        if out.numel() <= (_PUT if weight else _LARGE) and self._may_take([out.numel()]):
            with self._timed((out,)):
                over(out).copy_(source)
            self._mark_all(out, False)

    def _leave(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """Hand numbers to the host that the driver does not: unknown, or laid out anew."""
        unknown = source.is_floating_point() and not self._held(source)
        laid_out_anew = not source.is_contiguous() or source.dtype is not out.dtype
        if (unknown and source.numel() <= _READ) or (laid_out_anew and source.numel() <= _LARGE):
            out.copy_(self.host(source))

    def _read(self, tensor: torch.Tensor) -> Any:
        """``tensor.item()``."""
        with _C._ExcludeDispatchKeyGuard(self._keys):
            if tensor.is_cuda:
                self._settle(tensor)
            number = _aten._local_scalar_dense.default(tensor)
            if tensor.is_cuda and tensor.is_floating_point() and is_plain((tensor,)):
                number = self.host(tensor).item()
            return number

    def _equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """``torch.equal``; it runs for the memory that it takes."""
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
            if UNKNOWN in (self.state(one), self.state(other)) or one.numel() > _LARGE:
                return True
            return bool(torch.equal(self.host(one), self.host(other)))

    # ---- what is known

    def _held(self, tensor: torch.Tensor) -> int:
        """Return UNKNOWN, KNOWN or MADE_UP for the bytes behind a tensor."""
        if not tensor.is_cuda or tensor.layout is not torch.strided or not tensor.numel():
            return UNKNOWN
        return int(self._holds(tensor.data_ptr(), _extent(tensor)))

    def state(self, tensor: torch.Tensor) -> int:
        """Return whether the numbers of a tensor are UNKNOWN, KNOWN or MADE_UP."""
        if not tensor.is_cuda or not tensor.numel():
            return KNOWN
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return UNKNOWN
        if found := self._held(tensor):
            return found
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return KNOWN
        postponed = self._unknown.postponed(tensor)
        return UNKNOWN if postponed is None else MADE_UP if postponed else KNOWN

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether the code put the numbers there, or they follow from such."""
        return self._held(tensor) == KNOWN

    def knows_some(self, tensors: Any) -> bool:
        """Return whether one of the tensors holds something, or is the host's."""
        if isinstance(tensors, torch.Tensor):
            tensors = (tensors,)
        for one in tensors:
            if not one.is_cuda or self._held(one) or self._unknown.postponed(one) is not None:
                return True
        return False

    def know(self, tensor: torch.Tensor, value: Any) -> None:
        """Let every element of a tensor on the GPU be this."""
        if tensor.is_cuda and tensor.numel() and stub.maps():
            over(tensor).fill_(value)
            self._mark_all(tensor, False)

    def _note(self, address: int) -> None:
        """Something is read that is not known, unless it was laid anew on its way to the host."""
        if self._source is None or self.state(self._source) != KNOWN:
            self.reads.note()

    # ---- what it costs

    def _may_take(self, sizes: Iterable[int]) -> bool:
        """Return whether there is time left for tensors of so many elements."""
        if self._left > 0 or max(sizes, default=0) <= _TIMED:
            return True
        self.reads.limit()
        return False

    @contextlib.contextmanager
    def _timed(self, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
        """Take the time of large tensors; so little work as small ones make needs no threads."""
        if max((one.numel() for one in tensors), default=0) <= _TIMED:
            with one_thread():
                yield
            return
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._left -= time.perf_counter() - begin

    @contextlib.contextmanager
    def nothing_equal(self) -> Iterator[None]:
        """``torch.equal`` says no of all that is compared meanwhile."""
        self._nothing_equal = True
        try:
            yield
        finally:
            self._nothing_equal = False

    def _generator(self, device: int | None) -> torch.Generator:
        """Draws of the GPU leave the host's own generator where it is."""
        index = device or 0
        if index not in self._generators:
            seed = torch.cuda.default_generators[index].initial_seed()
            self._generators[index] = torch.Generator().manual_seed(seed)
        return self._generators[index]


def _drawn_later(
    one: Followed, settings: Any, seed: int, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    one.op(made, *settings, generator=generator)
    return made


def _asks_whether_finite(one: Followed, args: Any) -> bool:
    """Numbers that nobody computes are finite, as a sound program's are: that is no guess."""
    if one.base not in COMPARES:
        return False
    if one.base.startswith("is"):
        return True
    if one.base in AGAINST_A_NUMBER and len(args) > 1:
        other = args[1]
        if isinstance(other, torch.Tensor):
            return isinstance(args[0], torch.Tensor) and other.data_ptr() == args[0].data_ptr()
        return isinstance(other, float) and not math.isfinite(other)
    return False


def _masks(base: str, args: Any) -> list[torch.Tensor]:
    """Return the tensors in which an operator counts what it keeps."""
    if base not in ("nonzero", "masked_select", "index"):
        return []
    return [one for one, _ in counted_in(base, args)]


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    count = tensor.numel() if tensor.is_contiguous() else span(tensor)
    return count * tensor.element_size()


def _is_weight(tensor: torch.Tensor) -> bool:
    """Nobody decides by the numbers of a weight."""
    return isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad
