"""Records to text, one module a format."""

from __future__ import annotations

from collections.abc import Sequence

from memcalc.records.prediction import Prediction


def render(predictions: Sequence[Prediction], name: str) -> str:
    """Write predictions in a format: table, json, markdown or csv."""
    # A format that nobody asked for is not imported.
    if name == "json":
        from memcalc.report import json

        return json.render(predictions)
    if name == "markdown":
        from memcalc.report import markdown

        return markdown.render(predictions)
    if name == "csv":
        from memcalc.report import csv

        return csv.render(predictions)
    from memcalc.report import table

    return table.render(predictions)
