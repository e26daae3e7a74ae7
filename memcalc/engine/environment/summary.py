"""The engine's PyTorch, for ``memcalc doctor``."""

from __future__ import annotations

import sys

from memcalc.engine.environment import installed, layers
from memcalc.engine.environment.search import ELSEWHERE
from memcalc.records.measurement import Fact


def describe() -> list[Fact]:
    """Where PyTorch comes from on this machine, and which environments are kept."""
    facts = [_source()]
    if sys.platform != "linux":
        return facts
    kept = layers.existing()
    for path, layer in kept:
        if layer is None:
            size = layers.size_text(layers.size_of(path))
            facts.append(
                Fact(
                    name="environment",
                    value=f"{path} is unfinished or damaged: {size}",
                    advice=f"it is created again when needed; to delete it: rm -r {path}",
                )
            )
        else:
            value = f"{layer.name}, {layers.size_text(layer.marker.bytes)}"
            said = "; ".join(layer.marker.notes)
            facts.append(Fact(name="environment", value=f"{value}; {said}" if said else value))
    if kept:
        facts.append(
            Fact(
                name="environments",
                value=f"kept in {layers.folder()}; each is fetched again when it is needed",
                advice=f"to delete all: rm -r {layers.folder()}",
            )
        )
    return facts


def _source() -> Fact:
    name = "engine"
    if sys.platform != "linux":
        return Fact(name=name, value="only --method analytic works here", advice=ELSEWHERE)
    here = installed.torch_in(sys.path)
    if here is not None and here.cuda:
        return Fact(
            name=name,
            value=f"exact estimates run the installed PyTorch {here.release}, built for CUDA "
            f"{here.cuda}",
        )
    has = f"PyTorch {here.version} is built without CUDA" if here else "PyTorch is not installed"
    release = f"PyTorch {here.release}" if here else "the newest PyTorch"
    kept = [
        layer.name
        for path, layer in layers.existing()
        if layer is not None and path.name.startswith(f"torch-{here.release if here else ''}")
    ]
    if kept:
        return Fact(name=name, value=f"{has}: exact estimates run {kept[-1]} from memcalc's cache")
    return Fact(
        name=name,
        value=f"{has}: the first exact estimate fetches the CUDA wheel of {release}, 0.5 to 0.9 GB",
        advice="estimates need no GPU and no NVIDIA libraries; --method analytic fetches nothing",
    )
