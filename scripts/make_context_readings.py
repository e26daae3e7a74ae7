"""Write configs/contexts_measured.json from files of ``memcalc measure`` on real GPUs.

python scripts/make_context_readings.py evidence/FILE.json ...
"""

import json
import pathlib
import sys
from collections.abc import Iterable, Iterator

from memcalc.catalog import contexts, gpus
from memcalc.catalog.contexts import Reading, Stage
from memcalc.files import artifact, results
from memcalc.files.shipped import configs
from memcalc.records.measurement import GpuReading, Measurement

_TOLD = frozenset({"process", "appeared"})
"""Sources that name the process; a difference of device figures may hold somebody else's."""


def readings(measurements: Iterable[Measurement], source: str) -> Iterator[Reading]:
    """The bare context and the trained process of every run that NVML named.

    Left out are runs that did not end, and those with managed memory, which NVML counts too.

    Args:
        measurements: of ``memcalc measure``.
        source: the file they are from.

    Raises:
        UsageError: a GPU is not in the catalog.
    """
    for measured in measurements:
        gpu = measured.gpu
        managed = measured.state.managed if measured.state is not None else 0
        if gpu is None or gpu.source not in _TOLD or measured.out_of_memory or managed:
            continue
        for stage, size in (
            (Stage.CONTEXT, gpu.context),
            (Stage.TRAINING, gpu.outside_allocator),
        ):
            if size is not None:
                yield _reading(measured, gpu, stage, size, source)


def _reading(
    measured: Measurement, gpu: GpuReading, stage: Stage, size: int, source: str
) -> Reading:
    return Reading(
        gpu=gpus.find(gpu.name, gpu.total).name,
        stage=stage,
        low=size,
        high=size,
        lazy=measured.settings.get("CUDA_MODULE_LOADING", "LAZY").upper() != "EAGER",
        source=source,
        torch=measured.versions.get("torch"),
        cuda=measured.versions.get("cuda"),
        driver=gpu.driver or None,
        note=f"{measured.plan.model} {measured.plan.optim} {measured.plan.precision}",
        measured=True,
    )


def text(files: list[str]) -> str:
    found = []
    for name in files:
        measured = [run.measurement for run in results.load(pathlib.Path(name)) if run.measurement]
        found += readings(measured, name)
    return "[\n" + ",\n".join(json.dumps(artifact.encode(r)) for r in found) + "\n]\n"


if __name__ == "__main__":
    (configs() / contexts.MEASURED).write_text(text(sys.argv[1:]))
