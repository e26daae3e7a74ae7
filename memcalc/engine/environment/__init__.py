"""Where the engine's PyTorch comes from: the running Python, or a folder in memcalc's cache.

The engine runs PyTorch's CUDA build. Where the running Python has it and the question names no
other release, it is used as it is. Otherwise the CUDA wheel of the release is installed once,
without NVIDIA's libraries, into a folder that comes first on the ``PYTHONPATH`` of the engine's
process; everything else comes from the running Python, less what does not go with that release.
"""

from memcalc.engine.environment.search import Environment, describe, find, hide

__all__ = ["Environment", "describe", "find", "hide"]
