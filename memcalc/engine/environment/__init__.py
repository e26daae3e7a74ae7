"""Finding of the engine's PyTorch: the running Python's, or one in a folder of memcalc's cache.

The engine runs PyTorch's CUDA build. Where the running Python has it and the question names no
other release, it is used. Otherwise uv makes a venv of that release, once, without
NVIDIA's libraries. Its packages come first on the ``PYTHONPATH`` of the engine's process; other
packages of the running Python stay, except those that release does not support.
"""

from memcalc.engine.environment.search import Environment, find, hide

__all__ = ["Environment", "find", "hide"]
