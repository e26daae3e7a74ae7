"""Checkpoints of a simulated run: nothing is written, and what was saved can be loaded again."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memcalc.script import place
from memcalc.script.parameters import on_host
from memcalc.script.patches import Patches
from memcalc.trace.torch_private import without_dispatch

Say = Callable[[str], None]


def install(patches: Patches, say: Say) -> None:
    """Keep checkpoints in place of writing them.

    Args:
        patches: what is changed.
        say: told what was not done.
    """
    saved: dict[Any, Any] = {}

    def not_written(what: str = "checkpoints") -> None:
        at = place.line()
        say(f"{what} are not written{f' ({at})' if at else ''}")

    def save(original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        saved[_key(f)] = _on_host(obj)
        not_written()

    def load(original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _key(f) in saved:
            return _placed(saved[_key(f)], map_location)
        if isinstance(f, str | os.PathLike) and kwargs.get("mmap") is None and _is_zip(f):
            # Weights that nobody looks at are never read.
            kwargs["mmap"] = True
        with without_dispatch():
            found = original(f, "cpu", *args, **kwargs)
        return _placed(found, map_location)

    patches.wrap(torch, "save", save)
    patches.wrap(torch, "load", load)

    def safetensors(module: Any) -> None:
        for name in ("save_file", "save_model"):
            if hasattr(module, name):
                patches.set(module, name, lambda *args, **kwargs: not_written())

    patches.when_imported("safetensors.torch", safetensors)


def _key(file: Any) -> Any:
    return os.path.abspath(file) if isinstance(file, str | os.PathLike) else id(file)


def _is_zip(file: Any) -> bool:
    try:
        with open(file, "rb") as opened:
            return opened.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def _on_host(value: Any) -> Any:
    """A copy of a checkpoint whose tensors lie on the host."""

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return tensor.detach().clone()
        return on_host(tensor, tensor.fake_mode)

    return _mapped(value, kept)


def _placed(value: Any, location: Any) -> Any:
    """A checkpoint of the host where ``map_location`` wants it."""
    if isinstance(location, str | torch.device | int):
        wanted = (
            torch.device("cuda", location) if isinstance(location, int) else torch.device(location)
        )
        if wanted.type == "cuda":
            return _mapped(value, lambda tensor: tensor.to(wanted))
    return value


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        mapped = {key: _mapped(item, change) for key, item in value.items()}
        try:
            made = type(value)(mapped)
        except TypeError:
            return mapped
        return made
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value
