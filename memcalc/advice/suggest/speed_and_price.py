"""How fast a plan may train, and what an hour of a GPU costs.

Operations and bytes that were counted, over what the card can do: a step takes at least its
operations over the card's peak and the bytes its optimizer moves over the memory's bandwidth. Real
training reaches a part of the peak: 30 to 50 % is taken, which is what large runs publish (PaLM,
Chowdhery et al. 2022, arXiv:2204.02311, table 3: 21 to 46 %; Megatron-LM, Narayanan et al. 2021,
arXiv:2104.04473: 44 to 52 %). Small batches and kernels reach less. Weights that wait in host
memory cross the bus in forward and backward, and gradients go back; the update on the CPU is not
counted.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from memcalc.advice.suggest.records import Speed
from memcalc.catalog import gpus
from memcalc.catalog.gpus import Gpu
from memcalc.errors import UsageError
from memcalc.files import untrusted_values
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component
from memcalc.workload import layouts

UTILISATION = (0.3, 0.5)
BUS = (15.75e9, 63e9)
"""Bytes a second of PCI Express 3.0 and 5.0 x16 in one direction, by PCI-SIG's specifications."""
_MOVED = {Component.WEIGHTS: 2, Component.MASTER_WEIGHTS: 2, Component.OPTIMIZER_STATE: 2}
"""How often a step reads or writes what is held; gradients are read once more."""


def speed(prediction: Prediction, gpu: Gpu) -> Speed | str:
    """Calculate the range of samples per second of all GPUs together, or say why it is unknown."""
    plan = prediction.plan
    if gpu.tensor_flops is None:
        return f"no published peak of {gpu.name} is on record"
    if prediction.flops is None:
        return "operations were not counted"
    if plan.precision == "fp32":
        return "the peaks on record are those of half precision"
    moved = sum(prediction.components.get(name, 0) * n for name, n in _MOVED.items())
    moved += prediction.gradients or 0
    sent = _count_bus_bytes(prediction)
    if sent is None:
        return "how much of a quantized base crosses the bus is not counted"
    samples = plan.batch * plan.grad_accum * layouts.replicas(plan)
    low, high = (
        samples
        / (prediction.flops / (gpu.tensor_flops * part) + moved / gpu.bandwidth + sent / bus)
        for part, bus in zip(UTILISATION, BUS, strict=True)
    )
    return Speed(low=low, high=high, tokens=prediction.seq)


def offloads(plan: Plan) -> bool:
    """Return True if the plan keeps shards in host memory."""
    return "offload" in dict(plan.parallel_args)


def _count_bus_bytes(prediction: Prediction) -> float | None:
    """Return the bytes between host and GPU per optimizer step, or None if unknown."""
    plan = prediction.plan
    if not offloads(plan):
        return 0
    if plan.scheme is not None:
        return None
    element = 2 if plan.half_weights else 4
    crossing = 2 * prediction.parameters + prediction.trainable
    return crossing * element * plan.grad_accum / layouts.spread(plan).shards


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of one GPU for an hour, in the currency they were given in."""

    each: float | None = None
    """Of any GPU; ``None``: it depends on which."""
    by_gpu: Mapping[str, float] = {}
    source: str = ""
    """The file."""

    def price(self, gpu: str) -> float:
        """Return the hourly price of a GPU by its name in the catalog.

        Raises:
            UsageError: the file has none.
        """
        price = self.by_gpu.get(gpu, self.each)
        if price is None:
            raise UsageError(
                f"{self.source} has no price for {gpu}, only for {', '.join(self.by_gpu)}: add "
                f'"{gpu}" = 1.5.'
            )
        return price


def read(text: str) -> Prices:
    """Parse a price per hour: a number, or the path of a TOML file with a price per GPU.

    Raises:
        UsageError: it is neither, or the file names something unknown.
    """
    try:
        return Prices(each=_check_price(text, float(text)))
    except ValueError:
        pass
    path = Path(text)
    if not path.is_file():
        raise UsageError(
            f"--price {text}: no such file, and no number. Type the price of one GPU for an hour, "
            'such as --price 0.4, or a TOML file with lines such as "A100-80GB" = 1.8.'
        )
    found: dict[str, float] = {}
    for name, price in untrusted_values.toml(path).items():
        if isinstance(price, bool) or not isinstance(price, int | float):
            raise UsageError(f"{path}: {name} = {price} is no price: write a number.")
        taken = gpus.resolve(name)
        one = _check_price(f"{name} = {price}", float(price)) / (taken.count or 1)
        found[taken.gpu.name] = min(one, found.get(taken.gpu.name, one))
    if not found:
        raise UsageError(f'{path} has no price: write lines such as "A100-80GB" = 1.8.')
    return Prices(by_gpu=found, source=str(path))


def _check_price(what: str, price: float) -> float:
    """Return the price; raise UsageError unless it is between 0 and 1e9."""
    if not 0 <= price <= 1e9:
        raise UsageError(f"{what} is no price: write a number from 0 to 1e9.")
    return price
