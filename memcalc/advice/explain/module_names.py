"""Module paths for display: shortened to a depth, repeated layers joined as ``h.[0-11]``."""

from __future__ import annotations

from collections.abc import Iterable

Pattern = tuple[str, ...]
"""A path's parts, with ``*`` for each index of a list."""


def cut(path: str, depth: int | None) -> tuple[Pattern, tuple[int, ...]]:
    """Split a path into its pattern and the indices that fill it.

    Args:
        path: such as ``transformer.h.3.mlp``.
        depth: how many names to keep, indices not counted; ``None``: all.
    """
    pattern: list[str] = []
    indices: list[int] = []
    names = 0
    for part in path.split(".") if path else ():
        if part.isdigit():
            pattern.append("*")
            indices.append(int(part))
            continue
        if depth is not None and names == depth:
            break
        names += 1
        pattern.append(part)
    return tuple(pattern), tuple(indices)


def write(pattern: Pattern, filled: Iterable[tuple[int, ...]]) -> str:
    """Write a pattern with the indices that fill each of its places."""
    columns = iter(list(zip(*filled, strict=True)))
    return ".".join(_spans(next(columns)) if part == "*" else part for part in pattern)


def _spans(numbers: Iterable[int]) -> str:
    """``[0-3,7]``, or the number itself where there is only one."""
    ordered = sorted(set(numbers))
    if len(ordered) == 1:
        return str(ordered[0])
    spans: list[list[int]] = []
    for number in ordered:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "[" + ",".join(f"{a}-{b}" if a != b else str(a) for a, b in spans) + "]"
