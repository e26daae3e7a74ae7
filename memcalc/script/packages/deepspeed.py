"""DeepSpeed: its Python code runs, its compiled kernels do nothing.

Its engine drives the optimizer that it was given, perhaps once a group of parameters, so a step is
the engine's. Read in 0.19.8.
"""

from typing import Any

from memcalc.engine.follow.session import Session
from memcalc.engine.patches import Patches
from memcalc.errors import EstimateError
from memcalc.records.trace import Component

_IN_PLACE = frozenset(
    "cpu_adagrad cpu_adam cpu_lion fused_adam fused_lamb fused_lion utils".split()
)
"""Compiled operators that write into what they are given, and make nothing."""


class _Inert:
    """A compiled module in which every function does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: 0


def install(session: Session) -> None:
    """Patch DeepSpeed, once imported: label its engine's memory, and run without its kernels."""
    patches = session.patches
    _skip_kernels(patches)

    def make_labelled_engine(original: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
        before = session.counters.moments()
        original(engine, *args, **kwargs)
        session.models.trains(engine.module)
        session.models.sweep()
        session.counters.guess(Component.COMMUNICATION, before)

    patches.wrap_later("deepspeed.runtime.engine", "DeepSpeedEngine.__init__", make_labelled_engine)
    patches.wrap_later("deepspeed.comm.comm", "mpi_discovery", _discover_ranks)


def _discover_ranks(original: Any, *args: Any, **kwargs: Any) -> None:
    """Call DeepSpeed's ``mpi_discovery``, or say what to type if mpi4py is missing."""
    try:
        original(*args, **kwargs)
    except ModuleNotFoundError:
        raise EstimateError(
            "DeepSpeed asks MPI for its rank where no launcher gives one, and mpi4py is not "
            "installed: type deepspeed or torchrun --nproc-per-node 1 in place of python."
        ) from None


def _skip_kernels(patches: Patches) -> None:
    """Replace DeepSpeed's in-place compiled operators by no-ops; refuse all others."""

    def load_no_op(original: Any, builder: Any, *args: Any, **kwargs: Any) -> Any:
        if builder.name not in _IN_PLACE:
            raise EstimateError(
                f"DeepSpeed's compiled operator {builder.name} is not simulated: memcalc does not "
                "know what it takes of the GPU. Leave it out of the configuration."
            )
        patches.say(
            "DeepSpeed's compiled optimizers run without their kernels, which take no memory"
        )
        return _Inert()

    patches.wrap_later("deepspeed.ops.op_builder.builder", "OpBuilder.load", load_no_op)
