"""Tells which PyTorch the engine runs on this machine, and which environments are kept."""

import sys

from memcalc.engine.environment import folders, installed
from memcalc.engine.environment.search import ELSEWHERE, SIZE
from memcalc.engine.environment.uv import size_text, sum_sizes
from memcalc.records.measurement import Fact


def describe() -> list[Fact]:
    """Return where PyTorch comes from on this machine, and which environments are kept."""
    if sys.platform != "linux":
        return [Fact(name="engine", value="only --method analytic works here", advice=ELSEWHERE)]
    kept = folders.existing()
    facts = [_describe_torch([path.name for path, marker in kept.items() if marker is not None])]
    for path, marker in kept.items():
        if marker is None:
            size = size_text(sum_sizes(path))
            value = f"{path} is unfinished or damaged: {size}"
            advice = f"it is created again when needed; to delete it: rm -r {path}"
        else:
            value, advice = f"{path.name}, {size_text(marker.bytes)}", ""
        facts.append(Fact(name="environment", value=value, advice=advice))
    if kept:
        value = f"kept in {folders.parent()}; each is fetched again when it is needed"
        advice = f"to delete all: rm -r {folders.parent()}"
        facts.append(Fact(name="environments", value=value, advice=advice))
    return facts


def _describe_torch(kept: list[str]) -> Fact:
    name = "engine"
    here = installed.torch_in(sys.path)
    if here is None:
        return Fact(name=name, value="PyTorch is not installed", advice="pip install torch")
    if here.cuda:
        value = f"the installed PyTorch {here.release}, built for CUDA {here.cuda}"
        return Fact(name=name, value=f"exact estimates run {value}")
    has = f"PyTorch {here.version} is built without CUDA"
    same = [one for one in kept if one.startswith(f"torch-{here.release}")]
    if same:
        return Fact(name=name, value=f"{has}: exact estimates run {same[-1]} of memcalc's cache")
    return Fact(
        name=name,
        value=f"{has}: the first exact estimate fetches the CUDA build of {here.release}, {SIZE}",
        advice="estimates need no GPU and no NVIDIA libraries; --method analytic fetches nothing",
    )
