"""Objects that other ranks would send this one: its own copies, what it sends, or theirs."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from memcalc.engine.follow.messages import Call, Messages, get_ranks, name_channel
from memcalc.engine.patches import Patches


class Objects:
    """Answers PyTorch's functions that send objects."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._own: list[bytes] = []
        """Objects that this rank has sent, pickled."""

    def install(self, patches: Patches) -> None:
        """Patch torch.distributed's functions that send and receive Python objects."""
        around: dict[str, Callable[..., Any]] = {
            "all_gather_object": _all_gather_object,
            "gather_object": _gather_object,
            "broadcast_object_list": self._broadcast_object_list,
            "scatter_object_list": self._scatter_object_list,
            "send_object_list": self._send_object_list,
            "recv_object_list": self._recv_object_list,
        }
        for name, function in around.items():
            if hasattr(distributed_c10d, name):
                patches.wrap(distributed_c10d, name, function, also=(dist,))

    def _broadcast_object_list(self, original: Any, *args: Any, **kwargs: Any) -> None:
        call = Call(original, args, kwargs)
        channel = name_channel("objects", call.group, call.source, None)
        if call.source == dist.get_rank():
            self._post(channel, call["object_list"])
        else:
            call["object_list"][:] = self._receive(channel, call, call["object_list"])

    def _scatter_object_list(self, original: Any, *args: Any, **kwargs: Any) -> None:
        call, here = Call(original, args, kwargs), dist.get_rank()
        out = call["scatter_object_output_list"]
        if call.source != here:
            channel = name_channel("objects", call.group, call.source, here)
            out[0] = self._receive(channel, call, out[:1])[0]
            return
        given = call["scatter_object_input_list"] or ()
        for target, one in zip(get_ranks(call.group), given, strict=False):
            if target == here:
                out[0] = one
            else:
                self._post(name_channel("objects", call.group, here, target), [one])

    def _send_object_list(self, original: Any, *args: Any, **kwargs: Any) -> None:
        call = Call(original, args, kwargs)
        self._messages.meet(call.group, call.target)
        channel = name_channel("objects", call.group, dist.get_rank(), call.target)
        self._post(channel, call["object_list"])

    def _recv_object_list(self, original: Any, *args: Any, **kwargs: Any) -> int:
        call = Call(original, args, kwargs)
        if not call.names_source:
            call.source = _neighbour(call.group)
        self._messages.meet(call.group, call.source)
        channel = name_channel("objects", call.group, call.source, dist.get_rank())
        found = call["object_list"]
        own = [None] * len(found) if self._messages.mail is not None else found
        found[:] = self._receive(channel, call, own)
        return call.source

    def _post(self, channel: str, objects: list[Any]) -> None:
        content = pickle.dumps(objects)
        self._own.append(content)
        if self._messages.mail is not None:
            self._messages.mail.post(channel, content)

    def _receive(self, channel: str, call: Call, own: list[Any]) -> list[Any]:
        """Return objects of another rank: this rank's copies of them, or what it sends.

        Without another rank to ask, return what this rank has sent last.
        """
        number = self._messages.received.get(channel, 0)
        self._messages.received[channel] = number + 1
        if all(own):
            return own
        if self._messages.mail is not None:
            sent = self._messages.mail.fetch(call.source, channel, number, str(call))
            return list(pickle.loads(sent))
        for content in reversed(self._own):
            objects = pickle.loads(content)
            if len(objects) == len(own):
                return list(objects)
        return own


def _all_gather_object(original: Any, object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
    object_list[:] = _copy_object(obj, len(object_list))


def _gather_object(
    original: Any, obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any
) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = _copy_object(obj, len(object_gather_list))


def _copy_object(obj: Any, count: int) -> list[Any]:
    """Return a list of independent copies of an object."""
    with contextlib.suppress(Exception):
        content = pickle.dumps(obj)
        return [pickle.loads(content) for _ in range(count)]
    return [obj] * count


def _neighbour(group: Any) -> int:
    """Return the next rank of a group: the assumed sender of a message from any rank."""
    ranks = get_ranks(group)
    return ranks[(ranks.index(dist.get_rank()) + 1) % len(ranks)]
