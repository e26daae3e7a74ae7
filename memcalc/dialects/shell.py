"""Commands of frameworks in shell scripts, as tables of settings; nothing in a script is run."""

import re
import shlex
from typing import Any

from memcalc.errors import UsageError
from memcalc.files import untrusted_values

_TRAINERS = {
    "swift": ("sft", "pt", "rlhf"),
    "trl": ("sft", "dpo", "grpo", "kto", "reward", "rloo"),
    "llamafactory-cli": ("train",),
    "axolotl": ("train",),
    "tune": ("run",),
    "-m": ("axolotl.cli.train",),
}
"""Verbs that train, by their programs."""
_RUNNERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "nohup")
_MARKS = ("--model_name_or_path", "--per_device_train_batch_size", "--config")
"""Options by which a Python script is one that trains."""
_COUNTS = ("nproc_per_node", "num_processes", "num_gpus")
"""Options of launchers that say how many GPUs there are; on each node, but ``num_processes``."""
_TAKE_ALL = {"llamafactory-cli", "deepspeed", "accelerate"}
"""Launchers that start a process for each visible GPU where nothing says how many."""
_ENDS = (">", "2>&1", "|", "&", ";", "&&")
_SET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_MOST = 4096
"""Words of a script; the longest of the frameworks' examples has some 200."""


def command_in(text: str) -> dict[str, Any] | None:
    """Return a shell script's first training command as a table of options, or None.

    Returns:
        Options as a table, as if they stood in a file; None: there is no such command.

    Raises:
        UsageError: it cannot be read without running the script.
    """
    # A comment has no line that goes on.
    code = re.sub(r"(?m)^[ \t]*#.*$", "", text)
    known: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n", " ", code).splitlines()[:_MOST]:
        try:
            # A command in a command is one word.
            line = re.sub(r"(\$\(\([^()']{0,200}\)\)|\$\([^()']{0,200}\))", r"'\1'", line)
            parts = [_expand(word, known) for word in shlex.split(line, comments=True)[:_MOST]]
        except ValueError:
            continue
        words = [word for part in parts for word in part][:_MOST]
        while words and (words[0] == "export" or _SET.fullmatch(words[0])):
            if found := _SET.fullmatch(words.pop(0)):
                known[found[1]] = _fill_variables(found[2], known)
        start = _find_arguments(words)
        if start is not None:
            return _read_command(words, start, known)
    return None


def _find_arguments(words: list[str]) -> int | None:
    """Return the index of a training command's first argument, or None for other commands."""
    for place, word in enumerate(words):
        rest = words[place + 1 :]
        if rest and rest[0] in _TRAINERS.get(word, ()):
            return place + 2
        if words[0] in _RUNNERS and word.endswith(".py"):
            trains = "/cli/" in word or any(one.partition("=")[0] in _MARKS for one in rest)
            return place + 1 if trains or _named_recipe("", rest) else None
    return None


def _named_recipe(program: str, words: list[str]) -> str | None:
    """Return the recipe that a command's arguments name, or None."""
    for before, word in zip(["--config", *words], words, strict=False):
        named = word.removeprefix("--config=") if before != "--config" else word
        is_file = named.endswith((".yaml", ".yml", ".json")) or program == "run"
        if is_file and (before == "--config" or named != word) and not named.startswith("-"):
            return named
    return None


def _read_command(words: list[str], start: int, known: dict[str, str]) -> dict[str, Any]:
    """Return a training command's options, with the GPUs and file of its launcher.

    Raises:
        UsageError: its settings are in another file.
    """
    launcher, arguments = words[: start - 1], words[start:]
    recipe = _named_recipe(words[start - 1], arguments[words[start - 1] == "run" :])
    if recipe is not None:
        raise UsageError(f"The script runs the recipe {recipe}: name that file in its place.")
    options = _options(arguments, known)
    told = {key.replace("-", "_"): one for key, one in _options(launcher, known).items()}
    program = words[start - 2 : start]
    devices = next((told[key] for key in _COUNTS if key in told), known.get("NPROC_PER_NODE"))
    visible = known.get("CUDA_VISIBLE_DEVICES")
    if devices is None and visible and "config_file" not in told and _TAKE_ALL & set(launcher):
        devices = visible.count(",") + 1
    nodes = str(told.get("nnodes", "1" if "swift" in program else known.get("NNODES", "1")))
    if str(devices).isdigit():
        nodes = nodes if nodes.isdigit() and "num_processes" not in told else "1"
        options["NPROC_PER_NODE"] = int(str(devices)) * int(nodes)
    if "config_file" in told:
        options["accelerate_config"] = told["config_file"]
    verb = program[1].rpartition("/")[2].removesuffix(".py")
    if "swift" in program or "swift/cli/" in program[1]:
        capital = {key: _parse_values(key, [one]) for key, one in known.items() if key.isupper()}
        return {"swift_command": verb, **capital, **options}
    return {**options, **({"trl_command": verb} if program[0] == "trl" else {})}


def _expand(word: str, known: dict[str, str]) -> list[str]:
    """Return a word, or the words of the variable that it names alone."""
    found = re.fullmatch(r"\$\{?(\w+)\}?", word)
    value = known.get(found[1], "") if found is not None else ""
    return value.split() if value.startswith("-") else [word]


def _fill_variables(word: str, known: dict[str, str]) -> str:
    """Return a word with ``$NAME`` and ``${NAME:-default}`` replaced by known values."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})",
                  lambda one: known.get(one[1] or one[2], one[3] or one[0]), word)  # fmt: skip


def _options(words: list[str], known: dict[str, str]) -> dict[str, Any]:
    """Return a command's words as a table of options, with variables filled in."""
    found: dict[str, Any] = {}
    key = ""
    for word in words:
        if word in _ENDS:
            break
        if word.startswith("--") and len(word) > 2:
            key, _, value = word[2:].partition("=")
            found[key] = [value] if value else []
        elif key:
            found[key].append(word)
    return {key: _parse_values(key, [_fill_variables(one, known) for one in values])
            for key, values in found.items()}  # fmt: skip


def _parse_values(key: str, values: list[str]) -> Any:
    if not values:
        return True
    read = [_parse_scalar(key, value) for value in values]
    return read[0] if len(read) == 1 else read


def _calculate(text: str) -> int | None:
    """Return the value of a product or quotient of whole numbers, or None for other text."""
    first, *rest = re.split(r"\s*\\?([*/])\s*", text.strip())
    if not all(number.isdigit() and len(number) < 7 for number in (first, *rest[1::2])):
        return None
    found = int(first)
    for sign, number in zip(rest[::2], map(int, rest[1::2]), strict=True):
        if sign == "/" and not number:
            return None
        found = found * number if sign == "*" else found // number
    return found


def _parse_scalar(key: str, text: str) -> Any:
    written = re.fullmatch(r"\$\(\(([^()]+)\)\)|\$\(\s*expr ([^()]+)\)", text)
    if written and (found := _calculate(written[1] or written[2])) is not None:
        return found
    if "$(" in text or "`" in text:
        raise UsageError(f"--{key} {text[:40]} is known once the script runs: write its value.")
    try:
        value = untrusted_values.yaml(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool | dict | list) else text
