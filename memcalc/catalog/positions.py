"""Reads from a config how many tokens a model takes (configs/positions.json).

Learned and sinusoidal positions are looked up in a table, which limits them. Rotary and relative
positions have no limit: such a model trains on sequences of any length.
"""

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from memcalc.files import shipped
from memcalc.files.artifact import decode

DEFAULT_SEQ = 512
KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "max_encoder_position_embeddings",
    "max_decoder_position_embeddings",
)
"""Keys of configs for the number of positions."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of tokens per sample that a model takes."""

    exact: int | None = None
    """The only length that it takes, or None."""
    longest: int | None = None
    """The number of its positions, or None without a limit."""
    named: int | None = None
    """The number of positions in the config, whether it is a limit or not."""

    @property
    def default(self) -> int:
        """The tokens per sample by default."""
        return self.exact or min(DEFAULT_SEQ, self.longest or DEFAULT_SEQ)

    def refusal(self, name: str, seq: int | None) -> str | None:
        """Return a sentence if a model does not take sequences of ``seq`` tokens, or None."""
        if seq is None:
            return None
        if self.exact is not None and seq != self.exact:
            return f"{name} takes exactly {self.exact} tokens: type --seq {self.exact}."
        if self.longest is not None and seq > self.longest:
            return (
                f"{name} takes at most {self.longest} tokens and --seq is {seq}: "
                f"type --seq {self.longest} or less."
            )
        return None


def lengths(config: Mapping[str, Any]) -> Lengths:
    """Read from a config the sequence lengths that a model takes."""
    exact = _exact(config)
    part = config.get("text_config")
    part = part if isinstance(part, Mapping) else config
    row = table().get(str(part.get("model_type"))) or table().get(str(config.get("model_type")))
    found = [size for key in KEYS if isinstance(size := part.get(key), int) and size > 0]
    named = min(found, default=None) or (row["default"] if row is not None else None)
    longest = named
    if row is None:
        longest = None
    elif "padding" in row and named is not None:
        # The first positions are taken by the number of the padding token and those below it.
        padding = part.get("pad_token_id")
        longest = named - (padding if isinstance(padding, int) else row["padding"]) - 1
    return Lengths(exact=exact, longest=exact or longest, named=named)


def notes(config: Mapping[str, Any] | None, seq: int | None) -> tuple[str, ...]:
    """Return a note if sequences are longer than the positions that the config names."""
    named = lengths(config).named if config is not None else None
    if seq is None or named is None or seq <= named:
        return ()
    return (f"its config names {named} positions; the model takes longer sequences as well",)


def _exact(config: Mapping[str, Any]) -> int | None:
    """Return the only sequence length that a model takes, or None."""
    kind = config.get("model_type")
    if kind == "reformer" and config.get("axial_pos_embds", True):
        rows, columns = config.get("axial_pos_shape") or (64, 64)
        return int(rows * columns)
    if kind == "perceiver":
        # Its decoder answers for every position there is.
        return int(config.get("max_position_embeddings", 2048))
    return None


@functools.cache
def table() -> dict[str, dict[str, int]]:
    """Read the model types with a position limit: their default number and padding token."""
    return shipped.read(
        "positions.json", lambda data: decode(dict[str, dict[str, int]], data["types"])
    )
