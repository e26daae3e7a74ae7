"""``memcalc.simulate`` and ``memcalc.estimate``, without importing PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcalc.estimation.estimate import estimate as estimate_model
from memcalc.records.fields import name_settings
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction

if TYPE_CHECKING:
    import torch

    from memcalc.script.live import Simulation


def simulate(
    *,
    gpu: str | None = None,
    steps: int = 0,
    torch: str | None = None,
    alloc_conf: str | None = None,
) -> Simulation:
    """Run the code of a ``with`` on a simulated GPU: nothing is computed, nothing is allocated.

    ``with memcalc.simulate(gpu="t4") as run: train()``, then ``run.prediction``. Models that are
    moved to the GPU inside have no values.

    Args:
        gpu: which GPU; None is any, without a limit of memory. Where memory runs out, the code
            finds ``torch.OutOfMemoryError``.
        steps: leave the block when an optimizer is about to go beyond these; 0: never.
        torch: PyTorch version that will run; None is the installed one.
        alloc_conf: ``PYTORCH_ALLOC_CONF`` of the run.

    Raises:
        UsageError: a setting makes no sense, or CUDA is in use in this process.
        EstimateError: this build of PyTorch cannot be simulated on.
    """
    from memcalc.script.live import Simulation

    return Simulation({"gpu": gpu, "steps": steps, "torch": torch, "alloc_conf": alloc_conf})


@name_settings
def estimate(
    model: str | Plan | torch.nn.Module,
    *,
    method: str = "trace",
    use_cache: bool = True,
    **settings: Any,
) -> Prediction:
    """Predict the memory of one training run.

    Args:
        model: a bundled name, a local folder or config.json, a hub name, or
            ``package.module:callable``; a ``memcalc.Plan``; or a ``torch.nn.Module``, which
            is not changed.
        method: ``trace`` runs the real code on a simulated GPU; ``analytic`` uses closed forms.
        use_cache: keep and reuse answers on disk.
        **settings: fields of ``Plan``. With a module: ``gpu``, ``torch`` and ``alloc_conf``, and
            ``inputs`` (a batch: a tensor, a tuple of arguments or a dict of keywords),
            ``optimizer`` (an optimizer of the module's parameters, or what makes one of them, such
            as ``torch.optim.AdamW``; left out: no update), ``loss`` (of the output and, where
            given, of ``targets``; left out: the output's own ``loss``) and ``steps`` (3).

    Returns:
        The prediction; all sizes are unrounded bytes.

    Raises:
        UsageError: the question cannot be understood.
        EstimateError: it could not be answered.
    """
    if isinstance(model, str | Plan):
        return estimate_model(model, method=method, use_cache=use_cache, **settings)
    from memcalc.script.live import estimate_module

    return estimate_module(model, **settings)
