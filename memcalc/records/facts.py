"""Facts about this machine, one per line."""

import msgspec


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One thing about this machine."""

    name: str
    value: str
    well: bool = True
    """False: something cannot be measured for it."""
    advice: str = ""
