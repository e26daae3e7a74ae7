"""Optimizers of packages that memcalc does not require, and of transformers itself.

Where a package is not installed its state is still known by closed form. Sources: transformers
5.23 optimization.py and trainer_optimizer.py; torchao 0.18 optim/adam.py; schedulefree 1.4.1;
lomo-optim 0.1.1; grokadamw 0.1.2; torch-optimi 0.3.3; galore-torch 1.0; apollo-torch 1.0;
torchdistx 0.3 (not on PyPI: read only). benchmarks/extra_optimizers.py holds the rows against the
packages where they are installed.
"""

from math import prod

from memcalc.records.model import DTYPE_BYTES, Parameter, Place
from memcalc.registry.row import COMMON, Args, Piece, Row, keeps, like, number

_PROJECTED = "its projections depend on the rank chosen for each matrix"


def _hf_adafactor(parameter: Parameter, args: Args) -> list[Piece]:
    """Factored second moment; gradients are taken to fp32 first, so all state is."""
    pieces: list[Piece] = []
    dtype = "float32"
    if args.get("beta1") is not None:
        pieces.append(("exp_avg", dtype, parameter.numel, Place.DEVICE))
    if len(parameter.shape) >= 2:
        shape = parameter.shape
        pieces.append(("exp_avg_sq_row", "float32", prod(shape[:-1]), Place.DEVICE))
        pieces.append(("exp_avg_sq_col", "float32", prod(shape[:-2] + shape[-1:]), Place.DEVICE))
    else:
        pieces.append(("exp_avg_sq", dtype, parameter.numel, Place.DEVICE))
    pieces.append(("RMS", dtype, 1, Place.DEVICE))
    return pieces


