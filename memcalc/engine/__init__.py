"""Runs a program for a few steps on CUDA and reads what PyTorch's allocator did.

The driver below is NVIDIA's on a machine with a GPU (a measurement), or the stub driver, whose
kernels do nothing (an estimate). On the host side PyTorch's own code runs in both cases.
``counters.py`` reads the allocator's counters by phase; ``follow/`` finds phases and the purpose of
memory in the calls of a plan or script. ``notes.py`` keeps what is known about blocks, and
``history.py`` turns the allocator's own history into a ``Trace``. ``replay.py`` repeats its calls
on another card, or under other settings.
"""
