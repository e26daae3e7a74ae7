"""The values that a program reads from the simulated GPU, which computes nothing.

The story of a value, and the module that tells each part of it:

1. ``follower``: PyTorch hands each operator over (in the threads that ``threads`` sets), and
   ``rules`` is the table of what to do with it.
2. ``known``: the one place that knows whether a tensor's numbers are known, made up or unknown. A
   number is known if the program put it on the GPU (``copies``), PyTorch draws it (``draws``), or
   it follows from such numbers, which the host then computes. ``updates`` forgets what kernels
   write.
3. ``unknown``: an unknown number reads as a made-up one; ``deferred`` computes from those only if
   someone reads the result.
4. ``reads``: a made-up number that Python gets is ``marked``, and computations with it are, too.
   A comparison with one is a decision. Where it becomes plain (text, ``float()``, NumPy) it
   escapes, unless ``uses`` finds in the source that it is only printed.
5. A check that raises passes (``uses``, ``library_checks``), and a loop that waits ends. A
   decision of another kind is told with its line, and the program runs again the other way.
"""
