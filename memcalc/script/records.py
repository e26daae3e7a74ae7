"""The request to a simulated program's process, and its result."""

import shlex

import msgspec

from memcalc.engine.follow.mail import Ties
from memcalc.records.engines import Started
from memcalc.records.model import OptimizerState
from memcalc.records.prediction import Refusal
from memcalc.script.command import Program
from memcalc.script.launchers import Launch

REQUEST, ANSWER = "request.json", "answer.json"
"""Files in the folder that a program's process shares with memcalc's own."""
FOUND = "found.json"
"""A file in the folder of the messages between ranks."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a program replaces itself by (``os.execv``), as launchers do."""

    words: tuple[str, ...]
    variables: dict[str, str]
    """Variables of the environment that differ from those that the program began with."""
    folder: str

    @property
    def typed(self) -> str:
        """The command as a shell's line, which begins with its variables."""
        own = {k: v for k, v in self.variables.items() if not k.startswith("MEMCALC_")}
        return shlex.join([*(f"{name}={value}" for name, value in own.items()), *self.words])


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    code: int
    """Its exit code."""
    stopped: bool = False
    """It was stopped after as many optimizer steps as were asked for."""
    steps: int = 0
    """Optimizer steps that it made."""
    out_of_memory: str = ""
    """PyTorch's error, where the program ran out of memory."""
    refusal: Refusal | None = None
    """The request that found no room, where that ended the program."""
    started: tuple[str, ...] = ()
    """Python programs that it started by subprocess, as they would be typed."""
    others: int = 0
    """The most bytes of a GPU that a process had which the program started."""
    trains: bool = False
    """It computed gradients."""
    decides: dict[str, bool] = {}
    """Lines whose branch or size depends on numbers that were not computed; True: one that left
    its loop."""
    escapes: tuple[str, ...] = ()
    """Lines from which such numbers go to the host, where nobody sees what they decide."""
    becomes: Command | None = None
    """The command that took the program's place."""
    lacks: str = ""
    """A package that is not installed and has a stand-in, for lack of which it ended."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """The way that unknown numbers decide in a run."""

    opposite: dict[str, bool] = {}
    """Lines whose decisions go the other way; True: it stays in its loop."""
    scale: float = 1.0
    """How many times as large as usual the numbers are."""
    longer: int = 1
    """How many times as many optimizer steps are made."""


USUAL = Way()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run."""

    program: Program
    steps: int
    gpus: int = 1
    """Of the machine, as far as the user named them."""
    launch: Launch | None = None
    """Its launcher's settings; ``None``: it is started alone."""
    rank: int | str | None = None
    """Which of its processes to run, as plans say it; ``None``: the first alone."""
    world: int | None = None
    """Processes that train together; ``None``: the program says so itself."""
    scouts: bool = False
    """It runs until it starts such processes, to find out how many."""
    weights: bool = False
    """Weights are fetched and read."""
    way: Way = USUAL
    """Which of its ways it goes."""
    said: tuple[str, ...] = ()
    """Assumptions so far."""
    serving: str = ""
    """A folder in which a serving engine writes its figures."""
    stand_ins: tuple[str, ...] = ()
    """Packages in whose place memcalc has something."""
    follows_values: bool = True
    """What it reads from the GPU is followed; else it is all zeros."""
    uses_cudnn: bool = True
    work: str = ""
    """A file with a pickled function to call in place of a program."""
    path: tuple[str, ...] = ()
    """Where modules are found that the function names."""

    @property
    def one_of_many(self) -> bool:
        """True if the program is run as one of several ranks, or to find out how many."""
        return self.rank is not None or (self.world or 1) > 1


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A program's use of the GPU, and how it ended."""

    ending: Ending
    state: OptimizerState
    traces: dict[int, bytes]
    """Of each GPU that it used, packed."""
    started: Started | None = None
    """What a serving engine in the program says of its memory; ``None``: there was none."""
    raised: dict[str, str] = {}
    """What a function raised."""
    ties: Ties | None = None
    """How its process is tied to others; ``None``: it trains alone."""


class RankAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of processes that train together."""

    world: int
    answers: dict[int, Answer]
    """By rank, of those that were run."""
    stages: tuple[tuple[int, ...], ...] = ()
    """Ranks that pass messages on, in the order of their group, each with those that do the same in
    another group; empty: none do."""
    alike: dict[int, tuple[int, ...]] = {}
    """Ranks that were not run, by the one that was and does the same."""
    refusal: str = ""
    """Why there is no answer."""
    refused: bool = False
    """For what was asked; else a process died."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that a program was seen to start itself."""

    world: int
    variables: dict[str, str] = {}
    """Variables in the environment of all of them."""
    numbers: tuple[str, ...] = ()
    """Variables that hold the rank."""

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables that the program sets for its process of this rank."""
        return {**self.variables, **dict.fromkeys(self.numbers, str(rank))}
