"""Values that a program reads back from the simulated GPU: one rule.

Kernels do nothing over the stub driver, but its device memory is real memory of the host. What was
copied there is read back. Behind an operator of PyTorch's that makes small integers, booleans or a
few other numbers, the same operator runs on CPU tensors over the same bytes. Random numbers among
them are drawn on the host. All else reads as zero, and the line that read it is named.

Operators are followed below autograd, by a dispatch key that PyTorch keeps for fake tensors; no
dispatch mode is needed. In backward only those are that ask the GPU how large their result is,
but for Python code that runs there: a function's own backward, and a forward that is run again.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from memcalc.engine import following, source_lines
from memcalc.engine.followed_operators import (
    CALLED_WITH_OUT,
    COMPARES,
    HIGHEST,
    MOVES,
    PLACES,
    PUTS,
    RESULTS,
    UNDEFINED_AT_ZERO,
    WITH_COUNTS,
    draws,
    is_composed,
    read_by,
    spread,
    written,
)
from memcalc.engine.following import COUNTS, VALUES, key
from memcalc.engine.host_view import (
    FLOATS,
    WHOLES,
    fits,
    is_plain,
    on_host,
    one_thread,
    over,
    span,
    tensors_in,
)
from memcalc.engine.patches import Patches
from memcalc.engine.stub import load as stub

_aten: Any = torch.ops.aten
_C: Any = torch._C
_HELD, _MOVED = 1 << 16, 1 << 20
"""Elements of the largest tensors of fractions that are worked out where some of theirs are known:
any, and those that are only laid anew or counted."""
_COMPARED = 1 << 22
"""Elements of the largest tensor of fractions that a comparison looks at."""
RULE = (
    "values that the code put on the GPU, and integers and masks derived from them, read back "
    "correctly"
)
ZEROS = "reads such as `.item()` at {} return 0 here (this rarely changes memory)"
BALANCED = (
    "`topk`, `argmax` and the like choose each place equally often where scores are not computed "
    "here, as a balanced router does"
)
_SHOWN = 6
"""Lines of a script that are named."""


class Values:
    """Follows what a program has on the GPU."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._libraries: list[Any] = []
        self.unknown: dict[str, None] = {}
        """Lines that read unknown values."""
        self._nothing_equal = False
        self._source: Any = None
        """What is copied at the moment."""
        self._generators: dict[int, torch.Generator] = {}
        driver = ctypes.CDLL(None)
        self._mark, self._holds = driver.memcalc_stub_mark, driver.memcalc_stub_holds
        self._answer = driver.memcalc_stub_answer
        self._mark.argtypes = self._holds.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._mark.restype = None
        self._answer.argtypes, self._answer.restype = [ctypes.c_size_t, ctypes.c_longlong], None
        self._when_unknown = driver.memcalc_stub_when_unknown
        self._noting = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(self._note)
        self._keys = _C.DispatchKeySet(key(VALUES)) | _C.DispatchKeySet(key(COUNTS))

    def install(self, patches: Patches) -> None:
        """Follow from now on, in this thread and in those that the program starts."""
        if not stub.maps():
            self._say(ZEROS.format("every line"))
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
        self._say(RULE)
        if self.unknown:
            shown = [*self.unknown][:_SHOWN]
            more = len(self.unknown) - len(shown)
            self._say(ZEROS.format(", ".join([*shown, *([f"{more} more"] if more else [])])))

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
                    writes_out = "out" in overload.split("_") and base not in CALLED_WITH_OUT
                    if op.name() not in known or writes_out or is_composed(op):
                        continue
                    made = self._counted if at == COUNTS else self._worked_out
                    library.impl(op.name().split("::")[1], made(op, base), at)
        if at == COUNTS:
            library.impl("equal", self._equal, at)

    # ---- operators

    def _worked_out(self, op: Any, base: str) -> Callable[..., Any]:
        """An operator whose small results are worked out."""
        keys, guard = self._keys, _C._ExcludeDispatchKeyGuard
        highest = HIGHEST.get(op.name())
        compares, puts = base in COMPARES, bool(highest) or base in PUTS or base in PLACES
        most = _COMPARED if compares else 1 if base.startswith("_foreach") else FLOATS
        if base == "uniform_":
            most = _HELD  # A mask may come of it.
        writes = written(op)
        drawn = draws(op)
        transfers, moves = base in ("_to_copy", "copy_"), base in MOVES
        held = _MOVED if transfers or moves or base == "sum" else _HELD
        undefined = UNDEFINED_AT_ZERO.get(base)
        # Nobody decides by a weight that was updated.
        updates = bool(writes) and not (puts or transfers)

        def called(*args: Any, **kwargs: Any) -> Any:
            with guard(keys):
                # A copy is worth as much as its source.
                first = args[bool(writes)] if transfers else args[0] if args else None
                if isinstance(first, list) and first:
                    first = first[0]
                if (
                    isinstance(first, torch.Tensor)
                    and first.is_floating_point()
                    and first.numel() > most
                ):
                    limit = WHOLES if puts else held
                    if updates or first.numel() > limit or not (puts or self.knows(first)):
                        return op(*args, **kwargs)  # Most calls of a training.
                else:
                    limit = most
                if undefined is not None and self._is_unknown(args, undefined):
                    return op(*args, **kwargs)  # No NaN comes of a zero that stands for a number.
                if transfers:
                    return self._transfer(op, args, kwargs, writes, limit)
                out = op(*args, **kwargs)
                if highest and self._is_unknown(args, 0):
                    self._spread(out, args, kwargs, *highest)
                elif not moves or self._knows_some(args[0]):
                    self._work_out(op, args, kwargs, out, writes, limit, drawn)
                return out

        return called

    def _counted(self, op: Any, base: str) -> Callable[..., Any]:
        """An operator that reads how large its result is."""
        keys, guard = self._keys, _C._ExcludeDispatchKeyGuard
        writes = written(op)

        def called(*args: Any, **kwargs: Any) -> Any:
            with guard(keys):
                sparse = base == "_coalesce"
                tensors = [args[0]._indices()] if sparse else list(tensors_in((args, kwargs)))
                if not any(one.is_cuda for one in tensors) or not is_plain(tensors):
                    return op(*args, **kwargs)
                with one_thread():
                    made, numbers = read_by(op, base, args, kwargs, self.knows)
                for size, number in numbers:
                    self._answer(size, number)
                try:
                    out = op(*args, **kwargs)
                finally:
                    self._answer(0, 0)
                if made is not None:
                    self._put(out, made)
                elif base != "index" or self.knows(args[0]):
                    limit = WHOLES if "put" in base else _HELD
                    self._work_out(op, args, kwargs, out, writes, limit, None)
                return out

        return called

    def _work_out(
        self,
        op: Any,
        args: Any,
        kwargs: Any,
        out: Any,
        writes: list[tuple[int, str]],
        most: int,
        draws: bool | None,
    ) -> None:
        given = list(tensors_in((args, kwargs)))
        outs = given if out is None else list(tensors_in((out,)))
        if not any(one.is_cuda for one in outs) or not is_plain(given):
            return
        if not all(fits(one, most) for one in given):
            return
        if out is not None and not (is_plain(outs) and all(fits(one, most) for one in outs)):
            return
        if torch.cuda.is_current_stream_capturing():
            return
        with contextlib.suppress(Exception), one_thread():
            host_args, host_kwargs = on_host(args), on_host(kwargs)
            host_kwargs.pop("pin_memory", None)
            if draws is None:
                made = op(*host_args, **host_kwargs)
            else:
                made = self._draw(op, host_args, host_kwargs, out.device.index, draws)
            if not writes:
                self._put(out, made)
            for place, name in writes:
                for one in tensors_in((args[place] if place < len(args) else kwargs.get(name),)):
                    self._held(one)

    def _spread(self, out: Any, args: Any, kwargs: Any, place: int, default: int | None) -> None:
        """Of scores that are not known each is the highest as often as any other."""
        places = out[1] if isinstance(out, tuple) else out
        dim = args[place] if place < len(args) else kwargs.get("dim", default)
        if places.numel() <= WHOLES and args[0].numel() and is_plain((places, args[0])):
            self._put(places, spread(places, args[0], dim))
            self._say(BALANCED)

    def _draw(
        self, op: Any, args: Any, kwargs: dict[str, Any], device: int | None, named: bool
    ) -> Any:
        """Draw on the host, whose own generator stays where it is."""
        generator = self._generator(device)
        if named:
            return op(*args, **{**kwargs, "generator": generator})
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(generator.get_state())
            made = op(*args, **kwargs)
            generator.set_state(torch.get_rng_state())
        return made

    def _put(self, out: Any, made: Any) -> None:
        """Write what was worked out on the host behind the operator's own result."""
        for one, other in zip(tensors_in((out,)), tensors_in((made,)), strict=False):
            if one.is_cuda and one.numel() and one.shape == other.shape:
                over(one).copy_(other)
                self._held(one)

    def _held(self, tensor: torch.Tensor) -> None:
        if tensor.is_cuda and tensor.numel():
            count = tensor.numel() if tensor.is_contiguous() else span(tensor)
            self._mark(tensor.data_ptr(), count * tensor.element_size())

    def _transfer(
        self, op: Any, args: Any, kwargs: Any, writes: list[tuple[int, str]], most: int
    ) -> Any:
        """A copy, which may be one between the GPU and the host."""
        source = args[1 if writes else 0]
        self._source = source
        try:
            out = op(*args, **kwargs)
        finally:
            self._source = None
        if not isinstance(source, torch.Tensor) or out.is_cuda == source.is_cuda:
            self._work_out(op, args, kwargs, out, writes, most, None)
        elif not is_plain((out, source)):
            pass
        elif not out.is_cuda:
            laid_anew = not source.is_contiguous() or source.dtype is not out.dtype
            if laid_anew and source.numel() <= WHOLES:
                out.copy_(over(source))
        elif fits(out, FLOATS) and out.dtype is not source.dtype:
            # Numbers that were laid anew on the way.
            over(out).copy_(source)
            self._held(out)
        return out

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
            if max(one.numel(), other.numel()) > _COMPARED:
                return True
            return bool(torch.equal(over(one), over(other)))

    def knows(self, tensor: torch.Tensor) -> bool:
        """Something was put there."""
        if not tensor.is_cuda or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if tensor.layout is not torch.strided:
            return False
        return bool(self._holds(tensor.data_ptr(), tensor.numel() * tensor.element_size()))

    def _is_unknown(self, args: Any, place: int) -> bool:
        one = args[place] if place < len(args) else None
        return isinstance(one, torch.Tensor) and one.is_cuda and not self.knows(one)

    def _knows_some(self, tensors: Any) -> bool:
        if isinstance(tensors, torch.Tensor):
            tensors = (tensors,)
        return any(not one.is_cuda or self.knows(one) for one in tensors)

    def _note(self, address: int) -> None:
        """Something is read that is not known, unless it was laid anew on its way to the host."""
        if self._source is None or not self.knows(self._source):
            self.unknown[source_lines.line() or "PyTorch's own code"] = None

    def know(self, tensor: torch.Tensor, value: Any) -> None:
        """Every element of a tensor on the GPU is this."""
        if tensor.is_cuda and tensor.numel() and stub.maps():
            over(tensor).fill_(value)
            self._held(tensor)

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
