"""Commands such as ``swift sft`` that start another Python program of their package.

Such a command would be simulated, and what it starts would not: the program itself is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from memcalc.errors import UsageError

SWIFT = "swift.cli.main"
"""The module of ms-swift's command; other packages and languages have a ``swift`` too."""
_SEVERAL = ("pt", "sft", "rlhf", "infer")
"""Programs of ms-swift that torchrun starts where the environment says how many."""
_TOLD = ("NPROC_PER_NODE", "MASTER_PORT", "NNODES", "NODE_RANK", "MASTER_ADDR")
"""What ms-swift tells torchrun, which calls its options alike."""


def is_swift(path: Path) -> bool:
    """Whether this console script is ms-swift's."""
    return path.name == "swift" and SWIFT in path.read_text(errors="replace")


def swift(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """What ``swift sft ...`` starts there: a module, or ``torchrun``, and its arguments.

    Source: swift/cli/main.py, ``cli_main`` (4.6).

    Raises:
        UsageError: no program is named, or its options are in a file.
    """
    if not words or words[0].startswith("-"):
        raise UsageError("Name a command of swift: memcalc simulate -- swift sft --model ....")
    method, rest = words[0].replace("_", "-"), list(words[1:])
    if rest and rest[0].endswith((".json", ".yaml", ".yml")):
        raise UsageError(
            f"swift {method} {rest[0]} makes options of a file: type them, as in "
            f"memcalc simulate -- swift {method} --model ...."
        )
    module = f"swift.cli.{method.replace('-', '_')}"
    if method not in _SEVERAL or not {"NPROC_PER_NODE", "NNODES"} & environment.keys():
        return module, rest
    told = [f"--{name.lower()}={environment[name]}" for name in _TOLD if name in environment]
    return "torchrun", [*told, "-m", module, *rest]
