"""Changes keys of a recipe's text, and nothing else in it."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any


def change_keys(text: str, suffix: str, changes: Mapping[str, Any]) -> str:
    """Return a recipe's text with keys (paths with dots) set, or removed if None.

    Args:
        text: the recipe.
        suffix: of its file.
        changes: new values by key.
    """
    if suffix == ".json":
        return _edit_json(text, changes)
    for key, value in changes.items():
        text = _edit_shell(text, key, value) if suffix == ".sh" else _edit_yaml(text, key, value)
    return text


def dump(mapping: Mapping[str, Any]) -> str:
    """Return a mapping as YAML text; a dot in a key makes a nested table."""
    import yaml

    data: dict[str, Any] = {}
    for path, value in mapping.items():
        part, (*above, last) = data, path.split(".")
        for name in above:
            part = part.setdefault(name, {})
        if not above or value is not None:
            part[last] = value
    return str(yaml.safe_dump(data, sort_keys=False, default_flow_style=False))


def show_value(value: Any) -> str:
    """Return a value as YAML and JSON write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _edit_json(text: str, changes: Mapping[str, Any]) -> str:
    data = json.loads(text)
    for path, value in changes.items():
        part = data
        *above, last = path.split(".")
        for name in above:
            part = part.setdefault(name, {})
        if value is None:
            part.pop(last, None)
        else:
            part[last] = value
    indent = re.search(r"\n( +)\"", text)
    return json.dumps(data, indent=len(indent[1]) if indent else None) + "\n"


def _edit_shell(text: str, key: str, value: Any) -> str:
    option = re.compile(rf"--{re.escape(key)}(?:[ =][^-\\\n][^\\\n]*?)?(?=\s*(?:\\?\r?\n|$)|\s+--)")
    words = value if isinstance(value, list) else [value]
    shown = f"--{key} {' '.join(shlex.quote(show_value(one)) for one in words)}"
    found = _COMMAND.search(text)
    if found is None:
        return text
    before, started, arguments, after = text[: found.start()], *found.groups(), text[found.end() :]
    if option.search(arguments):
        arguments = option.sub(lambda _: "" if value is None else shown, arguments, count=1)
    elif value is not None:
        arguments = f" {shown}{arguments}"
    return f"{before}{started}{arguments}{after}"


_COMMAND = re.compile(
    r"^([^#\n]*(?:swift (?:sft|pt)|trl sft|llamafactory-cli train|\.py)\b)"
    r"(?=(?:\\\r?\n|[^\n])*\s--(?:model|model_name_or_path|per_device_train_batch_size)\b)"
    r"((?:\\\r?\n|[^\n])*)",
    re.MULTILINE,
)
"""What starts a training in a script, and its arguments with the lines that go on."""


def _edit_yaml(text: str, path: str, value: Any) -> str:
    import yaml

    above: list[str] = path.split(".")
    node = yaml.compose(text, yaml.SafeLoader)
    indent = 0
    while True:
        pair = next((one for one in node.value if one[0].value == above[0]), None)
        if len(above) == 1 or pair is None or not isinstance(pair[1], yaml.MappingNode):
            break
        node, indent, above = pair[1], pair[1].start_mark.column, above[1:]
    if pair is not None:
        return _replace_pair(text, pair, value)
    if value is None:
        return text
    line = dump({".".join(above): value}).rstrip("\n").replace("\n", "\n" + " " * indent)
    # At the top it stands last, behind comments too.
    end = _line_end(text, _pair_end(text, node.value[-1])) if indent else len(text.rstrip())
    return f"{text[:end]}\n{' ' * indent}{line}{text[end:]}"


def _replace_pair(text: str, pair: Any, value: Any) -> str:
    key, _ = pair
    start, end = key.start_mark.index, _pair_end(text, pair)
    if value is None:
        start = text.rfind("\n", 0, start) + 1
        return text[:start] + text[_line_end(text, end) + 1 :]
    column = key.start_mark.column
    shown = dump({key.value: value}).rstrip("\n").replace("\n", "\n" + " " * column)
    return text[:start] + shown + text[end:]


def _pair_end(text: str, pair: Any) -> int:
    """Return where a key and its value end; without a value it ends at its colon."""
    return max(_node_end(pair[1]), text.index(":", pair[0].end_mark.index) + 1)


def _line_end(text: str, place: int) -> int:
    found = text.find("\n", place)
    return len(text) if found < 0 else found


def _node_end(node: Any) -> int:
    """Return the index in the text where a YAML node ends, without a comment after it."""
    is_flow = getattr(node, "flow_style", False)
    if isinstance(node.value, str) or is_flow or not node.value:
        # Of a key without a value the parser says where the next key is.
        quoted = getattr(node, "style", None) in ("'", '"')
        return int(node.end_mark.index) if node.value or quoted or is_flow else 0
    last = node.value[-1]
    return _node_end(last[1] if isinstance(last, tuple) else last)
