"""Reads ``TrainingArguments(...)`` and the model out of a Python script, without running it."""

import ast
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.dialects import Recipe, trainer, trl
from memcalc.workload import tasks

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CALLS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "TrainingArgs")
_PRETRAINED = ("pretrained_model_name_or_path", "model_name_or_path")


def read(text: str, path: Path) -> Recipe | None:
    """Read a script; None: it is not Python, or trains nothing with the Trainer.

    Raises:
        UsageError: an argument asks for what memcalc does not answer.
    """
    tree = _parse(text)
    if tree is None:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = next((call for call in calls if _name(call.func) in _CALLS), None)
    if asked is None:
        return None
    names = _constants(tree)
    arguments: dict[str, Any] = {}
    unread: list[str] = []
    for keyword in asked.keywords:
        value = _value(keyword.value, names)
        if keyword.arg is None:
            unread.append(f"line {keyword.value.lineno}: arguments behind ** are not read")
        elif value is not None:
            arguments[keyword.arg] = value
        elif not isinstance(keyword.value, ast.Constant) and trainer.has_effect(keyword.arg):
            # As it is written: taking it apart again does not end for what is deeply nested.
            shown = " ".join((ast.get_source_segment(text, keyword.value) or "").split())[:40]
            unread.append(f"line {keyword.value.lineno}: {keyword.arg} = {shown} is not read")
    read_ = trl.read if _name(asked.func) == "SFTConfig" else trainer.read
    found = read_(arguments, str(path), {})
    model = _model(calls, names)
    return replace(
        found,
        dialect=trainer.NAME,
        settings={**found.settings, **model},
        unread=(*unread, *found.unread),
    )


def trains(text: str) -> bool:
    """Tell whether a script can be started and trains, by ``backward()`` or by some Trainer."""
    tree = _parse(text)
    if tree is None:
        return False
    started: list[ast.AST] = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    if any(isinstance(node, ast.If) and "__name__" in ast.dump(node.test) for node in started):
        started = [tree]
    calls = (node for part in started for node in ast.walk(part) if isinstance(node, ast.Call))
    return any((name := _name(one.func)) == "backward" or name.endswith("Trainer") for one in calls)


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Return the names that the module sets once, to a literal."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    values = {name: _value(each[0], {}) for name, each in found.items() if len(each) == 1}
    return {name: value for name, value in values.items() if value is not None}


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return a literal, or a constant by its name; None where it depends on the run."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, str | int | float | bool | dict | list) else None


def _model(calls: list[ast.Call], names: dict[str, Any]) -> dict[str, Any]:
    """Return the first argument of ``AutoModelFor....from_pretrained(...)``, and its head."""
    for call in calls:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "from_pretrained":
            continue
        owner = _name(function.value)
        every = (tasks.find(name) for name in tasks.names())
        head = next((t.name for t in every if t.suffix and owner.endswith(t.suffix)), None)
        if head is None and "Model" not in owner:
            continue
        given = [keyword.value for keyword in call.keywords if keyword.arg in _PRETRAINED]
        value = _value((call.args or given or [ast.Constant(None)])[0], names)
        found = {"task": head} if head is not None else {}
        return {**found, "model": value} if isinstance(value, str) and value else found
    return {}
