"""The registry of optimizers: names, arguments, classes, and the closed form of their state."""

from memcalc.registry.lookup import check_precision, find, of
from memcalc.registry.row import Choice, Row, compute_state
from memcalc.registry.rows import rows

__all__ = ["Choice", "Row", "check_precision", "compute_state", "find", "of", "rows"]
