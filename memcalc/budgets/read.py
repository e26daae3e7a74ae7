"""Reads a budget file; errors name file and line."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.budgets.metrics import COMPONENTS, PER_PARAMETER, default_peak
from memcalc.budgets.records import (
    Amount,
    Budget,
    BudgetedRun,
    BudgetFile,
    Rule,
    Where,
    per_parameter,
    share_or_size,
    size,
)
from memcalc.budgets.source import Key, Source, load
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.dialects import FILES, find
from memcalc.errors import SettingError, UsageError, unknown
from memcalc.records.fields import FIELDS
from memcalc.records.plan import Plan
from memcalc.records.prediction import RUNGS
from memcalc.records.trace import rename_component
from memcalc.records.values import Method, check_value

TOP = ("defaults", "runs", "baseline")
OWN_KEYS = ("method", "lengths", "limits")
DEFAULT_BASELINE = "memcalc-baseline.json"
_LONGEST_NAME = 100
OF_COMMANDS = ("command", "steps", "gpu", "rank", "torch", "alloc_conf", "python", "weights")


def read(path: Path) -> BudgetFile:
    """Read a budget file: its runs, their limits and the baseline's path.

    Raises:
        UsageError: it cannot be read or understood, or it holds no budget.
    """
    source = load(path)
    if strange := next((key for key in source.data if key not in TOP), None):
        hint = f"a budget file has {', '.join(TOP)}."
        if strange in ("run", "budget", "budgets"):
            hint = "runs have names: write [runs.NAME]."
        elif strange.replace("-", "_") in (*FIELDS, *OWN_KEYS):
            hint = f"write {strange} below [defaults] or [runs.NAME]."
        raise source.error((strange,), str(unknown("key", strange, TOP, hint=hint)))
    baseline = source.data.get("baseline", DEFAULT_BASELINE)
    if not isinstance(baseline, str) or not baseline.strip() or "\0" in baseline:
        raise source.error(("baseline",), f"baseline = {baseline!r} is not the name of a file.")
    names = source.table(("runs",))
    if not names:
        raise UsageError(
            f"{source.path}:1: there are no budgets: write [runs.NAME] with a model and, below it, "
            "[runs.NAME.limits]; or let memcalc init MODEL write them."
        )
    runs = tuple(_run(source, name, path.parent) for name in names)
    return BudgetFile(path=source.path, runs=runs, baseline=str(path.parent / baseline))


def check_name(name: str) -> None:
    """Raise UsageError unless a text can name a run.

    Raises:
        UsageError: it is empty, very long, or has signs that cannot be shown.
    """
    if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise UsageError(f"{name[:40]!r} is no name for a run: use letters and dashes.")


def rebase(model: str, before: Path, after: Path) -> str:
    """Return a relative model path of one folder as seen from another; names stay unchanged."""
    if os.path.isabs(model) or model.startswith("~"):
        return model
    if not model.startswith(".") and not model.endswith(".json"):
        return model
    moved = os.path.relpath(before / model, after)
    return moved if moved.startswith(".") else f"./{moved}"


def _run(source: Source, name: str, folder: Path) -> BudgetedRun:
    """Read one ``[runs.NAME]`` table: its plan, method, lengths and budgets."""
    here: Key = ("runs", name)
    with source.at(here):
        check_name(name)
    settings, places = _run_settings(source, here, folder)
    method = settings.pop("method", "trace")
    with source.at(places.get("method", here)):
        check_value("method", Method, method)
        if method != "trace" and "command" in settings:
            raise UsageError("a command is simulated: leave method out.")
    lengths = _lengths(source, settings, places, folder)
    if lengths is not None and method != "trace":
        raise source.error(places["lengths"], f"{method} knows one length: leave lengths out.")
    plan = _plan(source, here, settings, places)
    tables: list[Key] = [("defaults", "limits"), (*here, "limits")]
    found = budgets(source, plan, name, tables, default_peak(plan.target, method))
    if not found:
        raise source.error(here, f"run {name} has no limits: write [runs.{name}.limits].")
    plan = _set_gpu(source, plan, found)
    return BudgetedRun(
        name=name,
        plan=replace(plan, model=rebase(plan.model, folder, Path())),
        method=method,
        lengths=lengths,
        budgets=found,
        lines={key: source.place(place).line for key, place in places.items()},
        where=source.place(here),
    )


def _run_settings(source: Source, here: Key, folder: Path) -> tuple[dict[str, Any], dict[str, Key]]:
    """Return a run's settings over the defaults, and the table key of each."""
    settings: dict[str, Any] = {}
    places: dict[str, Key] = {}
    for table in (("defaults",), here):
        for key, value in source.table(table).items():
            place = (*table, key)
            name = _check_key(source, place)
            if places.get(name, here)[:-1] == table:
                raise source.error(place, f"{name} is given twice: give it once.")
            if name in (*FILES, "model") and isinstance(value, str):
                path = os.path.join(folder, os.path.expanduser(value))
                with source.at(place):
                    # A recipe may be named in place of a model.
                    value = path if name in FILES or find(path) is not None else value
            if name != "limits":
                settings[name], places[name] = value, place
    return settings, places


def _check_key(source: Source, key: Key) -> str:
    """Return a key's field name; raise UsageError for an unknown key."""
    name = key[-1].replace("-", "_")
    known = (*FIELDS, *OWN_KEYS)
    if name not in known:
        hint = "a run has the keys of memcalc estimate's options, method, lengths and limits."
        if name in ("peak", "fits", "max_growth", "margin", "bytes_per_parameter"):
            hint = f"write it below [{'.'.join(key[:-1])}.limits]."
        raise source.error(key, str(unknown("key", key[-1], known, hint=hint)))
    return name


