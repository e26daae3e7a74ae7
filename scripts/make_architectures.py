"""Write configs/architectures.json: which class each model type of transformers builds for a task.

Run with the newest transformers that memcalc supports. The file lets memcalc choose a head, and
tell an unknown model type, without importing torch or transformers.
"""

import json
import pathlib

import transformers
from transformers.models.auto import configuration_auto, modeling_auto

TASKS = {
    "base": "MODEL_MAPPING_NAMES",
    "pretraining": "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "sequence-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token-classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question-answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "speech-seq2seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "audio-classification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "contrastive": "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}


def main() -> None:
    types: dict[str, dict[str, object]] = {}
    for model_type, config in sorted(configuration_auto.CONFIG_MAPPING_NAMES.items()):
        heads = {}
        for task, name in TASKS.items():
            found = getattr(modeling_auto, name).get(model_type)
            if found:
                heads[task] = found if isinstance(found, str) else found[0]
        if heads:
            types[model_type] = {"config": config, "heads": heads}
    path = pathlib.Path(__file__).parent.parent / "configs" / "architectures.json"
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in types.items()]
    head = f'{{"transformers": "{transformers.__version__}", "types": {{\n'
    path.write_text(head + ",\n".join(lines) + "\n}}\n")
    print(f"{len(types)} model types -> {path}")


if __name__ == "__main__":
    main()
