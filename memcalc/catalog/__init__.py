"""Looks up models, tasks and GPUs by name. It imports neither torch nor transformers."""
