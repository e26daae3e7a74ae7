"""Runs processes of a program that train together: one rank, or one of each kind.

All are copies of one process, made before the program begins, which has imported PyTorch for them.
A rank that waits for another's message has that one run beside, as far as it must.
"""

import contextlib
import importlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

import msgspec

from memcalc.children.child import die_with, flush, show
from memcalc.children.exit_reason import ending, oom_kills
from memcalc.engine import torch_internals as internals
from memcalc.engine.follow import mail
from memcalc.engine.follow.mail import Ties
from memcalc.engine.stub import load as stub
from memcalc.files.trace_file import unpack
from memcalc.records.trace import changes
from memcalc.script.imports import find_imports
from memcalc.script.records import FOUND, Answer, Found, RankAnswers, Request

_LOOK = 0.02
"""Seconds between two looks at what runs."""
_LIBRARIES = {"accelerate": "accelerate", "transformers": "transformers.modeling_utils"}
"""Modules that take long to import and start nothing, by the package that a script names."""
_SHOWN = 4000
"""Bytes at the end of a failed rank's output that are shown where another rank's output was."""


class Ranks:
    """The ranks of one program, as far as they are run."""

    def __init__(
        self, request: Request, answered: Path, run: Callable[[Request, Path], NoReturn]
    ) -> None:
        """Take ``run``, which runs a request's program as one rank, and ends its process."""
        self._request, self._answered, self._run = request, answered, run
        self._folder = answered.parent / "mail"
        self._folder.mkdir()
        self._found: Found | None = None
        """How the program starts its processes itself."""
        self._running: dict[int, int] = {}
        """Ranks by process."""
        self._helpers: set[int] = set()
        self._waiting: deque[int] = deque()
        self._asked: list[int] = []
        self._ended: dict[int, int | None] = {}
        """Exit codes by rank."""
        self._kills = oom_kills()
        # Ctrl-C ends the ranks, whose answers are to be taken.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> RankAnswers:
        """Run the requested ranks, and ranks whose messages they wait for; return all answers."""
        world = self._request.world or self._scout()
        rank = self._request.rank
        if isinstance(rank, int) and rank >= world:
            count = "one process" if world == 1 else f"{world} processes"
            refusal = f"--rank {rank}: the program starts {count}, and they count from 0."
            return RankAnswers(world=world, answers={}, refusal=refusal, refused=True)
        if self._found is None and self._request.world is None:
            # It has run to its end in search of others.
            return RankAnswers(world=1, answers={0: self._read_answer(0)})
        self._import_libraries()
        first = rank if isinstance(rank, int) else world - 1 if rank == "last" else 0
        self._queue_ranks([first, world - 1] if rank == "all" else [first])
        while self._waiting or self._running:
            self._start_ranks()
            self._reap()
            if rank == "all":
                self._queue_ranks(self._find_missing_ranks())
            self._start_or_end_helpers()
            time.sleep(_LOOK)
        return self._collect_answers(world)

    def _import_libraries(self) -> None:
        """Import the slow libraries that the script uses, once before its ranks are forked."""
        path = Path(self._request.program.path)
        wanted = {
            module
            for name, module in _LIBRARIES.items()
            if name in find_imports(path) and not (path.parent / name).exists()
        }
        if self._request.rank not in (None, 0, "first"):
            # Nearly every script imports it by its first optimizer; helpers do so too.
            wanted.add("torch._dynamo")
        for module in sorted(wanted):
            with contextlib.suppress(Exception):
                importlib.import_module(module)

    def _scout(self) -> int:
        """Run rank 0 until it starts other processes, or to its end; return how many there are."""
        self._queue_ranks([0])
        self._start_ranks(scouts=True)
        while self._running:
            self._reap()
            time.sleep(_LOOK)
        found = self._folder / FOUND
        if not found.exists():
            return 1
        self._found = msgspec.json.decode(found.read_bytes(), type=Found)
        self._asked.clear()
        self._ended.clear()
        for left in self._folder.iterdir():
            left.unlink()
        return self._found.world

    def _queue_ranks(self, ranks: Iterable[int]) -> None:
        """Queue ranks to run; a helper among them, which runs already, goes on to its end."""
        for rank in ranks:
            if rank in self._asked:
                continue
            self._asked.append(rank)
            if rank in self._helpers:
                mail.ask_to_finish(self._folder, rank)
                self._helpers.discard(rank)
            else:
                self._waiting.append(rank)

    def _start_ranks(self, *, scouts: bool = False) -> None:
        """Fork queued ranks while there are free cores."""
        cores = len(os.sched_getaffinity(0))
        while self._waiting and len(self._running) - len(self._helpers) < max(1, cores):
            self._fork(self._waiting.popleft(), scouts=scouts)

    def _start_or_end_helpers(self) -> None:
        """Start the ranks whose messages others wait for; kill helpers once nothing else runs."""
        for _, wait in list(mail.waiting(self._folder)):
            if wait.source in self._running.values() or wait.source in self._ended:
                continue
            helps = wait.source not in self._waiting
            if not helps:
                self._waiting.remove(wait.source)
            self._fork(wait.source, helps=helps)
        if self._running and not self._waiting and set(self._running.values()) <= self._helpers:
            for process in self._running:
                os.kill(process, signal.SIGKILL)

    def _fork(self, rank: int, *, helps: bool = False, scouts: bool = False) -> None:
        flush()
        process = os.fork()
        if process == 0:
            self._run_rank(rank, helps=helps, scouts=scouts)
        self._running[process] = rank
        if helps:
            self._helpers.add(rank)

    def _run_rank(self, rank: int, *, helps: bool, scouts: bool) -> NoReturn:
        """Set up this forked process as a rank, run the program, and exit."""
        die_with(os.getppid(), signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Some libraries start CUDA as they are imported.
        internals.allow_cuda_after_fork()
        os.environ.update(self._environment(rank, helps=helps))
        launch, request = self._request.launch, self._request
        if launch is not None:
            program = msgspec.structs.replace(request.program, arguments=launch.words(rank))
            request = msgspec.structs.replace(request, program=program)
        found = self._found.world if self._found else 1
        request = msgspec.structs.replace(
            request,
            rank=None if scouts else rank,
            world=request.world or found,
            scouts=scouts,
        )
        if rank != self._asked[0] or helps:
            printed = os.open(self._file(rank, "printed"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
        self._run(request, self._file(rank, "answer"))

    def _environment(self, rank: int, *, helps: bool) -> dict[str, str]:
        launch, found = self._request.launch, self._found
        started = launch.environment(rank) if launch is not None else {}
        if found is not None:
            started = found.environment(rank)
        here = rank % launch.local if launch is not None else rank
        devices = "MEMCALC_STUB_DEVICES"
        count = max(int(os.environ.get(devices, "1")), here + 1)
        helping = {mail.HELPER: "1"} if helps else {}
        return {
            **started,
            **helping,
            devices: str(count),
            # Else ranks beside this one count as processes that its script starts.
            stub.PROCESSES: str(self._file(rank, "processes")),
            mail.FOLDER: str(self._folder),
            mail.RANK: str(rank),
        }

    def _reap(self) -> None:
        """Record the exit codes of ranks that have ended, and announce them to the others."""
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            rank = self._running.pop(process, None)
            if rank is not None:
                self._ended[rank] = os.waitstatus_to_exitcode(status)
                mail.announce_end(self._folder, rank)

    def _find_missing_ranks(self) -> Iterator[int]:
        """Yield the first rank of each pipeline stage of which no rank was queued.

        Without messages the last is enough; it may hold a smaller share.
        """
        for ranks in self._find_stages():
            if not set(ranks) & set(self._asked):
                yield ranks[0]

    def _read_ties(self, rank: int) -> Ties:
        """Return the groups and peers that a rank has noted so far."""
        answer = self._file(rank, "answer")
        if rank in self._ended and answer.exists():
            return self._read_answer(rank).ties or Ties()
        return mail.read_ties(self._folder, rank)

    def _read_answer(self, rank: int) -> Answer:
        """Return the answer of a rank that has ended.

        Raises:
            FileNotFoundError: it died.
        """
        return msgspec.json.decode(self._file(rank, "answer").read_bytes(), type=Answer)

    def _collect_answers(self, world: int) -> RankAnswers:
        found: dict[int, Answer] = {}
        for rank in self._asked:
            code = self._ended[rank]
            if not self._file(rank, "answer").exists():
                why = ending(f"process of rank {rank}", code, kills=self._kills)
                return RankAnswers(world=world, answers={}, refusal=why)
            found[rank] = self._read_answer(rank)
        if any(self._ended[rank] for rank in self._asked):
            # The cause may be a rank that was to send something.
            for rank, code in self._ended.items():
                if (code or 0) > 0:
                    self._show_output(rank)
        if self._request.rank != "all":
            return RankAnswers(world=world, answers=found)
        stages = tuple(self._find_stages())
        alike = dict(_match_ranks(found, stages, world))
        return RankAnswers(world=world, answers=found, stages=stages, alike=alike)

    def _find_stages(self) -> list[tuple[int, ...]]:
        """Return pipeline stages: ranks at the same place of parallel groups; none: empty.

        They are at the same place of other groups that were made together with the first's.
        """
        tied, groups = {0}, tuple[tuple[int, ...], ...]()
        while more := {peer for rank in tied for peer in self._read_ties(rank).peers} - tied:
            tied |= more
        if len(tied) == 1:
            return []
        groups = self._read_ties(0).groups
        around = [group for group in groups if tied <= set(group)]
        stages = min(around, key=len, default=tuple(sorted(tied)))
        if set(stages) != tied:
            return [(rank,) for rank in stages if rank in tied]
        return list(zip(*_find_parallel_groups(stages, groups), strict=True))

    def _show_output(self, rank: int) -> None:
        """Print the end of a rank's output; the first requested rank printed its own."""
        with contextlib.suppress(OSError):
            text = self._file(rank, "printed").read_bytes()[-_SHOWN:].decode(errors="replace")
            show(f"rank {rank}: {text}\n")

    def _file(self, rank: int, kind: str) -> Path:
        return self._answered.parent / f"rank{rank}.{kind}"


def _match_ranks(
    found: dict[int, Answer], stages: tuple[tuple[int, ...], ...], world: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield pairs: a rank that was run, and the ranks that do the same and were not run.

    Without messages each does the same on its share: the first and the last take as much.
    """
    alike = stages
    if not stages and len({_peaks(answer) for answer in found.values()}) == 1:
        alike = (tuple(range(world)),)
    for ranks in alike:
        run = [rank for rank in ranks if rank in found]
        if run and len(run) < len(ranks):
            yield run[0], tuple(rank for rank in ranks if rank not in found)


def _peaks(answer: Answer) -> tuple[int, ...]:
    """Return the peak bytes of a process on each of its GPUs."""
    traces = map(unpack, answer.traces.values())
    return tuple(
        max(accumulate(changes(one.events, [each.bytes for each in one.storages])), default=0)
        for one in traces
    )


def _find_parallel_groups(
    stages: tuple[int, ...], groups: tuple[tuple[int, ...], ...]
) -> list[tuple[int, ...]]:
    """Return a group and the groups made next to it, of equal size and without a common rank.

    Scripts make the groups of a kind one after the other, until each rank is in one.
    """
    at = groups.index(stages) if stages in groups else len(groups)
    family, seen = [stages], set(stages)
    for others in (groups[at + 1 :], groups[:at][::-1]):
        for group in others:
            if len(group) != len(stages) or set(group) & seen:
                break
            family.append(group)
            seen |= set(group)
    return family
