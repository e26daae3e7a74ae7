"""The mode in which a script's tensors on the GPU are fake."""

from __future__ import annotations

import torch

from memcalc.trace.torch_private.fake_mode import SimulatedMode
from memcalc.trace.torch_private.names import ask


class Mode(SimulatedMode):
    """Fake tensors on a GPU, among them jagged ones."""

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
        """What stands for the lengths of a jagged tensor's rows: as without fake tensors.

        A fake mode's own is a symbol to compile with.
        """
        if nt_tensor_id is None:
            nt_tensor_id = self.nt_tensor_id_counter
            self.nt_tensor_id_counter += 1
        node = ask("torch.nested._internal.nested_int:NestedIntNode")
        return torch.SymInt(node(nt_tensor_id, 1))
