"""What was found in a training configuration."""

from __future__ import annotations

from typing import Any

import msgspec


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a plan, as a training configuration gives them."""

    file: str
    kind: str
    """``TrainingArguments``, ``axolotl`` or ``accelerate``."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys of a plan."""
    unread: tuple[str, ...] = ()
    """What changes memory but could not be read or has no place in a plan; one clause each."""
