"""What an hour of a GPU costs, as a user says it: one price, or a file of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from memcalc.catalog import gpus
from memcalc.errors import UsageError
from memcalc.files import untrusted_values


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of one GPU for an hour, in whatever currency they were given."""

    each: float | None = None
    """Of any GPU; ``None``: it depends on which."""
    by_gpu: Mapping[str, float] = {}
    source: str = ""
    """The file."""

    def of(self, gpu: str) -> float:
        """The price of a GPU by its name in the catalog.

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
    """Read a number, or a TOML file of GPUs or rented machines and the price of an hour of each.

    Raises:
        UsageError: it is neither, or the file names something unknown.
    """
    try:
        return Prices(each=_checked(text, float(text)))
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
        taken = gpus.meant(name)
        one = _checked(f"{name} = {price}", float(price)) / (taken.count or 1)
        found[taken.gpu.name] = min(one, found.get(taken.gpu.name, one))
    if not found:
        raise UsageError(f'{path} has no price: write lines such as "A100-80GB" = 1.8.')
    return Prices(by_gpu=found, source=str(path))


def _checked(what: str, price: float) -> float:
    if not 0 <= price <= 1e9:
        raise UsageError(f"{what} is no price: write a number from 0 to 1e9.")
    return price
