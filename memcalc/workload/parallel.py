"""Checks whether the settings of a plan go together with its layout over several GPUs."""

from memcalc.errors import SettingError, UsageError, blame_setting
from memcalc.files import extras
from memcalc.records.names import AUTOCAST_DTYPES, PLAIN_TENSORS
from memcalc.records.plan import Plan
from memcalc.registry import Choice
from memcalc.workload import layouts
from memcalc.workload.layouts import Layout
from memcalc.workload.spread import Spread


def check(plan: Plan, spread: Spread, layout: Layout, choice: Choice) -> None:
    """Raise SettingError if a layout is not supported with the plan's other settings.

    Raises:
        SettingError: a package is missing, or a setting does not go together with the layout.
    """
    several = layout.name != layouts.SINGLE
    with blame_setting("parallel"):
        layouts.chosen_rank(plan.rank, spread.world)
        missing = layout.package and extras.lacking(
            f"--parallel {plan.parallel} needs", layout.package
        )
        if missing:
            raise UsageError(f"{missing}.")
    if plan.compile and layout.package:
        why = "compile is not supported with DeepSpeed's engine yet: leave one of them out."
        raise SettingError("compile", why)
    if several and plan.loop != "plain":
        _check_accelerate(plan, layout)
    if several and plan.resume and (layout.name != "ddp" or plan.loop != "plain"):
        why = "--resume works in the plain loop with ddp only: leave it out."
        raise SettingError("resume", f"Over several GPUs, {why}")
    if several and plan.eval and (layout.package or plan.loop != "plain"):
        why = "--eval works in the plain loop with PyTorch's own layouts only: leave it out."
        raise SettingError("eval", f"Over several GPUs, {why}")
    # DeepSpeed's stages hand over a rank's share of all parameters as flat tensors, where states
    # of bitsandbytes follow from lengths alone.
    flat = layout.package == "deepspeed" and choice.row.package == "bitsandbytes"
    plain = layout.name in PLAIN_TENSORS or not (spread.inside or spread.sharding)
    if several and not (choice.traceable or flat or plain):
        reason = f"its kernels take no DTensors, which {layout.name} makes of parameters"
        if layout.package or choice.row.package != "bitsandbytes":
            reason = f"its code is not run here, so how {layout.name} divides its state is unknown"
        raise SettingError(
            "optim",
            f"--optim {plan.optim} with --parallel {plan.parallel}: {reason}. Choose an optimizer "
            "of PyTorch, or --parallel zero1.",
        )
    if plan.target == "cpu" and (layout.package or layout.name in ("pp", "ep", "cp")):
        raise SettingError("target", f"--parallel {plan.parallel} needs GPUs: leave --target out.")


def _check_accelerate(plan: Plan, layout: Layout) -> None:
    """Raise SettingError for a layout or setting that accelerate's loops do not support."""
    if layout.handed_over is None:
        raise SettingError(
            "loop",
            f"--loop {plan.loop} over several GPUs works with {', '.join(layouts.driven())}, "
            f"and the plan has {plan.parallel}: leave --loop out.",
        )
    given = dict(plan.parallel_args)
    refused = {
        "device_mesh": f"Under --loop {plan.loop} PyTorch itself finds out how many GPUs a machine "
        "has: HYBRID_SHARD works in the plain loop only, so leave --loop out.",
        "no_sync": f"Under --loop {plan.loop} accelerate decides when gradients are exchanged: "
        "no_sync works in the plain loop only, so leave one of them out.",
        "autocast": f"Under --loop {plan.loop} accelerate decides whether autocast runs: leave "
        "autocast out.",
    }
    if plan.loop == "trainer":
        view = "gradient_as_bucket_view"
        refused[view] = f"The Trainer hands no {view} on: leave it out."
    if why := next((why for name, why in refused.items() if name in given), None):
        raise SettingError("parallel_args", why)
    half = AUTOCAST_DTYPES.get(plan.precision)
    for name in layout.mixed:
        if given.get(name, half) != half:
            raise SettingError(
                "parallel_args",
                f"accelerate takes {name} from its mixed precision, which is {plan.precision}: "
                f"leave {name} out.",
            )
