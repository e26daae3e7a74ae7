"""Where the engine's PyTorch comes from: the running Python, or a folder in memcalc's cache.

The engine runs PyTorch's CUDA build. Where the running Python has it and the question names no
other release, it is used as it is. Otherwise uv makes a venv of that release, once, without
NVIDIA's libraries. Its packages come first on the ``PYTHONPATH`` of the engine's process; what else
the running Python has stays, less what does not go with that release.
"""

from memcalc.engine.environment.search import Environment, find, hide

__all__ = ["Environment", "find", "hide"]
