"""The engine: a program trains for a few steps on CUDA, and PyTorch's allocator says what it did.

Under the program lies NVIDIA's driver on a machine with a GPU (then it is a measurement), or the
stub driver, which does nothing (then it is an estimate). Everything on the host side is PyTorch's
own code in both cases. ``counters.py`` reads the allocator phase by phase. A plan's loop tells its
phases (``recorder.py``); those of a script are found in what it calls (``scripts/``). ``notes.py``
keeps what either says of blocks, and ``history.py`` turns the allocator's own history into a
``Trace``. ``replay.py`` runs its calls again on another card, or under other settings.
"""
