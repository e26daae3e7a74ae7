"""torch.optim: state takes the parameter's dtype; step counters live on the host by default.

Source: torch/optim/*.py, PyTorch 2.11 and 2.13; every row is compared with the real class.
"""

from math import prod

from memcalc.records.model import Parameter, Place
from memcalc.registry.row import COMMON, Args, Layout, Piece, Row, keeps, like

_FLAGS = ("foreach", "differentiable")


def _states(*names: str, steps: tuple[str, ...] = ("step",), **asked: str) -> Layout:
    """State like the parameter, and what an argument asks for, behind float32 counters of steps."""

    def layout(parameter: Parameter, args: Args) -> list[Piece]:
        place = Place.DEVICE if args.get("capturable") or args.get("fused") else Place.HOST
        more = (name for argument, name in asked.items() if args.get(argument))
        counters: list[Piece] = [(name, "float32", 1, place) for name in steps]
        return [*counters, *like(parameter, *names, *more)]

    return layout


_HOST_STEP: Piece = ("step", "float32", 1, Place.HOST)
_adam = _states("exp_avg", "exp_avg_sq", amsgrad="max_exp_avg_sq")


def _asgd(parameter: Parameter, args: Args) -> list[Piece]:
    scalars: list[Piece] = [(n, "float32", 1, Place.DEVICE) for n in ("step", "eta", "mu")]
    return [*scalars, *like(parameter, "ax")]


def _adafactor(parameter: Parameter, args: Args) -> list[Piece]:
    if len(parameter.shape) < 2:
        return [_HOST_STEP, *like(parameter, "variance")]
    rows, columns = prod(parameter.shape[:-1]), parameter.numel // max(parameter.shape[-2], 1)
    return [
        _HOST_STEP,
        ("row_var", parameter.dtype, rows, Place.DEVICE),
        ("col_var", parameter.dtype, columns, Place.DEVICE),
    ]


def _row(
    class_name: str,
    layout: Layout | None,
    summary: str,
    rule: float | None,
    **more: object,
) -> Row:
    defaults = {**dict.fromkeys(_FLAGS), **more.pop("defaults", {})}  # type: ignore[dict-item]
    takes = (*COMMON, *more.pop("takes", ()))  # type: ignore[misc]
    return Row(
        name=class_name.lower(),
        implementation=f"torch.optim.{class_name}",
        summary=summary,
        layout=layout,
        rule=rule,
        defaults=defaults,
        takes=takes,
        **more,  # type: ignore[arg-type]
    )


_CAPTURABLE: Args = {"capturable": False}
_ADAM: Args = {"amsgrad": False, "capturable": False, "fused": None}

ROWS = (
    _row(
        "AdamW",
        _adam,
        "two moments, decoupled weight decay",
        8,
        defaults=_ADAM,
        aliases=("adamw_torch", "adamw_torch_xla", "adamw_torch_npu_fused"),
        twin_8bit="adamw8bit",
    ),
    _row(
        "Adam",
        _adam,
        "two moments",
        8,
        defaults=_ADAM,
        takes=("decoupled_weight_decay",),
        twin_8bit="adam8bit",
    ),
    _row(
        "SGD",
        _states(steps=(), momentum="momentum_buffer"),
        "momentum if set",
        4,
        defaults={"momentum": 0, "nesterov": False, "fused": None},
        takes=("dampening",),
        twin_8bit="sgd8bit",
    ),
    _row(
        "Adafactor",
        _adafactor,
        "second moment as rows and columns; no first moment",
        4,
        takes=("beta2_decay", "d"),
    ),
    _row(
        "Adagrad",
        _states("sum"),
        "sum of squares, allocated at construction",
        4,
        defaults={"fused": None},
        takes=("lr_decay", "initial_accumulator_value"),
        twin_8bit="adagrad8bit",
    ),
    _row(
        "Adadelta",
        _states("square_avg", "acc_delta"),
        "two averages",
        8,
        defaults=_CAPTURABLE,
        takes=("rho",),
    ),
    _row(
        "Adamax",
        _states("exp_avg", "exp_inf"),
        "first moment and infinity norm",
        8,
        defaults=_CAPTURABLE,
    ),
    _row(
        "NAdam",
        _states("exp_avg", "exp_avg_sq", steps=("step", "mu_product")),
        "Adam with Nesterov momentum",
        8,
        defaults=_CAPTURABLE,
        takes=("momentum_decay", "decoupled_weight_decay"),
    ),
    _row(
        "RAdam",
        _states("exp_avg", "exp_avg_sq"),
        "rectified Adam",
        8,
        defaults=_CAPTURABLE,
        takes=("decoupled_weight_decay",),
    ),
    _row(
        "RMSprop",
        _states("square_avg", momentum="momentum_buffer", centered="grad_avg"),
        "average of squares; momentum if set",
        4,
        defaults={"momentum": 0, "centered": False, "capturable": False},
        takes=("alpha",),
        twin_8bit="rmsprop8bit",
    ),
    _row(
        "Rprop",
        _states("prev", "step_size"),
        "sign and step size",
        8,
        defaults=_CAPTURABLE,
        takes=("etas", "step_sizes"),
    ),
    _row("ASGD", _asgd, "averaged SGD", 4, defaults=_CAPTURABLE, takes=("lambd", "alpha", "t0")),
    _row(
        "Muon",
        keeps("momentum_buffer"),
        "momentum, orthogonalized; matrices only",
        4,
        takes=("momentum", "nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn"),
    ),
    _row(
        "SparseAdam",
        keeps("exp_avg", "exp_avg_sq"),
        "Adam for sparse gradients",
        8,
    ),
    _row(
        "LBFGS",
        None,
        "history of updates",
        None,
        defaults={"history_size": 100},
        takes=("max_iter", "max_eval", "tolerance_grad", "tolerance_change", "line_search_fn"),
        untraceable="it evaluates the loss several times a step",
        unknown="its history grows with the iterations it takes",
    ),
    Row(
        name="adamw_torch_fused",
        implementation="torch.optim.AdamW",
        layout=_adam,
        rule=8,
        summary="AdamW in one kernel; step counters on the device",
        defaults={**_ADAM, "fused": True},
        takes=COMMON,
        twin_8bit="adamw8bit",
    ),
)
