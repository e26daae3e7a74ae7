"""Names to facts: models, tasks, GPUs. Imports neither torch nor transformers."""
