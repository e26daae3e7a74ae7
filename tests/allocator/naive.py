"""A second allocator, slow and plain, to judge the fast one.

It keeps one flat list of pieces per segment and nothing else: no links, no ordered free lists, no
running totals. Everything is searched for and summed anew at each question. It knows the default
settings with ``max_split`` and one count of divisions, but no expandable segments, no garbage
collection and no shared blocks; written from the rules, not from the fast code.
"""

import math
from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20


@dataclass
class Piece:
    address: int
    size: int
    key: int | None = None
    requested: int = 0


@dataclass
class Stretch:
    """A segment: pieces in order of address that tile it."""

    small: bool
    stream: int
    size: int
    pieces: list[Piece] = field(default_factory=list)


class NaiveAllocator:
    def __init__(self, *, total, first_address, max_split=math.inf, steps=0, large=20 * MIB):
        self.total, self.max_split, self.steps, self.large = total, max_split, steps, large
        self.next_address = first_address
        self.segments: list[Stretch] = []
        self.retries = 0

    def round(self, size):
        if self.steps > 1 and size > 512 * self.steps:
            power = 2 ** math.floor(math.log2(size))
            if power == size:
                return size
            return math.ceil(size / (power / self.steps)) * power // self.steps
        return max(math.ceil(size / 512), 1) * 512

    def reserved(self):
        return sum(segment.size for segment in self.segments)

    def pieces(self, *, held):
        every = [piece for segment in self.segments for piece in segment.pieces]
        return [piece for piece in every if (piece.key is not None) == held]

    def allocated(self):
        return sum(piece.size for piece in self.pieces(held=True))

    def requested(self):
        return sum(piece.requested for piece in self.pieces(held=True))

    def allocate(self, key, size, stream):
        """Return the address, or None when memory has run out."""
        rounded = self.round(size)
        small = rounded <= MIB
        found = self.best(rounded, small, stream)
        if found is None:
            found = self.more(rounded, small, stream)
        if found is None and self.give_back_oversize(rounded, small, stream):
            found = self.more(rounded, small, stream)
        if found is None:
            self.retries += 1
            self.empty_cache()
            found = self.more(rounded, small, stream)
        if found is None:
            return None
        segment, piece = found
        rest = piece.size - rounded
        cut = rest >= 512 if small else rest > MIB and rounded < self.max_split
        if cut:
            at = segment.pieces.index(piece)
            segment.pieces.insert(at + 1, Piece(piece.address + rounded, rest))
            piece.size = rounded
        piece.key, piece.requested = key, size
        return piece.address

    def free(self, key):
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.key == key:
                    piece.key, piece.requested = None, 0
                    self.join(segment)
                    return
        raise KeyError(key)

    def join(self, segment):
        joined: list[Piece] = []
        for piece in segment.pieces:
            if joined and joined[-1].key is None and piece.key is None:
                joined[-1].size += piece.size
            else:
                joined.append(piece)
        segment.pieces = joined

    def empty_cache(self):
        self.segments = [
            segment
            for segment in self.segments
            if not (len(segment.pieces) == 1 and segment.pieces[0].key is None)
        ]

    def candidates(self, small, stream):
        return [
            (segment, piece)
            for segment in self.segments
            if segment.small == small and segment.stream == stream
            for piece in segment.pieces
            if piece.key is None
        ]

    def best(self, rounded, small, stream):
        fitting = [
            (segment, piece)
            for segment, piece in self.candidates(small, stream)
            if piece.size >= rounded
        ]
        if not fitting:
            return None
        found = min(fitting, key=lambda pair: (pair[1].size, pair[1].address))
        size = found[1].size
        if rounded < self.max_split <= size or (
            rounded >= self.max_split and size >= rounded + 20 * MIB
        ):
            return None
        return found

    def more(self, rounded, small, stream):
        if small:
            size = 2 * MIB
        else:
            size = self.large if rounded < 10 * MIB else math.ceil(rounded / (2 * MIB)) * 2 * MIB
        if self.reserved() + size > self.total:
            return None
        segment = Stretch(small, stream, size, [Piece(self.next_address, size)])
        self.next_address += size
        self.segments.append(segment)
        return segment, segment.pieces[0]

    def give_back_oversize(self, rounded, small, stream):
        if self.max_split == math.inf:
            return False
        wanted = max(rounded, self.max_split)
        oversize = sorted(
            (pair for pair in self.candidates(small, stream) if pair[1].size >= self.max_split),
            key=lambda pair: (pair[1].size, pair[1].address),
        )
        enough = [pair for pair in oversize if pair[1].size >= wanted]
        given = 0
        for segment, piece in [enough[0]] if enough else reversed(oversize):
            if given >= wanted:
                break
            given += piece.size
            self.segments.remove(segment)
        return given >= wanted
