"""Every private name of PyTorch and transformers that tracing relies on, asked for once.

Read in PyTorch 2.11.0 and 2.13.0 and in transformers 5.23.0. A name that is gone ends in an
``EstimateError`` as its module here is imported; one that is still there and means something else
is found by ``memcalc.trace.self_check``.
"""
