"""Whether anything may be fetched over the network; decided here alone."""

import os

HOW = "--offline, HF_HUB_OFFLINE or UV_OFFLINE"
"""What forbids it."""
GO_ONLINE = "leave out --offline, HF_HUB_OFFLINE and UV_OFFLINE"
MISSING = "is not here, and this is offline"
"""Ends the reason for which something is missing that a network would give."""


def is_offline() -> bool:
    """Return True if ``HF_HUB_OFFLINE`` or ``UV_OFFLINE`` forbids network access."""
    said = (os.environ.get(name, "").lower() for name in ("HF_HUB_OFFLINE", "UV_OFFLINE"))
    return any(text not in ("", "0", "false", "no", "off") for text in said)


def stay_offline() -> None:
    """Forbid network access in this process and those that it starts."""
    os.environ["HF_HUB_OFFLINE"] = "1"
