"""Write configs/architectures.json: which class each model type of transformers builds for a task.

Run with the newest transformers that memcalc supports. The file lets memcalc choose a head, and
tell an unknown model type, without importing torch or transformers.
"""

import json
import pathlib

import transformers
from transformers.models.auto import configuration_auto, modeling_auto

from memcalc.workload import tasks

_SEEING = "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"


def main() -> None:
    types: dict[str, dict[str, object]] = {}
    for model_type, config in sorted(configuration_auto.CONFIG_MAPPING_NAMES.items()):
        heads = {}
        for task in map(tasks.find, tasks.names()):
            table = _SEEING if model_type in task.seeing else task.heads
            found = getattr(modeling_auto, table).get(model_type)
            if found:
                heads[task.name] = found if isinstance(found, str) else found[0]
        if heads:
            types[model_type] = {"config": config, "heads": heads}
    path = pathlib.Path(__file__).parent.parent / "configs" / "architectures.json"
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in types.items()]
    head = f'{{"transformers": "{transformers.__version__}", "types": {{\n'
    path.write_text(head + ",\n".join(lines) + "\n}}\n")
    print(f"{len(types)} model types -> {path}")


if __name__ == "__main__":
    main()
