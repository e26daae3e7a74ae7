"""memcalc's own optimizers; layouts in docs/optimizers.md."""

from __future__ import annotations

from memcalc.registry import bitsandbytes_rows as bnb
from memcalc.registry.row import COMMON, Row, keeps


def _8bit(name: str, class_name: str) -> Row:
    return Row(
        name=f"memcalc.{name}",
        implementation=f"memcalc.optim.{class_name}",
        summary="8-bit states, scale per 256",
        layout=bnb._layout(bnb._TWO),
        defaults={"optim_bits": 8, "min_8bit_size": bnb.MIN_8BIT_SIZE, "32bit": None},
        shared=bnb._shared(bnb._TWO),  # type: ignore[arg-type]
        in_8bit=bnb.in_8bit,
        takes=COMMON,
        rule=2,
        package="memcalc",
    )


ROWS = (
    _8bit("adamw8bit", "AdamW8bit"),
    _8bit("adam8bit", "Adam8bit"),
    Row(
        name="memcalc.adamw_bf16",
        implementation="memcalc.optim.AdamWBF16",
        summary="two moments and a correction term in bf16",
        layout=keeps("exp_avg", "exp_avg_sq", "shift", dtype="bfloat16"),
        takes=COMMON,
        rule=6,
        package="memcalc",
        aliases=("adamwbf16", "adamw_bf16"),
        precision="bf16",
    ),
)
