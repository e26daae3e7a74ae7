"""Write configs/contexts_measured.json from files of ``memcalc measure`` on real GPUs.

python scripts/make_context_readings.py evidence/FILE.json ...
"""

import json
import pathlib
import sys

from memcalc.catalog import contexts
from memcalc.files import artifact, results
from memcalc.files.shipped import configs
from memcalc.measure.gpu.contexts import readings


def text(files: list[str]) -> str:
    found = []
    for name in files:
        measured = [run.measurement for run in results.load(pathlib.Path(name)) if run.measurement]
        found += readings(measured, name)
    return "[\n" + ",\n".join(json.dumps(artifact.encode(r)) for r in found) + "\n]\n"


if __name__ == "__main__":
    (configs() / contexts.MEASURED).write_text(text(sys.argv[1:]))
