"""Everything together: a simulated GPU that exists while the session is open."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.allocator.settings import parse_alloc_conf
from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.estimation.estimate import Traced
from memcalc.estimation.predict import predict
from memcalc.estimation.question import Asked
from memcalc.records.plan import FLASH_ATTN
from memcalc.records.trace import Trace
from memcalc.script import (
    alloc_conf,
    attention_support,
    backward,
    by_gpu,
    cuda,
    cudnn_switches,
    decisions,
    endings,
    exact_types,
    extensions,
    graphs,
    loading,
    packages,
    parameters,
    pickled,
    place,
    printed,
    processes,
    quiet,
    streams,
    tensor_types,
    tensors,
    torch_private,
    torchscript,
    untouched,
)
from memcalc.script.card import card
from memcalc.script.driver import lightning
from memcalc.script.gpu import GpuMemory
from memcalc.script.kernels import ScriptKernels
from memcalc.script.labels import Labels
from memcalc.script.mode import Mode
from memcalc.script.patches import Patches
from memcalc.script.phases import Phases
from memcalc.script.processes import Process
from memcalc.script.recorder import ScriptRecorder
from memcalc.script.visible import usable
from memcalc.trace import device
from memcalc.trace.operators import attention, gradients, overrides
from memcalc.trace.properties import Properties
from memcalc.trace.streams import of as of_streams
from memcalc.trace.subclasses import data_watched
from memcalc.trace.torch_private import python_kernels
from memcalc.trace.torch_private.dispatch import no_rules

_ONE_OF_SEVERAL = (
    "of the {0} GPUs named the script uses one: put torchrun --nproc-per-node {0} before it to "
    "have it simulated as the first of {0} processes"
)
_LONGER = (
    "what a longer run reserves: batches of these {0} steps differ in size, and each new size may "
    "leave blocks that fit no other (--steps {1} runs more of them)"
)
_PEERS = "a GPU reads what lies on another without a copy on its own (peer access)"


class Session:
    """A simulated GPU for the code that runs inside.

    Args:
        question: which GPU (none: any, without a limit of memory), its kernels, the allocator's
            settings, and after how many optimizer steps the code is stopped.
        breadcrumbs: shall always say where the code is.
        process: which one it is among several; ``None``: it is alone.
        weights: those on the host hold their numbers, and checkpoints are fetched and read.
    """

    def __init__(
        self,
        question: Asked,
        *,
        breadcrumbs: Breadcrumbs | None = None,
        process: Process | None = None,
        weights: bool = False,
    ) -> None:
        self._process = process
        self._question = question
        gpu, target = question.gpu, question.target
        told = card(gpu)
        settings = parse_alloc_conf(question.plan.alloc_conf, torch=target.torch)
        processes = process.local if process is not None else None
        count = usable(question.plan.devices, processes)
        self.memory = GpuMemory(
            settings,
            total=told.total,
            kept=told.kept,
            outside=told.outside,
            limit=told.room,
            count=count,
        )
        self._kernels = ScriptKernels(target)
        self.recorder = ScriptRecorder(self._kernels, self.memory, breadcrumbs)
        self.recorder.real_weights = weights
        self.recorder.target = target
        self.labels = Labels(self.memory)
        self.phases = Phases(self.recorder, self.labels, question.plan.steps or 0)
        self._target = target
        self._properties = Properties(
            told.name,
            target.capability,
            told.total,
            target.multiprocessors,
            target.architecture,
        )
        self.memory.gpus.count = max(count, processes or 1)
        self._stack, self._ground = contextlib.ExitStack(), contextlib.ExitStack()
        for note in question.notes:
            self.say(note)
        self._started_others = False
        if weights:
            self.say("weights on the host hold their numbers; on the GPU nobody knows them")

    def __enter__(self) -> Session:
        with contextlib.ExitStack() as opened:
            self._open(opened)
            self._stack = opened.pop_all()
        return self

    def _open(self, opened: contextlib.ExitStack) -> None:
        patches = Patches()
        self._open_ground(opened, patches)
        self._open_processes(opened, patches)
        mode = Mode(allow_non_fake_inputs=True)
        if self.memory.several:
            mode.share()
        self._open_gpus(patches)
        self._open_tensors(patches, mode)
        self._open_packages(patches)
        self._serve_threads(patches, mode)
        opened.enter_context(mode)
        opened.enter_context(self.recorder)

    def _open_ground(self, opened: contextlib.ExitStack, patches: Patches) -> None:
        """What PyTorch's C++ is told of devices, and what stays until threads have ended."""
        opened.callback(self._leave_ground)
        # What patches put around these goes first.
        opened.callback(overrides.uninstall)
        opened.callback(attention.uninstall)
        self._ground.enter_context(torch_private.seen(self.memory.gpus))
        if self.memory.several:
            # The engine has a thread for each device.
            self.memory.shared = True
            opened.enter_context(of_streams(self.memory.gpus))
        opened.enter_context(data_watched())
        opened.enter_context(no_rules())
        opened.enter_context(device.use_cuda())
        opened.callback(patches.undo)

    def _open_processes(self, opened: contextlib.ExitStack, patches: Patches) -> None:
        """The script's processes and their groups; the backward's thread and streams."""
        backward.install(patches)
        streams.follow_packing(patches)
        processes.install(
            opened, patches, self.recorder, self._process, self.say, self._one_of_several
        )
        named = self._question.plan.devices
        if named > 1 and self._process is None:
            lightning.install(patches, named, self._one_of_several)
        if self._process is not None and self._process.world > 1:
            self.say(self._process.said)

    def _open_gpus(self, patches: Patches) -> None:
        """The GPUs, as ``torch.cuda`` shows them, and how they choose kernels."""
        attention.install(self._target, None)
        overrides.install(self._target.torch)
        cuda.install(patches, self.memory, self._properties, self.say, self.recorder.traffic.within)
        if not self._question.plan.alloc_conf:
            alloc_conf.install(
                patches, self.memory, self._target.torch, self._follow_conf, self.say
            )
        patches.set(torch._C, "_cuda_clearCublasWorkspaces", self.recorder.clear_workspaces)

    def _open_tensors(self, patches: Patches, mode: Mode) -> None:
        """Tensors, their types and values, and where they are saved and loaded."""
        tensors.like_real_ones(patches)
        tensors.install(patches, self.recorder)
        exact_types.install(patches)
        printed.install(patches)
        tensor_types.install(patches)
        patches.wrap(torch.library.Library, "impl", python_kernels.register)
        parameters.install(patches, mode, real_on_host=self.recorder.real_weights)
        self.recorder.draws.install(patches)
        decisions.install(patches, self.recorder.know, self.say)
        attention_support.install(patches, self._target)
        loading.install(patches)
        pickled.install(patches, mode, self.say)

    def _open_packages(self, patches: Patches) -> None:
        """What other code than PyTorch's operators is asked for."""
        folders = untouched.install(patches, self.say)
        quiet.install(patches, self.say)
        torchscript.install(patches, self.say)
        extensions.install(patches, self.say)
        packages.install(
            patches,
            self.recorder,
            self.phases,
            self._target,
            folders,
            flash=self._question.plan.attention == FLASH_ATTN,
        )
        self.phases.install(patches)
        graphs.install(patches, self.recorder, self.phases, self._target.torch)
        patches.environment("MEMCALC_SIMULATED", "1")
        cudnn_switches.install(patches, self.recorder, self._kernels, self._target, self.say)

    def __exit__(self, *_: object) -> None:
        # Threads of the script that still run are no part of it any more.
        self.recorder.over = True
        self._stack.close()

    def _one_of_several(self, count: int, of: str) -> None:
        """The script starts so many processes, of which the first runs here."""
        self.memory.gpus.count = max(self.memory.gpus.count, count)
        self._started_others = count > 1
        self.say(f"{place.named(f'of {count} {of}')} the first runs")

    def stop_other_threads(self) -> None:
        """Threads that still run stay where they are: the process ends with this one."""
        if self.memory.shared:
            self.recorder.last_thread = threading.get_ident()
            endings.wait_for_threads()

    def _leave_ground(self) -> None:
        """C++ finds the device, unless a thread could still be there that nobody can stop."""
        if self.recorder.last_thread is None:
            self._ground.close()

    def _serve_threads(self, patches: Patches, mode: Mode) -> None:
        """Threads that the script starts have the same GPU: dispatch modes are a thread's own."""

        def start(original: Any, thread: threading.Thread) -> None:
            self.memory.shared = True
            mode.share()
            original(thread)

        def begin(original: Any, thread: threading.Thread) -> None:
            with mode, self.recorder:
                original(thread)

        patches.wrap(threading.Thread, "start", start)
        patches.wrap(threading.Thread, "_bootstrap_inner", begin)

    def _follow_conf(self, conf: str) -> None:
        plan = replace(self._question.plan, alloc_conf=conf)
        self._question = replace(self._question, plan=plan)

    def say(self, assumed: str) -> None:
        """Add to what was assumed."""
        self.recorder.assumptions[assumed] = None

    def traced(self, name: str) -> Traced:
        """What the code took until now, and what that was read from.

        Args:
            name: of the program.
        """
        steps = self.phases.steps
        self.say(f"peaks are those of {steps} optimizer steps and of what lay around them")
        used = self.memory.used
        several = self.memory.several and len(used) > 1
        if several:
            self.say(_PEERS)
        elif self.memory.several and not self._started_others:
            self.say(_ONE_OF_SEVERAL.format(self.memory.gpus.usable))
        trace, state = self._trace(name), self.labels.state()
        if not several and used == [0]:
            return Traced(prediction=predict(self._question, trace, state), trace=trace)
        found = {}
        storages_on = [entry.device for entry in self.memory.entries]
        for gpu in used:
            own = by_gpu.part(trace, storages_on, self.memory.asides_on, gpu)
            found[gpu] = Traced(prediction=predict(self._question, own, state), trace=own)
        return by_gpu.fullest(found)

    def _longer(self) -> Iterator[str]:
        steps = self.phases.steps
        if self.labels.batches_differ():
            yield _LONGER.format(steps, max(100, 10 * steps))

    def _trace(self, name: str) -> Trace:
        """What was recorded until now.

        Args:
            name: of the program.
        """
        recorder = self.recorder
        last = recorder.position.step
        raw = recorder.ledger.tagged_trace(recorder.operations.of_step(last))
        return Trace(
            storages=tuple(raw.storages),
            events=tuple(raw.events),
            marks=tuple(raw.marks),
            inventory=self.labels.inventory(name),
            steps=last + 1,
            flops=raw.flops or None,
            sent=recorder.traffic.of_step(last),
            assumptions=(
                *recorder.assumptions,
                *recorder.said_of_reads(),
                *recorder.operations.said(),
                *gradients.assumed(),
            ),
            uncounted=(*self._kernels.uncounted, *recorder.uncounted, *self._longer()),
            bounds=self._kernels.bounds,
            whole=True,
            asides=tuple(self.memory.asides),
            groups=recorder.traffic.groups,
            versions={"torch": str(torch.__version__)},
        )
