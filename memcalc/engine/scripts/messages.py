"""What other ranks would send this one: sizes, pickled bytes and objects, by any collective.

A message that stands for others is what this rank itself sends at that place, or its own copy; else
it is the other rank's own, which then runs as far as it must. Only whole numbers are asked for, and
on a GPU only once the host reads them: numbers of activations change no memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import sys
import zlib
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.engine.scripts.mail import EndlessWaitError, Ties, from_environment
from memcalc.engine.stub import load as stub

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_LARGEST = 8 << 20
"""Bytes of the largest message that is kept: what is copied to the GPU is kept up to as many."""


class Messages:
    """Follows what this rank sends, and answers what it receives."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, ...]] = []
        """Ranks of each group that the program makes, this rank's and others'."""
        self._mail = from_environment()
        self._own: dict[str, list[bytes]] = {}
        """What this rank has sent in each group, by broadcast or to one other."""
        self._received: dict[str, int] = {}
        self.peers: set[int] = set()
        """Ranks that this one sends to or receives from, each alone, and those of their group."""
        self._promises: list[Callable[[], bytes | None]] = []
        self._exchanged: set[int] | None = None
        """Sizes of what a batch of messages sends, which its receives are answered with."""
        self._promise = stub.function("promise", None)
        self._deliver: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(self._delivered)

    def install(self, patches: Patches) -> None:
        """Follow from now on."""
        around: dict[str, Callable[..., Any]] = {
            "broadcast": self._broadcast,
            "send": self._send,
            "isend": self._send,
            "recv": self._recv,
            "irecv": self._recv,
            "scatter": self._scatter,
            "gather": _gather,
            "batch_isend_irecv": self._batch,
            "all_gather_object": _gather_all_objects,
            "gather_object": _gather_objects,
            "broadcast_object_list": self._broadcast_objects,
            "scatter_object_list": self._scatter_objects,
            "send_object_list": self._send_objects,
            "recv_object_list": self._recv_objects,
        }
        for name, function in around.items():
            if hasattr(distributed_c10d, name):
                patches.wrap(distributed_c10d, name, function, also=(dist,))
        begin = stub.function("when_promised", None)
        if self._promise is not None and begin is not None:
            self._promise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            begin(self._deliver)
            patches.also(lambda: begin(None))

    # ---- tensors ----

    def _broadcast(
        self,
        original: Any,
        tensor: Any,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Any:
        source = _global_rank(src, group, group_src)
        channel = _channel("broadcast", group, source, None)
        if source == dist.get_rank():
            self._post(channel, group, tensor)
            return original(tensor, src, group, async_op, **_if_named(group_src=group_src))
        work = original(tensor, src, group, async_op, **_if_named(group_src=group_src))
        self._receive(channel, group, tensor, source, f"broadcast(src={source})", echoes=True)
        return work

    def _send(
        self,
        original: Any,
        tensor: Any,
        dst: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_dst: int | None = None,
    ) -> Any:
        target = _global_rank(dst, group, group_dst)
        self._meet(group, target)
        self._post(_channel("message", group, dist.get_rank(), target), group, tensor)
        return original(tensor, dst, group, tag, **_if_named(group_dst=group_dst))

    def _recv(
        self,
        original: Any,
        tensor: Any,
        src: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_src: int | None = None,
    ) -> Any:
        work = original(tensor, src, group, tag, **_if_named(group_src=group_src))
        if src is None and group_src is None:
            return work
        source = _global_rank(src, group, group_src)
        self._meet(group, source)
        channel = _channel("message", group, source, dist.get_rank())
        call = f"{original.__name__}(src={source})"
        self._receive(channel, group, tensor, source, call)
        return work

    def _batch(self, original: Any, operations: Any) -> Any:
        self._exchanged = {
            _bytes(one.tensor)
            for one in operations
            if getattr(one.op, "__name__", "") == "isend" and _is_whole(one.tensor)
        }
        try:
            return original(operations)
        finally:
            self._exchanged = None

    def _scatter(
        self,
        original: Any,
        tensor: Any,
        scatter_list: Any = None,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Any:
        source = _global_rank(0 if src is group_src is None else src, group, group_src)
        named = _if_named(group_src=group_src)
        work = original(tensor, scatter_list, src, group, async_op, **named)
        if source == dist.get_rank():
            for target, one in zip(_ranks(group), scatter_list or (), strict=False):
                self._post(_channel("scatter", group, source, target), group, one)
        else:
            channel = _channel("scatter", group, source, dist.get_rank())
            self._receive(channel, group, tensor, source, f"scatter(src={source})")
        return work

    def _meet(self, group: Any, other: int) -> None:
        """Note that this rank passes messages to another, in a group of stages or of all."""
        if other in self.peers:
            return
        ranks = _ranks(group)
        self.peers |= {other} if len(ranks) == dist.get_world_size() else set(ranks)
        self.peers.discard(dist.get_rank())
        if self._mail is not None:
            self._mail.tell_ties(self.ties)

    @property
    def ties(self) -> Ties:
        """How this rank is tied to others, so far."""
        return Ties(groups=tuple(dict.fromkeys(self.groups)), peers=tuple(sorted(self.peers)))

    def _post(self, channel: str, group: Any, tensor: Any) -> None:
        """Keep what this rank sends, where its numbers are whole and known."""
        if not _is_whole(tensor):
            return
        content = _content(tensor)
        self._own.setdefault(_channel("", group, None, None), []).append(content)
        if self._mail is not None:
            self._mail.post(channel, content)

    def _receive(
        self, channel: str, group: Any, tensor: Any, source: int, call: str, *, echoes: bool = False
    ) -> None:
        """Put what arrives into a tensor, at once on the host and once it is read on a GPU."""
        if not _is_whole(tensor) or not tensor.is_contiguous():
            return
        number = self._received.get(channel, 0)
        self._received[channel] = number + 1
        exchanged = self._exchanged is not None and _bytes(tensor) in self._exchanged
        own = self._own.get(_channel("", group, None, None), [])
        call = f"{call}{f' at {line}' if (line := source_lines.line()) else ''}"

        def content() -> bytes | None:
            alike = [one for one in own if len(one) == _bytes(tensor)]
            if echoes and number < len(own) and own[number] in alike:
                return own[number]
            if self._mail is None or exchanged:
                return alike[-1] if alike else None
            return self._mail.fetch(source, channel, number, call)

        if not tensor.is_cuda:
            _fill(tensor.data_ptr(), content(), _bytes(tensor))
        elif self._promise is not None and not exchanged:
            self._promises.append(content)
            self._promise(tensor.data_ptr(), _bytes(tensor), len(self._promises) - 1)

    def _delivered(self, number: int, at: int) -> None:
        """Put what was promised onto the GPU: the host reads it."""
        try:
            content = self._promises[number]()
        except EndlessWaitError as error:
            # No error of Python's passes the driver's frames.
            end_waiting(error)
        if content is not None:
            stub.function("mark", None)(ctypes.c_void_p(at), ctypes.c_size_t(len(content)))
            ctypes.memmove(at, content, len(content))

    # ---- objects ----

    def _broadcast_objects(
        self,
        original: Any,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *args: Any,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> None:
        source = _global_rank(0 if src is group_src is None else src, group, group_src)
        channel = _channel("objects", group, source, None)
        if source == dist.get_rank():
            self._post_objects(channel, object_list)
        else:
            call = f"broadcast_object_list(src={source})"
            object_list[:] = self._objects(channel, source, call, object_list)

    def _scatter_objects(
        self,
        original: Any,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        source = _global_rank(0 if src is group_src is None else src, group, group_src)
        here = dist.get_rank()
        if source != here:
            own = scatter_object_output_list[:1]
            channel, call = _channel("objects", group, source, here), "scatter_object_list"
            found = self._objects(channel, source, f"{call}(src={source})", own)
            scatter_object_output_list[0] = found[0]
            return
        for target, one in zip(_ranks(group), scatter_object_input_list or (), strict=False):
            if target == here:
                scatter_object_output_list[0] = one
            else:
                self._post_objects(_channel("objects", group, here, target), [one])

    def _send_objects(
        self,
        original: Any,
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        *args: Any,
        group_dst: int | None = None,
        **kwargs: Any,
    ) -> None:
        target = _global_rank(dst, group, group_dst)
        self._meet(group, target)
        self._post_objects(_channel("objects", group, dist.get_rank(), target), object_list)

    def _recv_objects(
        self,
        original: Any,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *args: Any,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> int:
        unknown = src is None and group_src is None
        source = _neighbour(group) if unknown else _global_rank(src, group, group_src)
        self._meet(group, source)
        channel = _channel("objects", group, source, dist.get_rank())
        call = f"recv_object_list(src={source})"
        own = [None] * len(object_list) if self._mail is not None else object_list
        object_list[:] = self._objects(channel, source, call, own)
        return source

    def _post_objects(self, channel: str, objects: list[Any]) -> None:
        content = pickle.dumps(objects)
        self._own.setdefault("objects", []).append(content)
        if self._mail is not None:
            self._mail.post(channel, content)

    def _objects(self, channel: str, source: int, call: str, own: list[Any]) -> list[Any]:
        """Return objects of another rank: this rank's own copies, or the other's where it has none.

        Without another to ask, what this rank has sent last stands for them.
        """
        number = self._received.get(channel, 0)
        self._received[channel] = number + 1
        if all(own):
            return own
        if self._mail is not None:
            line = source_lines.line()
            call = f"{call}{f' at {line}' if line else ''}"
            return list(pickle.loads(self._mail.fetch(source, channel, number, call)))
        for content in reversed(self._own.get("objects", [])):
            sent = pickle.loads(content)
            if len(sent) == len(own):
                return list(sent)
        return own


def end_waiting(error: EndlessWaitError) -> NoReturn:
    """End the program, which would wait without end, with one sentence."""
    print(f"memcalc: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def _gather(original: Any, tensor: Any, gather_list: Any = None, *args: Any, **kwargs: Any) -> Any:
    work = original(tensor, gather_list, *args, **kwargs)
    if _is_whole(tensor):
        for one in gather_list or ():
            one.copy_(tensor)
    return work


def _gather_all_objects(
    original: Any, object_list: list[Any], obj: Any, *_: Any, **__: Any
) -> None:
    object_list[:] = _copies(obj, len(object_list))


def _gather_objects(
    original: Any, obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any
) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = _copies(obj, len(object_gather_list))


def _copies(obj: Any, count: int) -> list[Any]:
    """Return copies of an object that a program may change one by one."""
    with contextlib.suppress(Exception):
        content = pickle.dumps(obj)
        return [pickle.loads(content) for _ in range(count)]
    return [obj] * count


def _if_named(**kwargs: Any) -> dict[str, Any]:
    """Arguments that older releases do not have, where they are given."""
    return {name: value for name, value in kwargs.items() if value is not None}


def _ranks(group: Any) -> list[int]:
    return list(dist.get_process_group_ranks(group or dist.group.WORLD))


def _global_rank(rank: int | None, group: Any, group_rank: int | None) -> int:
    if rank is not None or group_rank is None:
        return rank if rank is not None else 0
    return _ranks(group)[group_rank]


def _neighbour(group: Any) -> int:
    """The rank that a message from anybody is taken to come from: the next."""
    ranks = _ranks(group)
    return ranks[(ranks.index(dist.get_rank()) + 1) % len(ranks)]


def _channel(kind: str, group: Any, source: int | None, target: int | None) -> str:
    """The name by which both ends know messages of a group; groups of the same ranks are one."""
    return f"{kind} {zlib.crc32(repr(_ranks(group)).encode())} {source} {target}"


def _is_whole(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor and tensor.dtype in _WHOLE and 0 < _bytes(tensor) <= _LARGEST
    )


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _content(tensor: torch.Tensor) -> bytes:
    """Return the numbers of a tensor; those on a GPU lie behind its address, zeros if unknown."""
    tensor = tensor.detach()
    if tensor.is_cuda and not tensor.is_contiguous():
        return bytes(_bytes(tensor))
    if tensor.is_cuda:
        # What was promised and is small arrives before it is passed on.
        stub.function("holds", ctypes.c_int)(
            ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(_bytes(tensor))
        )
    else:
        tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), _bytes(tensor))


def _fill(at: int, content: bytes | None, size: int) -> None:
    """Write a message to host memory, as far as there is room for it."""
    if content is not None:
        ctypes.memmove(at, content, min(len(content), size))
