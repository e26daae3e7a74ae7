"""How long the caching allocator model takes for a million events.

The trace has the shape of a training run: layers whose activations are born in the forward pass and
die in the backward pass, with temporaries in between and gradients that live until the next step.

Usage: ``python benchmarks/allocator.py [EVENTS]``.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

from memcalc.allocator.replay import Event, Op, replay
from memcalc.allocator.settings import parse_alloc_conf

GIB = 1 << 30


def training_events(count: int, *, layers: int = 96, seed: int = 0) -> Iterator[Event]:
    """At least ``count`` events of training steps with ``layers`` layers."""
    choose = random.Random(seed)
    shapes = [choose.choice((12_288, 786_432, 3_145_728, 12_582_912, 2_359_296)) for _ in range(8)]
    done = key = 0
    while done < count:
        kept: list[list[int]] = []
        gradients: list[int] = []
        yield (Op.MARK, "forward")
        for _ in range(layers):
            kept.append([])
            for size in shapes:
                key += 2
                yield (key, size)
                yield (key + 1, size // 2 + choose.randrange(4096))
                yield (key + 1, 0)
                kept[-1].append(key)
        yield (Op.MARK, "backward")
        for saved in reversed(kept):
            key += 2
            yield (key, 9_437_184)
            gradients.append(key)
            for storage in reversed(saved):
                yield (storage, 0)
        yield (Op.MARK, "step")
        for storage in gradients:
            yield (storage, 0)
        done += layers * (4 * len(shapes) + 2) + 3


def random_events(count: int, *, live: int = 2000, seed: int = 0) -> Iterator[Event]:
    """``count`` events of random sizes and lives: many odd free blocks, the hard case."""
    choose = random.Random(seed)
    alive: list[int] = []
    for key in range(count):
        if (len(alive) < live and choose.random() < 0.52) or not alive:
            yield (key, int(2 ** choose.uniform(6, 25)))
            alive.append(key)
        else:
            at = choose.randrange(len(alive))
            alive[at], alive[-1] = alive[-1], alive[at]
            yield (alive.pop(), 0)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for shape, events in (
        ("training", list(training_events(count))),
        ("random", list(random_events(count))),
    ):
        for conf in ("", "expandable_segments:True", "roundup_power2_divisions:4"):
            settings = parse_alloc_conf(conf)
            begin = time.process_time()
            result = replay(events, settings, 1024 * GIB)
            seconds = time.process_time() - begin
            per_million = seconds / len(events) * 1e6
            print(
                f"{shape:9} {conf or 'defaults':27} {len(events):9,} events {seconds:6.2f} s"
                f" ({per_million:.2f} s per million), reserved peak {result.peaks.reserved:,}"
            )


if __name__ == "__main__":
    main()