def _torchao(bits: int, block: int) -> object:
    """A state of its own for each tensor, code map included; the step counter is on the host.

    Small tensors, and those that blocks do not divide, keep states like themselves. The Trainer
    asks for blocks of 256 in 4 bit too (trainer_optimizer.py, ``_get_torchao_optimizer``).
    """

    def layout(parameter: Parameter, args: Args) -> list[Piece]:
        n = parameter.numel
        size = int(number(args, "block_size", 256 if args.get("_trainer") else block))
        names = ("exp_avg", "exp_avg_sq")
        pieces: list[Piece] = [("step", "float32", 1, Place.HOST)]
        if n < 4096 or n % size:
            return pieces + like(parameter, *names)
        for name in names:
            pieces += [
                (f"{name}.codes", "uint8", n * bits // 8, Place.DEVICE),
                (f"{name}.scale", "float32", n // size, Place.DEVICE),
                (f"{name}.qmap", "float32", 1 << bits, Place.DEVICE),
            ]
        return pieces

    return layout


def _no_amsgrad(args: Args) -> str | None:
    """Its step stops at a maximum of quantized tensors: seen with 0.18, compiled and eager."""
    return "torchao 0.18 cannot run amsgrad on quantized states" if args["amsgrad"] else None


def _anyprecision(parameter: Parameter, args: Args) -> list[Piece]:
    n = parameter.numel
    pieces: list[Piece] = [
        ("step", "float32", 1, Place.HOST),
        ("exp_avg", str(args["momentum_dtype"]), n, Place.DEVICE),
        ("exp_avg_sq", str(args["variance_dtype"]), n, Place.DEVICE),
    ]
    if args.get("use_kahan_summation"):
        pieces.append(("compensation", str(args["compensation_buffer_dtype"]), n, Place.DEVICE))
    return pieces


def _floating(args: Args) -> str | None:
    for name, value in args.items():
        if name.endswith("_dtype") and value not in ("float32", "bfloat16", "float16"):
            return f"{name} = {value!r} is not float32, bfloat16 or float16"
    return None


def _adalomo(parameter: Parameter, args: Args) -> list[Piece]:
    shape = parameter.shape
    if len(shape) >= 2:
        return [
            ("exp_avg_sq_row", "float32", shape[0], Place.DEVICE),
            ("exp_avg_sq_col", "float32", shape[1], Place.DEVICE),
        ]
    return [("exp_avg_sq", "float32", parameter.numel, Place.DEVICE)]


def _stable_adamw(parameter: Parameter, args: Args) -> list[Piece]:
    """On a GPU it runs by Triton unless told otherwise, with two scalars a tensor more."""
    by_triton = args.get("triton")
    if by_triton is None:
        by_triton = args.get("foreach") is None
    pieces = [
        *like(parameter, "exp_avg", "exp_avg_sq"),
        ("eps_sq", parameter.dtype, 1, Place.DEVICE),
    ]
    if args.get("kahan_sum") in (None, True) and DTYPE_BYTES[parameter.dtype] == 2:
        pieces += like(parameter, "kahan_comp")
    elif by_triton:
        pieces.append(("kahan_comp", "uint8", 1, Place.DEVICE))
    if by_triton:
        pieces.append(("mean_square", "float32", 1, Place.DEVICE))
    return pieces


def _extra(name: str, implementation: str, package: str, **more: object) -> Row:
    settings: dict[str, object] = {
        "summary": "",
        "layout": None,
        "takes": COMMON,
        "extra": package,
        "package": package,
        "untraceable": f"{package} runs kernels or hooks of its own",
        **more,
    }
    return Row(name=name, implementation=implementation, **settings)  # type: ignore[arg-type]


_TORCHAO: Args = {"amsgrad": False, "block_size": None}
_TORCHAO_TAKES = ("lr", "betas", "eps", "weight_decay", "bf16_stochastic_round")
_ANYPRECISION: Args = {
    "use_kahan_summation": False,
    "momentum_dtype": "float32",
    "variance_dtype": "float32",
    "compensation_buffer_dtype": "bfloat16",
}
"""What the Trainer passes (trainer_optimizer.py, ``_get_adamw_anyprecision``)."""

ROWS = (
    Row(
        name="transformers.adafactor",
        implementation="transformers.Adafactor",
        # trainer_optimizer.py, ``_get_adafactor``.
        under={"trainer": ("adafactor",)},
        summary="second moment as rows and columns in fp32",
        layout=_hf_adafactor,
        defaults={"beta1": None, "scale_parameter": True, "relative_step": True},
        takes=(*COMMON, "clip_threshold", "decay_rate", "warmup_init"),
        rule=4,
        package="transformers",
    ),
    _extra("adamw_torch_8bit", "torchao.optim.AdamW8bit", "torchao", layout=_torchao(8, 256),
           rule=2, summary="8-bit states, scale per 256", defaults=_TORCHAO, takes=_TORCHAO_TAKES,
           refuse=_no_amsgrad),
    _extra("adamw_torch_4bit", "torchao.optim.AdamW4bit", "torchao", layout=_torchao(4, 128),
           rule=1, summary="4-bit states, scale per 128", defaults=_TORCHAO, takes=_TORCHAO_TAKES,
           refuse=_no_amsgrad),
    _extra("adamw_anyprecision", "torchdistx.optimizers.AnyPrecisionAdamW", "torchdistx",
           layout=_anyprecision, rule=8, defaults=_ANYPRECISION, refuse=_floating,
           summary="states in dtypes of choice, fp32 as the Trainer sets them"),
    _extra("lomo", "lomo_optim.Lomo", "lomo-optim", layout=keeps(), rule=0, in_backward=True,
           summary="updates during backward, no state"),
    _extra("adalomo", "lomo_optim.AdaLomo", "lomo-optim", layout=_adalomo, rule=0.01,
           in_backward=True,
           summary="updates during backward, factored second moment"),
    _extra("grokadamw", "grokadamw.GrokAdamW", "grokadamw", rule=12,
           layout=keeps("exp_avg", "exp_avg_sq", "grok_ema", place=Place.HOST),
           # Among the settings of the group; on the device for its own update only.
           summary="AdamW with an average of gradients, all of it on the host"),
    _extra("schedule_free_adamw", "schedulefree.AdamWScheduleFree", "schedulefree",
           layout=keeps("z", "exp_avg_sq"), rule=8, summary="no schedule: z and second moment"),
    _extra("schedule_free_radam", "schedulefree.RAdamScheduleFree", "schedulefree",
           layout=keeps("z", "exp_avg_sq"), rule=8, summary="no schedule, rectified"),
    _extra("schedule_free_sgd", "schedulefree.SGDScheduleFree", "schedulefree",
           layout=keeps("z"), rule=4, summary="no schedule: z"),
    _extra("stable_adamw", "optimi.StableAdamW", "torch-optimi", layout=_stable_adamw, rule=8,
           defaults={"kahan_sum": None, "foreach": None, "triton": None},
           takes=(*COMMON, "decouple_lr", "max_lr"),
           summary="clipped AdamW; Kahan sum for half precision"),
    *(
        _extra(name, path, package, unknown=_PROJECTED, summary="low-rank projected states",
               in_backward=name.endswith("layerwise"))
        for name, path, package in (
            ("galore_adamw", "galore_torch.GaLoreAdamW", "galore-torch"),
            ("galore_adamw_8bit", "galore_torch.GaLoreAdamW8bit", "galore-torch"),
            ("galore_adafactor", "galore_torch.GaLoreAdafactor", "galore-torch"),
            ("galore_adamw_layerwise", "galore_torch.GaLoreAdamW", "galore-torch"),
            ("galore_adamw_8bit_layerwise", "galore_torch.GaLoreAdamW8bit", "galore-torch"),
            ("galore_adafactor_layerwise", "galore_torch.GaLoreAdafactor", "galore-torch"),
            ("apollo_adamw", "apollo_torch.APOLLOAdamW", "apollo-torch"),
            ("apollo_adamw_layerwise", "apollo_torch.APOLLOAdamW", "apollo-torch"),
        )
    ),
)  # fmt: skip
