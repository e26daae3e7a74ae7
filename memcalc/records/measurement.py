"""The records of a measured run.

Sizes are unrounded bytes. A figure that could not be read is ``None``, and ``Measurement.unknown``
says why, under the field's name.
"""

from collections.abc import Iterable

import msgspec

from memcalc.records.display import Answer
from memcalc.records.plan import Plan
from memcalc.records.prediction import ALLOCATOR_RUNGS
from memcalc.records.trace import GENERATION, ONCE, Phase, PhaseReading


class StateReading(msgspec.Struct, frozen=True, kw_only=True):
    """The optimizer's state as the real optimizer holds it."""

    device: int
    """Bytes of unique storages on the device."""
    host: int
    managed: int
    tutorial_elements: int
    """Elements by the well-known sum over ``optimizer.state.values()``."""
    tutorial_bytes: int


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A run that did not fit: a result, not an error."""

    step: int
    phase: Phase
    asked: int | None
    """Bytes of the request that failed."""
    free: int | None
    """Free on the device at that moment."""
    message: str
    total: int | None = None
    """Size of the device."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """GPU memory at a quiet point of a run, while the run waits for the reading."""

    name: str
    """``before`` the context, with the ``context``, ``trained`` (after the last step), ``freed``
    (after all tensors are gone and the cache is emptied)."""
    device: int | None = None
    """In use on the whole device, by NVML."""
    process: int | None = None
    """Held by the run, by NVML."""
    cuda_used: int | None = None
    """In use on the whole device, by ``cudaMemGetInfo``: needs a context, so never ``before``."""
    reserved: int | None = None
    """Held by PyTorch's allocator at that moment."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU; ``nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv``.

    In a container it is the number on the host.
    """

    pid: int
    name: str
    bytes: int | None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of NVML, by the parent while the child trained."""

    uuid: str
    name: str
    driver: str
    total: int | None
    """By NVML, which counts what the driver keeps; ``cuda_total`` is what a program can have."""
    memory_info: str
    """``v2`` (driver memory apart) or ``v1`` (driver memory inside ``used``)."""
    driver_reserved: int | None
    source: str
    """Where the figures of the process are from: ``process`` (NVML's own), ``appeared`` (the one
    process that NVML listed after the context was made, and not before), ``difference`` (device
    now less device before, others' growth subtracted), or ``unknown`` (several appeared)."""
    moments: tuple[Moment, ...]
    peak_device: int | None
    """Highest of all samples."""
    peak_process: int | None
    samples: int
    interval: float
    """Seconds between samples."""
    cuda_total: int | None = None
    others: tuple[GpuProcess, ...] = ()
    warnings: tuple[str, ...] = ()

    def moment(self, name: str) -> Moment | None:
        """Return the reading at the quiet point with this name, or None."""
        return next((moment for moment in self.moments if moment.name == name), None)

    @property
    def context(self) -> int | None:
        """Bytes of the bare CUDA context: what the process held before its first tensor."""
        made = self.moment("context")
        return made.process if made is not None else None

    @property
    def outside_allocator(self) -> int | None:
        """Bytes of the trained process that PyTorch's allocator does not hold, context included."""
        end = self.moment("trained")
        if end is None or end.process is None or end.reserved is None:
            return None
        return end.process - end.reserved


class Measurement(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a real run of one plan."""

    plan: Plan
    device: str
    """Name of the GPU, or ``cpu``."""
    head: str = ""
    seq: int | None = None
    parameters: int | None = None
    weights: int | None = None
    """Bytes of the unique storages of all parameters."""
    gradients: int | None = None
    """Bytes of the unique storages of all gradients, before they are cleared."""
    state: StateReading | None = None
    phases: tuple[PhaseReading, ...] = ()
    seconds_per_step: float | None = None
    """Mean of all steps after the first."""
    samples_per_second: float | None = None
    buffers: int | None = None
    retries: int | None = None
    """How often the allocator had to empty its cache (``num_alloc_retries``)."""
    ooms: int | None = None
    """How often it gave up (``num_ooms``)."""
    process_used: int | None = None
    """GPU memory that the process occupied at its most; see ``gpu.source``."""
    peak_rss: int | None = None
    """Largest resident set of the process (or, from outside, of all its processes together)."""
    gpu: GpuReading | None = None
    out_of_memory: OutOfMemory | None = None
    seconds: float | None = None
    """Wall clock of the whole run."""
    unknown: dict[str, str] = msgspec.field(default_factory=dict)
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment that changes memory, such as ``PYTORCH_ALLOC_CONF``."""
    config: str | None = None
    """Digest of the model's config.json; ``None``: none, or unknown."""

    @property
    def device_total(self) -> int | None:
        """Bytes of the GPU by NVML: cards of one name come in several sizes."""
        return self.gpu.total if self.gpu is not None else None


def find_last_step(readings: Iterable[PhaseReading]) -> int | None:
    """Return the last step that ended with its gradients cleared, or None if none did."""
    return max((one.step for one in readings if one.phase is Phase.ZERO_GRAD), default=None)


def steady_peaks(readings: Iterable[PhaseReading]) -> dict[Phase, dict[str, int]]:
    """Return the peak of each memory level in each phase of the last complete step, in bytes.

    The steady step is the last one that ended: by then all that a step leaves behind exists. What
    comes before the first step counts as its phases, and loading only where weights change on the
    way. Every phase of a run that generates counts.
    """
    known = tuple(readings)
    last = find_last_step(known)
    prepared = any(reading.phase in (Phase.PREPARE, Phase.PREFILL) for reading in known)
    peaks: dict[Phase, dict[str, int]] = {}
    for reading in known:
        if reading.phase is Phase.LOAD and not prepared:
            continue
        always = reading.phase in (Phase.LOAD, *ONCE, *GENERATION)
        if not always and reading.step != last:
            continue
        levels = peaks.setdefault(reading.phase, {})
        for rung in ALLOCATOR_RUNGS:
            level = getattr(reading, rung)
            if level is not None:
                levels[rung] = max(levels.get(rung, 0), level)
    return peaks


def steady_peak(measurement: Measurement, rung: str) -> int | None:
    """Return the last complete step's peak of a level such as ``reserved``, in bytes, or None."""
    levels = [found[rung] for found in steady_peaks(measurement.phases).values() if rung in found]
    return max(levels, default=None)


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about this machine."""

    name: str
    value: str
    well: bool = True
    """False: something cannot be measured for it."""
    advice: str = ""
