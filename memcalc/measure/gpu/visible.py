"""The cards that a CUDA program sees, by ``CUDA_VISIBLE_DEVICES``.

CUDA counts cards fastest first, NVML by their place on the bus: the same number may mean two
cards. So where PyTorch runs it is asked for the card's UUID; only before it runs is the variable
read, and where it leaves room for doubt, that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memcalc.measure.gpu.nvml import Card, NvmlError


def visible(cards: Sequence[Card], environment: Mapping[str, str]) -> list[Card]:
    """The cards a program with this environment sees, in CUDA's order.

    Raises:
        NvmlError: an entry names no card, or a number can mean several.
    """
    whole = [card for card in cards if not card.mig]
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return _in_order(cards, whole, environment)
    found: list[Card] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.lstrip("+").isdigit():
            numbered = _in_order(cards, whole, environment)
            if int(entry) >= len(numbered):
                break
            found.append(numbered[int(entry)])
        elif entry.startswith(("GPU-", "MIG-")):
            found.append(_by_uuid(cards, entry))
        else:
            # CUDA stops at the first entry that it does not understand, -1 included.
            break
    return found


def named(cards: Sequence[Card], uuid: str) -> Card | None:
    """The card that PyTorch calls by this UUID, which it writes without the prefix."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for card in sorted(cards, key=lambda card: not card.mig):
        if card.uuid.split("-", 1)[-1] == bare:
            return card
    return None


def _in_order(
    cards: Sequence[Card], whole: Sequence[Card], environment: Mapping[str, str]
) -> list[Card]:
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not by_bus and len({card.name for card in whole}) > 1:
        raise NvmlError(
            "ambiguous",
            "Cards of different speed are in this machine, which CUDA and the driver number "
            "differently: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the card by its UUID.",
        )
    found: list[Card] = []
    for card in whole:
        slices = [s for s in cards[cards.index(card) + 1 :] if s.mig] if card.divided else []
        # A program sees one slice of a divided card, the first.
        found += slices[:1] if card.divided else [card]
    return found


def _by_uuid(cards: Sequence[Card], entry: str) -> Card:
    matches = [card for card in cards if card.uuid == entry]
    matches = matches or [card for card in cards if card.uuid.startswith(entry)]
    if len(matches) != 1:
        trouble = "no card" if not matches else "several cards"
        known = ", ".join(card.uuid for card in cards) or "none"
        raise NvmlError(
            "missing", f"CUDA_VISIBLE_DEVICES names {entry}, which is {trouble} here ({known})."
        )
    return matches[0]
