"""What differs between two plans, or two sets of versions, in the words that all reports use."""

from __future__ import annotations

from collections.abc import Mapping

from memcalc.records.fields import FIELDS


def plan_changes(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """How a plan differs from another, a setting each, such as ``batch 8 -> 16``."""
    shown = []
    for name, field in FIELDS.items():
        old, new = before.get(name, field.default), now.get(name, field.default)
        if old != new:
            shown.append(f"{name} {_plain(old)} -> {_plain(new)}")
    return shown


def version_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Each library whose version is another one, with both versions."""
    names = sorted(before.keys() | now.keys())
    return [
        f"{name} {before.get(name, 'not installed')} then, {now.get(name, 'not installed')} now"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _plain(value: object) -> str:
    return "default" if value in (None, "", [], ()) else str(value)
