"""Write configs/memcalc.schema.json, for editors, from what the reader of budget files accepts."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import msgspec

from memcalc.budgets.metrics import COMPONENTS, PER_PARAMETER
from memcalc.budgets.read import DEFAULT_BASELINE
from memcalc.budgets.records import LONGEST, PERCENT
from memcalc.records.fields import FIELDS, Field
from memcalc.records.prediction import RUNGS
from memcalc.records.values import Method
from memcalc.units import NUMBER, UNIT

PATH = pathlib.Path(__file__).parent.parent / "configs" / "memcalc.schema.json"
Schema = dict[str, Any]
_BYTES = rf"{NUMBER}\s*{UNIT}"
_SIZE = {
    "type": "string",
    "maxLength": LONGEST,
    "pattern": rf"^\s*{_BYTES}\s*$",
    "examples": ["4 GiB", "15 GB"],
}
_SHARE = {
    "type": "string",
    "maxLength": LONGEST,
    "pattern": rf"^\s*(?:{PERCENT}\s*%|{_BYTES})\s*$",
    "examples": ["2%", "50 MiB"],
}
_PER_PARAMETER = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9}


def schema() -> Schema:
    """The schema of a memcalc.toml, and of [tool.memcalc] in a pyproject.toml."""
    method = {
        "enum": list(get_args(Method)),
        "description": "Trace the real code, or use closed forms.",
    }
    settings = {name: _setting(field) for name, field in FIELDS.items()}
    lengths = {
        "type": "string",
        "pattern": r"\S",
        "description": "Judge over a hundred batches of varying length: a file with one length a "
        "line, normal:MEAN,STD or uniform:A,B; samples are truncated to seq.",
    }
    run = _table(
        {**settings, "method": method, "lengths": lengths, "limits": {"$ref": "#/$defs/limits"}}
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Memory budgets of memcalc",
        "type": "object",
        "additionalProperties": False,
        "required": ["runs"],
        "properties": {
            "baseline": {
                "type": "string",
                "pattern": r"\S",
                "default": DEFAULT_BASELINE,
                "description": "The committed figures that max_growth is judged against.",
            },
            "defaults": {
                "$ref": "#/$defs/run",
                "description": "What all runs share; a run's own key wins.",
            },
            "runs": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {"$ref": "#/$defs/run"},
                "description": "Training runs by name.",
            },
        },
        "$defs": {
            "run": run,
            "limits": _limits(),
            "size": _SIZE,
            "share": _SHARE,
            "per_parameter": _PER_PARAMETER,
        },
    }


def _setting(field: Field) -> Schema:
    """A setting of a plan, as it stands in a file."""
    found = msgspec.json.schema(field.type)
    if field.choices:
        found["enum"] = list(field.choices)
    if field.repeats and not field.is_table:
        found = {"anyOf": [found["items"], found]}
    return {**found, "description": field.help}


def _limits() -> Schema:
    growth = _named(("peak", *COMPONENTS), "share")
    growth["peak"] = _whole_or_parts("share", RUNGS)
    components = {
        name: {**schema, "description": f"Bytes of {name.replace('_', ' ')} at the peak."}
        for name, schema in _named(COMPONENTS, "size").items()
    }
    return _table(
        {
            "peak": {
                **_whole_or_parts("size", RUNGS),
                "description": "The peak; without a rung, allocated.",
            },
            **components,
            PER_PARAMETER: {
                **_whole_or_parts("per_parameter", COMPONENTS),
                "description": "Requested bytes at the peak for each parameter of the model.",
            },
            "fits": {
                "anyOf": [{"type": "string", "pattern": r"\S"}, {"const": True}],
                "description": "A GPU that the run must fit; true: the run's own.",
            },
            "margin": {
                "$ref": "#/$defs/share",
                "description": "Kept free below fits and peak limits.",
            },
            "max_growth": {
                "anyOf": [{"$ref": "#/$defs/share"}, _table(growth, least=1)],
                "description": "At most so much more than the baseline; of the allocated peak, "
                "or of the figures named.",
            },
        }
    )


def _named(names: Iterable[str], kind: str) -> dict[str, Schema]:
    return {name: {"$ref": f"#/$defs/{kind}"} for name in names}


def _whole_or_parts(kind: str, names: Iterable[str]) -> Schema:
    return {"anyOf": [{"$ref": f"#/$defs/{kind}"}, _table(_named(names, kind), least=1)]}


def _table(properties: Mapping[str, Schema], *, least: int = 0) -> Schema:
    """A table of these keys and no others; a key may be written with dashes."""
    dashed = {
        f"^{name.replace('_', '-')}$": {k: v for k, v in schema.items() if k != "description"}
        for name, schema in properties.items()
        if "_" in name
    }
    return {
        "type": "object",
        "additionalProperties": False,
        **({"minProperties": least} if least else {}),
        "properties": dict(properties),
        **({"patternProperties": dashed} if dashed else {}),
    }


def text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
