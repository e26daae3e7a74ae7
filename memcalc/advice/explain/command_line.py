"""A plan as command line options."""

from __future__ import annotations

import shlex

from memcalc.records.fields import FIELDS, changed_settings
from memcalc.records.plan import Plan


def options(plan: Plan) -> str:
    """The model and the batch, and every option that is not left at its default."""
    told = changed_settings(plan) | ({} if plan.inputs else {"batch": plan.batch})
    words = [plan.model]
    for name, field in FIELDS.items():
        if name in told and name != "model" and field.option is not None:
            words += field.write(told[name])
    return shlex.join(words)
