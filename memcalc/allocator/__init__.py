"""PyTorch's CUDA caching allocator, modeled to the byte, without PyTorch.

``settings`` reads ``PYTORCH_ALLOC_CONF``, ``replay`` turns storages into what is reserved,
``snapshot_writer`` and ``snapshot_reader`` speak the format of PyTorch's memory viewer, and
``what_if`` runs a recorded history again. The model itself is ``caching`` with ``expandable``,
on the ``state``; ``outside`` tells what a process holds beside it.
"""
