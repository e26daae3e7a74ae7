"""memcalc: what training a model costs in GPU memory, before you rent the GPU."""

__version__ = "0.1.0"
