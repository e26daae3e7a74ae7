"""Layouts of optimizers whose state is not simply like the parameter."""

from math import prod

from memcalc.records.model import DTYPE_BYTES, Parameter, Place
from memcalc.registry.row import Args, Layout, Piece, like, number

_HOST_STEP: Piece = ("step", "float32", 1, Place.HOST)


def average(parameter: Parameter, args: Args) -> list[Piece]:
    """Describe ASGD's state of one parameter: three scalars and the average."""
    scalars: list[Piece] = [(n, "float32", 1, Place.DEVICE) for n in ("step", "eta", "mu")]
    return [*scalars, *like(parameter, "ax")]


def factor_rows_and_columns(parameter: Parameter, args: Args) -> list[Piece]:
    """Describe PyTorch's Adafactor state of one parameter: row and column variances."""
    if len(parameter.shape) < 2:
        return [_HOST_STEP, *like(parameter, "variance")]
    rows, columns = prod(parameter.shape[:-1]), parameter.numel // max(parameter.shape[-2], 1)
    return [
        _HOST_STEP,
        ("row_var", parameter.dtype, rows, Place.DEVICE),
        ("col_var", parameter.dtype, columns, Place.DEVICE),
    ]


def factor_in_fp32(parameter: Parameter, args: Args) -> list[Piece]:
    """Describe transformers' Adafactor state of one parameter, in fp32."""
    found = like(parameter, "exp_avg", dtype="float32") if args.get("beta1") is not None else []
    shape = parameter.shape
    if len(shape) >= 2:
        found.append(("exp_avg_sq_row", "float32", prod(shape[:-1]), Place.DEVICE))
        found.append(("exp_avg_sq_col", "float32", prod(shape[:-2] + shape[-1:]), Place.DEVICE))
    else:
        found += like(parameter, "exp_avg_sq", dtype="float32")
    return [*found, ("RMS", "float32", 1, Place.DEVICE)]


def factor_first_two(parameter: Parameter, args: Args) -> list[Piece]:
    """Describe AdaLomo's state of one parameter: sums over the first two axes."""
    if len(parameter.shape) < 2:
        return like(parameter, "exp_avg_sq", dtype="float32")
    names = ("exp_avg_sq_row", "exp_avg_sq_col")
    sizes = zip(names, parameter.shape[:2], strict=True)
    return [(name, "float32", size, Place.DEVICE) for name, size in sizes]


def choose_dtypes(parameter: Parameter, args: Args) -> list[Piece]:
    """Describe AnyPrecisionAdamW's state of one parameter, in the dtypes of its arguments."""
    found = [
        _HOST_STEP,
        *like(parameter, "exp_avg", dtype=str(args["momentum_dtype"])),
        *like(parameter, "exp_avg_sq", dtype=str(args["variance_dtype"])),
    ]
    if args.get("use_kahan_summation"):
        found += like(parameter, "compensation", dtype=str(args["compensation_buffer_dtype"]))
    return found


def sum_by_kahan(parameter: Parameter, args: Args) -> list[Piece]:
    """Describe StableAdamW's state of one parameter, with two scalars more by Triton."""
    by_triton = args.get("triton")
    if by_triton is None:
        by_triton = args.get("foreach") is None
    found = [
        *like(parameter, "exp_avg", "exp_avg_sq"),
        ("eps_sq", parameter.dtype, 1, Place.DEVICE),
    ]
    if args.get("kahan_sum") in (None, True) and DTYPE_BYTES[parameter.dtype] == 2:
        found += like(parameter, "kahan_comp")
    elif by_triton:
        found.append(("kahan_comp", "uint8", 1, Place.DEVICE))
    if by_triton:
        found.append(("mean_square", "float32", 1, Place.DEVICE))
    return found


def quantize_by_torchao(bits: int, block: int) -> Layout:
    """Return a function that describes torchao's state: codes, scales, a code map per tensor.

    Small tensors, and those that blocks do not divide, keep states like themselves. The Trainer
    asks for blocks of 256 in 4 bit too (trainer_optimizer.py, ``_get_torchao_optimizer``).
    """

    def layout(parameter: Parameter, args: Args) -> list[Piece]:
        n = parameter.numel
        size = int(number(args, "block_size", 256 if args.get("_trainer") else block))
        names = ("exp_avg", "exp_avg_sq")
        found = [_HOST_STEP]
        if n < 4096 or n % size:
            return found + like(parameter, *names)
        for name in names:
            found += [
                (f"{name}.codes", "uint8", n * bits // 8, Place.DEVICE),
                (f"{name}.scale", "float32", n // size, Place.DEVICE),
                (f"{name}.qmap", "float32", 1 << bits, Place.DEVICE),
            ]
        return found

    return layout


LAYOUTS: dict[str, Layout] = {
    **{f.__name__: f for f in (average, factor_rows_and_columns, factor_in_fp32)},
    **{f.__name__: f for f in (factor_first_two, choose_dtypes, sum_by_kahan)},
    "quantize_8_bit": quantize_by_torchao(8, 256),
    "quantize_4_bit": quantize_by_torchao(4, 128),
}
"""By their names in optimizers.toml."""


def refuse_torchao(args: Args) -> str | None:
    """Return why torchao cannot step with these arguments (amsgrad), or None."""
    return "torchao 0.18 cannot run amsgrad on quantized states" if args["amsgrad"] else None


def refuse_dtypes(args: Args) -> str | None:
    """Return why a state's dtype argument is no floating-point type, or None."""
    for name, value in args.items():
        if name.endswith("_dtype") and value not in ("float32", "bfloat16", "float16"):
            return f"{name} = {value!r} is not float32, bfloat16 or float16"
    return None


REFUSALS = {"torchao": refuse_torchao, "torchdistx": refuse_dtypes}
