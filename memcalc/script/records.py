"""The request to a simulated program's process, and its result."""

import msgspec

from memcalc.records.model import OptimizerState
from memcalc.records.prediction import Refusal
from memcalc.script.command import Program


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a program."""

    code: int
    """Its exit code."""
    stopped: bool = False
    """It was stopped after as many optimizer steps as were asked for."""
    steps: int = 0
    """Optimizer steps that it made."""
    out_of_memory: str = ""
    """What PyTorch said of memory, where that ended the program."""
    refusal: Refusal | None = None
    """The request that found no room, where that ended the program."""
    started: tuple[str, ...] = ()
    """Python programs that it started by subprocess, as they would be typed."""
    others: int = 0
    """The most bytes of a GPU that a process had which the program started."""
    trains: bool = False
    """It computed gradients."""
    lacks: str = ""
    """A package that is not installed and has a stand-in, for lack of which it ended."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and how."""

    program: Program
    steps: int
    gpus: int = 1
    """Of the machine, as far as the user named them."""
    launched: bool = False
    """By a launcher, as one process of several."""
    weights: bool = False
    """Weights are fetched and read."""
    said: tuple[str, ...] = ()
    """What is assumed so far."""
    stand_ins: tuple[str, ...] = ()
    """Packages in whose place memcalc has something."""
    work: str = ""
    """A file with a pickled function to call in place of a program."""
    path: tuple[str, ...] = ()
    """Where modules are found that the function names."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a program took of the GPU, and how it ended."""

    ending: Ending
    state: OptimizerState
    traces: dict[int, bytes]
    """Of each GPU that it used, packed."""
    raised: dict[str, str] = {}
    """What a function raised."""
