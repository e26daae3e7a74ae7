"""Objects that other ranks would send this one: its own copies, what it sends, or theirs."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from memcalc.engine import source_lines
from memcalc.engine.follow.messages import Messages, channel_of, global_rank, ranks_of
from memcalc.engine.patches import Patches


class Objects:
    """Answers PyTorch's functions that send objects."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._own: list[bytes] = []
        """What this rank has sent, pickled."""

    def install(self, patches: Patches) -> None:
        """Answer from now on."""
        around: dict[str, Callable[..., Any]] = {
            "all_gather_object": _gather_all,
            "gather_object": _gather,
            "broadcast_object_list": self._broadcast,
            "scatter_object_list": self._scatter,
            "send_object_list": self._send,
            "recv_object_list": self._recv,
        }
        for name, function in around.items():
            if hasattr(distributed_c10d, name):
                patches.wrap(distributed_c10d, name, function, also=(dist,))

    def _broadcast(
        self,
        original: Any,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *args: Any,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> None:
        source = _source_of(src, group, group_src)
        channel = channel_of("objects", group, source, None)
        if source == dist.get_rank():
            self._post(channel, object_list)
        else:
            call = f"broadcast_object_list(src={source})"
            object_list[:] = self._objects(channel, source, call, object_list)

    def _scatter(
        self,
        original: Any,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        source = _source_of(src, group, group_src)
        here = dist.get_rank()
        if source != here:
            own = scatter_object_output_list[:1]
            channel, call = channel_of("objects", group, source, here), "scatter_object_list"
            found = self._objects(channel, source, f"{call}(src={source})", own)
            scatter_object_output_list[0] = found[0]
            return
        for target, one in zip(ranks_of(group), scatter_object_input_list or (), strict=False):
            if target == here:
                scatter_object_output_list[0] = one
            else:
                self._post(channel_of("objects", group, here, target), [one])

    def _send(
        self,
        original: Any,
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        *args: Any,
        group_dst: int | None = None,
        **kwargs: Any,
    ) -> None:
        target = global_rank(dst, group, group_dst)
        self._messages.meet(group, target)
        self._post(channel_of("objects", group, dist.get_rank(), target), object_list)

    def _recv(
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
        source = _neighbour(group) if unknown else global_rank(src, group, group_src)
        self._messages.meet(group, source)
        channel = channel_of("objects", group, source, dist.get_rank())
        call = f"recv_object_list(src={source})"
        own = [None] * len(object_list) if self._messages.mail is not None else object_list
        object_list[:] = self._objects(channel, source, call, own)
        return source

    def _post(self, channel: str, objects: list[Any]) -> None:
        content = pickle.dumps(objects)
        self._own.append(content)
        if self._messages.mail is not None:
            self._messages.mail.post(channel, content)

    def _objects(self, channel: str, source: int, call: str, own: list[Any]) -> list[Any]:
        """Return objects of another rank: this rank's own copies, or the other's where it has none.

        Without another to ask, what this rank has sent last stands for them.
        """
        number = self._messages.received.get(channel, 0)
        self._messages.received[channel] = number + 1
        if all(own):
            return own
        if self._messages.mail is not None:
            line = source_lines.line()
            call = f"{call}{f' at {line}' if line else ''}"
            return list(pickle.loads(self._messages.mail.fetch(source, channel, number, call)))
        for content in reversed(self._own):
            sent = pickle.loads(content)
            if len(sent) == len(own):
                return list(sent)
        return own


def _gather_all(original: Any, object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
    object_list[:] = _copies(obj, len(object_list))


def _gather(
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


def _source_of(src: int | None, group: Any, group_src: int | None) -> int:
    """The rank that sends to all others: the first where none is named."""
    return global_rank(0 if src is group_src is None else src, group, group_src)


def _neighbour(group: Any) -> int:
    """The rank that a message from anybody is taken to come from: the next."""
    ranks = ranks_of(group)
    return ranks[(ranks.index(dist.get_rank()) + 1) % len(ranks)]