def _lengths(
    source: Source, settings: dict[str, Any], places: Mapping[str, Key], folder: Path
) -> str | None:
    """Take ``lengths`` out of the settings; return its text, or its path from this folder."""
    text = settings.pop("lengths", None)
    if text is None:
        return None
    from memcalc.estimation.lengths import DRAWN, FORM

    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise source.error(places["lengths"], f"lengths = {text!r} is no text: write {FORM}.")
    if "command" in settings:
        raise source.error(places["lengths"], "a command has its own batches: leave lengths out.")
    return text if DRAWN.fullmatch(text) else os.path.join(folder, os.path.expanduser(text))


def _plan(
    source: Source, here: Key, settings: Mapping[str, Any], places: Mapping[str, Key]
) -> Plan:
    """Make a run's plan from its settings; errors name the line."""
    if "command" in settings:
        # All else a command sets itself, and the defaults are for runs of models.
        other = [key for key in settings if key not in OF_COMMANDS and places[key][0] != "defaults"]
        if other:
            raise source.error(
                places[other[0]],
                f"{other[0]} is for runs of a model; beside command there are "
                f"{', '.join(key for key in OF_COMMANDS if key != 'command')}.",
            )
        settings = {key: value for key, value in settings.items() if key in OF_COMMANDS}
    elif "model" not in settings and "recipe" not in settings:
        raise source.error(
            here,
            f"run {here[-1]} names no model: write model = NAME, or command = 'python train.py'.",
        )
    try:
        return make(settings)
    except SettingError as error:
        where = places.get(error.setting) or places.get("model", here)
        raise source.error(where, str(error)) from None
    except UsageError as error:
        raise source.error(here, str(error)) from None


def _set_gpu(source: Source, plan: Plan, found: tuple[Budget, ...]) -> Plan:
    """Return the plan with the GPU that a ``fits`` limit names, if any."""
    budget = next((one for one in found if one.gpu is not None), None)
    if budget is None:
        return plan
    if plan.gpu is not None:
        with source.at(("runs", budget.run, "gpu")):
            own = gpus.find(plan.gpu).name
        if own != budget.gpu:
            message = f"the run is on {own} but must fit {budget.gpu}: name one of them."
            raise UsageError(f"{budget.where}: {message}")
    return replace(plan, gpu=budget.gpu)


KEYS = ("peak", *COMPONENTS, PER_PARAMETER, "fits", "margin", "max_growth")


def budgets(
    source: Source, plan: Plan, run: str, tables: list[Key], default: str
) -> tuple[Budget, ...]:
    """Read the limits of one run from its tables; ``default``: the metric of ``peak``.

    Raises:
        UsageError: an unknown limit, or one whose value is not understood.
    """
    margin: Amount | None = None
    found: dict[tuple[str, str], Budget] = {}
    for table in tables:
        seen = set()
        for written, value in _iterate_leaves(source.table(table)):
            path = tuple(rename_component(part.replace("-", "_")) for part in written)
            place = (*table, *written)
            with source.at(place):
                if path == ("margin",):
                    limit, margin = ("margin", ""), share_or_size(value)
                else:
                    budget = _read_budget(run, plan, path, value, default, source.place(place))
                    limit = budget.rule, budget.metric
                    found[limit] = budget
                if limit in seen:
                    name = ".".join(path)
                    raise UsageError(f"{name} limits what is limited above already: leave one out.")
                seen.add(limit)
    # A margin is room to spare on the GPU: below a limit of the peak, and below ``fits``.
    return tuple(
        replace(one, margin=margin)
        if one.rule is Rule.FITS or (one.rule is Rule.MAX and one.metric.startswith("peak."))
        else one
        for one in found.values()
    )


def _iterate_leaves(table: Mapping[str, Any], path: Key = ()) -> Iterator[tuple[Key, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _iterate_leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _read_budget(run: str, plan: Plan, path: Key, value: Any, default: str, where: Where) -> Budget:
    """Read one limit: ``fits``, ``max_growth`` or a largest figure."""
    if path == ("fits",):
        # true: the GPU that the run is on.
        named = plan.gpu if value is True else value
        if not isinstance(named, str):
            raise UsageError('fits names no GPU: write one, as fits = "t4".')
        gpu = gpus.find(named).name
        return Budget(run=run, rule=Rule.FITS, metric="fits", gpu=gpu, where=where)
    grows = path[0] == "max_growth"
    metric = _read_metric((path[1:] or ("peak",)) if grows else path, default)
    read_amount = share_or_size if grows else per_parameter if path[0] == PER_PARAMETER else size
    rule = Rule.GROWTH if grows else Rule.MAX
    return Budget(run=run, rule=rule, metric=metric, amount=read_amount(value), where=where)


def _read_metric(path: Key, default: str) -> str:
    """Return the metric name of a limit's key path; raise UsageError for an unknown one."""
    head, *rest = path
    if head == "peak" and not rest:
        return default
    below = {"peak": ("rung", RUNGS), PER_PARAMETER: ("component", COMPONENTS)}.get(head)
    if (head not in KEYS or head in ("fits", "margin", "max_growth")) or (rest and below is None):
        raise unknown("limit", ".".join(path), KEYS, hint=f"limits are {', '.join(KEYS)}.")
    if rest and below is not None:
        kind, known = below
        if len(rest) > 1 or rest[0] not in known:
            raise unknown(kind, ".".join(rest), known, hint=f"choose one of {', '.join(known)}.")
    return ".".join(path)
