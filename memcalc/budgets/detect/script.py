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
    """Read Trainer arguments and the model from a script's text; None if it uses no Trainer.

    Raises:
        UsageError: an argument asks for what memcalc does not answer.
    """
    tree = _parse(text)
    if tree is None:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = next((call for call in calls if _called_name(call.func) in _CALLS), None)
    if asked is None:
        return None
    names = _find_constants(tree)
    arguments: dict[str, Any] = {}
    unread: list[str] = []
    for keyword in asked.keywords:
        value = _evaluate(keyword.value, names)
        if keyword.arg is None:
            unread.append(f"line {keyword.value.lineno}: arguments behind ** are not read")
        elif value is not None:
            arguments[keyword.arg] = value
        elif not isinstance(keyword.value, ast.Constant) and trainer.has_effect(keyword.arg):
            # As it is written: taking it apart again does not end for what is deeply nested.
            shown = " ".join((ast.get_source_segment(text, keyword.value) or "").split())[:40]
            unread.append(f"line {keyword.value.lineno}: {keyword.arg} = {shown} is not read")
    read_ = trl.read if _called_name(asked.func) == "SFTConfig" else trainer.read
    found = read_(arguments, str(path), {})
    model = _find_model(calls, names)
    return replace(
        found,
        dialect=trainer.NAME,
        settings={**found.settings, **model},
        unread=(*unread, *found.unread),
    )


def trains(text: str) -> bool:
    """Return True if a script runs code at top level that calls ``backward()`` or a Trainer."""
    tree = _parse(text)
    if tree is None:
        return False
    started: list[ast.AST] = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    if any(isinstance(node, ast.If) and "__name__" in ast.dump(node.test) for node in started):
        started = [tree]
    calls = (node for part in started for node in ast.walk(part) if isinstance(node, ast.Call))
    return any(
        (name := _called_name(one.func)) == "backward" or name.endswith("Trainer") for one in calls
    )


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _called_name(function: ast.expr) -> str:
    """Return the last name of a called expression: ``c`` of ``a.b.c(...)``; else ""."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _find_constants(tree: ast.Module) -> dict[str, Any]:
    """Return variables that the script assigns exactly once, to a literal."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    values = {name: _evaluate(each[0], {}) for name, each in found.items() if len(each) == 1}
    return {name: value for name, value in values.items() if value is not None}


def _evaluate(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the value of a literal or of a known constant, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, str | int | float | bool | dict | list) else None


def _find_model(calls: list[ast.Call], names: dict[str, Any]) -> dict[str, Any]:
    """Return model and task of the ``AutoModelFor....from_pretrained`` call, as settings."""
    for call in calls:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "from_pretrained":
            continue
        owner = _called_name(function.value)
        every = (tasks.find(name) for name in tasks.names())
        head = next((t.name for t in every if t.suffix and owner.endswith(t.suffix)), None)
        if head is None and "Model" not in owner:
            continue
        given = [keyword.value for keyword in call.keywords if keyword.arg in _PRETRAINED]
        value = _evaluate((call.args or given or [ast.Constant(None)])[0], names)
        found = {"task": head} if head is not None else {}
        return {**found, "model": value} if isinstance(value, str) and value else found
    return {}
