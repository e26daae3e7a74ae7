"""Names that complete what is typed."""

from collections.abc import Callable, Iterable

from memcalc.records.fields import Field

Offer = Callable[[str], list[str]]


class _Completion(str):
    """A completion that typer keeps even if it only contains the typed text."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True


def models(incomplete: str) -> list[str]:
    """Return the bundled models that complete the typed text."""
    from memcalc.catalog import models as catalog

    return _match_names(catalog.list_bundled_files(), incomplete)


def gpus(incomplete: str) -> list[str]:
    """Return the GPU names that complete the typed text, without spaces."""
    from memcalc.catalog import gpus as catalog

    return _match_names([gpu.name.replace(" ", "").lower() for gpu in catalog.table()], incomplete)


def optimizers(incomplete: str) -> list[str]:
    """Return the optimizers that complete the last name of a comma list."""
    from memcalc import registry

    *first, last = incomplete.split(",")
    before = "".join(f"{name}," for name in first)
    return [
        _Completion(before + name) for name in _match_names((r.name for r in registry.rows()), last)
    ]


def find_offer(field: Field) -> Offer | None:
    """Return the completion function of a plan's option, or None."""
    if field.name in _BY_NAME:
        return _BY_NAME[field.name]
    if not field.choices:
        return None

    def choices(incomplete: str) -> list[str]:
        return _match_names(field.choices, incomplete)

    return choices


_BY_NAME = {"gpu": gpus, "optim": optimizers}


def _match_names(names: Iterable[str], incomplete: str) -> list[str]:
    """Return names that begin with the typed text, or else contain it."""
    begun = incomplete.lower()
    names = list(names)
    beginning = [name for name in names if name.lower().startswith(begun)]
    return [_Completion(name) for name in beginning or names if begun in name.lower()]
