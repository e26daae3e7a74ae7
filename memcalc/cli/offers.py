"""Names that complete what is typed."""

from collections.abc import Callable, Iterable

from memcalc.records.fields import Field

Offer = Callable[[str], list[str]]


class _Offered(str):
    """A name that holds what was typed anywhere: typer leaves out what does not begin with it."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True


def models(incomplete: str) -> list[str]:
    """Offer the bundled models."""
    from memcalc.catalog import models as catalog

    return _matching(catalog.list_bundled_files(), incomplete)


def gpus(incomplete: str) -> list[str]:
    """Offer all GPUs, as they are typed without quotes."""
    from memcalc.catalog import gpus as catalog

    return _matching([gpu.name.replace(" ", "").lower() for gpu in catalog.table()], incomplete)


def optimizers(incomplete: str) -> list[str]:
    """Offer all optimizers, for the last of a list."""
    from memcalc import registry

    *first, last = incomplete.split(",")
    before = "".join(f"{name}," for name in first)
    return [_Offered(before + name) for name in _matching((r.name for r in registry.rows()), last)]


def find_offer(field: Field) -> Offer | None:
    """Return the completion of a plan's option; None: nothing can be offered."""
    if field.name in _BY_NAME:
        return _BY_NAME[field.name]
    if not field.choices:
        return None

    def choices(incomplete: str) -> list[str]:
        return _matching(field.choices, incomplete)

    return choices


_BY_NAME = {"gpu": gpus, "optim": optimizers}


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    """Return names that begin with the typed text, or else contain it."""
    begun = incomplete.lower()
    names = list(names)
    beginning = [name for name in names if name.lower().startswith(begun)]
    return [_Offered(name) for name in beginning or names if begun in name.lower()]
