"""Messages that other ranks would send this one: sizes and pickled bytes, by any collective.

A message from another rank is replaced by what this rank sends at that place, or by its own copy;
else the other rank runs until it sends it. Only integers are asked for, and on a GPU only when the
host reads them: values of activations change no memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from memcalc.children.child import show
from memcalc.engine import source_lines
from memcalc.engine.follow.mail import EndlessWaitError, Ties, from_environment
from memcalc.engine.patches import Patches
from memcalc.engine.stub import load as stub

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_LARGEST = 8 << 20
"""Bytes of the largest message that is kept: what is copied to the GPU is kept up to as many."""


class Messages:
    """Follows what this rank sends, and answers what it receives."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, ...]] = []
        """Ranks of each group that the program makes, this rank's and others'."""
        self.mail = from_environment()
        """``None``: there is nobody to ask."""
        self._own: dict[str, list[bytes]] = {}
        """What this rank has sent in each group, by broadcast or to one other."""
        self.received: dict[str, int] = {}
        """Messages that arrived so far, by channel."""
        self.peers: set[int] = set()
        """Ranks that this one sends to or receives from, each alone, and those of their group."""
        self._inside = False
        """A message is under way."""
        self._promises: list[Callable[[], bytes | None]] = []
        self._late: list[Callable[[], None]] | None = None
        """Receives in a batch of messages, which are answered when it has sent all of its."""
        self._promise = stub.function("promise", None)
        self._deliver: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(self._fulfill)

    def install(self, patches: Patches) -> None:
        """Patch torch.distributed's functions that send and receive tensors."""
        around: dict[str, Callable[..., Any]] = {
            "broadcast": self._broadcast,
            "send": self._send,
            "isend": self._send,
            "recv": self._recv,
            "irecv": self._recv,
            "scatter": self._scatter,
            "gather": _gather,
            "batch_isend_irecv": self._batch,
        }
        for name, function in around.items():
            patches.wrap(distributed_c10d, name, function, also=(dist,))
        begin = stub.function("when_promised", None)
        if self._promise is not None and begin is not None:
            self._promise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            begin(self._deliver)
            patches.also(lambda: begin(None))

    def _broadcast(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``broadcast``: send the tensor, or fill it with the source's."""
        call = Call(original, args, kwargs)
        channel = name_channel("broadcast", call.group, call.source, None)
        if call.source == dist.get_rank():
            self._post(channel, call.group, call["tensor"])
            return original(*args, **kwargs)
        work = original(*args, **kwargs)
        self._receive(channel, call, echoes=True)
        return work

    def _send(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``send`` and ``isend``: keep the tensor for the rank that receives it."""
        if self._inside:
            return original(*args, **kwargs)
        call = Call(original, args, kwargs)
        self.meet(call.group, call.target)
        channel = name_channel("message", call.group, dist.get_rank(), call.target)
        self._post(channel, call.group, call["tensor"])
        with self._in_one():
            return original(*args, **kwargs)

    def _recv(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``recv`` and ``irecv``: fill the tensor with what the source sends."""
        call = Call(original, args, kwargs)
        if self._inside or not call.names_source:
            return original(*args, **kwargs)
        with self._in_one():
            work = original(*args, **kwargs)
        self.meet(call.group, call.source)
        self._receive(name_channel("message", call.group, call.source, dist.get_rank()), call)
        return work

    @contextlib.contextmanager
    def _in_one(self) -> Iterator[None]:
        """Count calls in this context as one message: ``send`` calls ``isend``."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _batch(self, original: Any, operations: Any) -> Any:
        """Replace ``batch_isend_irecv``: send all before this waits for what it receives."""
        late: list[Callable[[], None]] = []
        self._late = late
        try:
            works = original(operations)
        finally:
            self._late = None
        for fill in late:
            fill()
        return works

    def _scatter(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``scatter``: send each rank its tensor, or fill it with the source's."""
        call = Call(original, args, kwargs)
        work = original(*args, **kwargs)
        if call.source == dist.get_rank():
            for rank, one in zip(get_ranks(call.group), call["scatter_list"] or (), strict=False):
                self._post(name_channel("scatter", call.group, call.source, rank), call.group, one)
        else:
            channel = name_channel("scatter", call.group, call.source, dist.get_rank())
            self._receive(channel, call)
        return work

    def meet(self, group: Any, other: int) -> None:
        """Record that this rank exchanges messages with another, in a group of stages or of all."""
        if other in self.peers:
            return
        ranks = get_ranks(group)
        self.peers |= {other} if len(ranks) == dist.get_world_size() else set(ranks)
        self.peers.discard(dist.get_rank())
        if self.mail is not None:
            self.mail.tell_ties(self.ties)

    @property
    def ties(self) -> Ties:
        """Return the groups and peers that this rank has used so far."""
        return Ties(groups=tuple(dict.fromkeys(self.groups)), peers=tuple(sorted(self.peers)))

    def _post(self, channel: str, group: Any, tensor: Any) -> None:
        """Keep a tensor that this rank sends, if its numbers are known integers."""
        if not _is_whole(tensor):
            return
        content = _read_bytes(tensor)
        self._own.setdefault(name_channel("", group, None, None), []).append(content)
        if self.mail is not None:
            self.mail.post(channel, content)

    def _receive(self, channel: str, call: Call, *, echoes: bool = False) -> None:
        """Fill a tensor with a received message: now on the host, on a GPU when it is read."""
        tensor = call["tensor"]
        if not _is_whole(tensor) or not tensor.is_contiguous():
            return
        number = self.received.get(channel, 0)
        self.received[channel] = number + 1
        own = self._own.get(name_channel("", call.group, None, None), [])
        shown = str(call)

        def content() -> bytes | None:
            alike = [one for one in own if len(one) == _nbytes(tensor)]
            if echoes and number < len(own) and own[number] in alike:
                return own[number]
            if self.mail is None:
                return alike[-1] if alike else None
            return self.mail.fetch(call.source, channel, number, shown)

        def fill() -> None:
            if not tensor.is_cuda:
                _write_bytes(tensor.data_ptr(), content(), _nbytes(tensor))
            elif self._promise is not None:
                self._promises.append(content)
                self._promise(tensor.data_ptr(), _nbytes(tensor), len(self._promises) - 1)

        fill() if self._late is None else self._late.append(fill)

    def _fulfill(self, number: int, at: int) -> None:
        """Write promised bytes to GPU memory that the host now reads."""
        try:
            content = self._promises[number]()
        except EndlessWaitError as error:
            # No error of Python's passes the driver's frames.
            end_waiting(error)
        if content is not None:
            stub.function("mark", None)(ctypes.c_void_p(at), ctypes.c_size_t(len(content)))
            ctypes.memmove(at, content, len(content))


def end_waiting(error: EndlessWaitError) -> NoReturn:
    """End the program, which would wait without end, with one sentence."""
    show(f"memcalc: {error}\n")
    os._exit(1)


def _gather(original: Any, tensor: Any, gather_list: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Replace ``gather``: fill the list with copies of this rank's tensor of integers."""
    work = original(tensor, gather_list, *args, **kwargs)
    if _is_whole(tensor):
        for one in gather_list or ():
            one.copy_(tensor)
    return work


def get_ranks(group: Any) -> list[int]:
    """Return the ranks of a group, or all ranks if it is None."""
    return list(dist.get_process_group_ranks(group or dist.group.WORLD))


def _global_rank(rank: int | None, group: Any, group_rank: int | None) -> int:
    """Return the world rank of an end of a message, given as such or as a rank in a group."""
    if rank is not None or group_rank is None:
        return rank or 0
    return get_ranks(group)[group_rank]


class Call:
    """A call of one of PyTorch's functions that pass messages."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Bind its arguments; None for ones that an older release lacks."""
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        self._name, self._given = function.__name__, bound.arguments
        self.group = self["group"]
        self.source = _global_rank(self["src"], self.group, self["group_src"])
        self.target = _global_rank(self["dst"], self.group, self["group_dst"])

    def __getitem__(self, name: str) -> Any:
        return self._given.get(name)

    def __str__(self) -> str:
        line = source_lines.find_line()
        return f"{self._name}(src={self.source}){f' at {line}' if line else ''}"

    @property
    def names_source(self) -> bool:
        """Return True if the call says which rank sends."""
        return self["src"] is not None or self["group_src"] is not None


def name_channel(kind: str, group: Any, source: int | None, target: int | None) -> str:
    """Return the name of a message channel, the same at both ends."""
    return f"{kind} {zlib.crc32(repr(get_ranks(group)).encode())} {source} {target}"


def _is_whole(tensor: Any) -> bool:
    """Return True for a plain tensor of integers that is small enough to be kept."""
    return (
        type(tensor) is torch.Tensor and tensor.dtype in _WHOLE and 0 < _nbytes(tensor) <= _LARGEST
    )


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _read_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's numbers, zeros if unknown."""
    tensor = tensor.detach()
    if tensor.is_cuda and not tensor.is_contiguous():
        return bytes(_nbytes(tensor))
    if tensor.is_cuda:
        # What was promised and is small arrives before it is passed on.
        stub.function("holds", ctypes.c_int)(
            ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(_nbytes(tensor))
        )
    else:
        tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), _nbytes(tensor))


def _write_bytes(at: int, content: bytes | None, size: int) -> None:
    """Write a message to host memory, as far as there is room for it."""
    if content is not None:
        ctypes.memmove(at, content, min(len(content), size))
