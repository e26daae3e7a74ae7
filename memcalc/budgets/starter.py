"""Writes a starter budget file: limits are today's estimate and a margin, and say so."""

import json
import re
import shlex
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from memcalc import untrusted_text
from memcalc.budgets.metrics import default_peak
from memcalc.dialects import Recipe
from memcalc.records.fields import FIELDS, changed_settings
from memcalc.records.model import Place
from memcalc.records.prediction import Prediction
from memcalc.units import GIB, KIB, MIB, format_mib
from memcalc.wrap import fold

SCHEMA_FILE = "memcalc.schema.json"
_WIDTH = 80
"""Columns of a comment."""


def text(
    prediction: Prediction,
    name: str,
    margin: Fraction,
    configured: Recipe | None = None,
    *,
    schema: bool = False,
) -> str:
    """Return a budget file for one model; its limits are ``margin`` percent over the estimate."""
    head = _write_header(schema=schema)
    if configured is not None:
        head.append(f"# Settings are those of {untrusted_text.line(configured.file)}.")
        for note in configured.unread:
            head += [f"# {line}" for line in fold(f"Note: {note}.", _WIDTH - 2, 2)]
    lines = [*head, f"[runs.{_quote_key(name)}]"]
    for key, value in changed_settings(prediction.plan).items():
        # A GPU that it fits is said by ``fits``.
        if key != "gpu" or not prediction.fits:
            lines.append(f"{key} = {toml(dict(value) if FIELDS[key].is_table else value)}")
    if prediction.method == "analytic":
        lines.append('method = "analytic"')
    lines += ["", f"[runs.{_quote_key(name)}.limits]", *_write_limits(prediction, margin)]
    return "\n".join(lines) + "\n"


def of_scripts(scripts: Sequence[Path], gpu: str | None, *, schema: bool) -> str:
    """Return a budget file for scripts found in a folder, with growth limits only."""
    lines = _write_header(schema=schema)
    lines += ["# Scripts that were found; none was run. Add the arguments that they need."]
    for script in scripts:
        name = run_name(str(script.with_suffix("")).replace("/", "-"))
        command = toml(f"python {shlex.quote(str(script))}")
        lines += [f"[runs.{name}]", f"command = {command}", "", f"[runs.{name}.limits]"]
        lines += [f"fits = {toml(gpu)}"] if gpu is not None else []
        lines += ['max_growth = "2%"', ""]
    return "\n".join(lines)


def command_name(command: str) -> str:
    """Return a run name for a command, from its script's or module's name."""
    words = [word for word in command.split() if not word.startswith("-") and "=" not in word]
    named = next((word for word in words[1:] if word.endswith(".py")), (words[1:] or words)[0])
    return run_name(named.removesuffix(".py").rpartition(".")[2])


def _write_header(*, schema: bool) -> list[str]:
    return [
        *([f"#:schema ./{SCHEMA_FILE}"] if schema else []),
        "# What the training runs of this repository may cost in GPU memory.",
        "# memcalc check judges these budgets without a GPU; exit code 1: over budget.",
        "# memcalc check --update-baseline writes what max_growth is judged against.",
        "# Commit that file as well.",
        "",
    ]


def run_name(model: str) -> str:
    """Return a run name for a model: the last part of its name, lower case with dashes."""
    last = model.rstrip("/").removesuffix("/config.json").rsplit("/", 1)[-1]
    return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-") or "train"


def toml(value: Any) -> str:
    """Return a Python value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quote_key(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    # A JSON text is a TOML basic string, but for the one control character JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _quote_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


def _write_limits(prediction: Prediction, margin: Fraction) -> list[str]:
    """Return the lines of a run's limits table: peak, optimizer state, fits, growth."""
    rung = default_peak(prediction.plan.target, prediction.method).removeprefix("peak.")
    today = getattr(prediction.peak, rung)
    state = prediction.optimizer_state.total(Place.DEVICE)
    lines = [
        f"# Today's estimate is {format_mib(today)} {rung}; "
        f"the limit is {float(margin):g}% above it.",
        f'peak = "{round_up(int(today * (1 + margin / 100)))}"',
    ]
    if state:
        lines += [
            f"# Exact, {state:,} bytes: it changes only with the model and the optimizer.",
            f'optimizer_state = "{round_up(state)}"',
        ]
    fit = prediction.fit
    if fit is not None and fit.fits:
        lines.append(f"fits = {toml(fit.gpu)}")
    elif fit is not None:
        lines.append(f"# It may not fit {fit.gpu}: fits = {toml(fit.gpu)} would fail.")
    return [*lines, '# Against the baseline, once there is one.\nmax_growth = "2%"']


def round_up(size: int) -> str:
    """Return a size rounded up as text: KiB below 64 MiB, else MiB, tenths of GiB from 10 GiB."""
    if size < 64 * MIB:
        return f"{-(-size // KIB)} KiB"
    if size >= 10 * GIB:
        tenths = -(-size * 10 // GIB)
        return f"{tenths // 10}.{tenths % 10} GiB"
    return f"{-(-size // MIB)} MiB"
