"""Compiles one kernel for compute capability 9.0 and reads what became of its loads."""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from memcalc.optim import kernels, launch, table

CONSTANTS = {
    "adam_32bit": {"SPAN": table.SPAN, "PARAM": tl.float32, "GRAD": tl.float32},
    "adam_8bit": {"BLOCKS": table.SPAN // 256, "PARAM": tl.float32, "GRAD": tl.float32},
    "adamw_bf16": {"SPAN": table.SPAN, "GRAD": tl.bfloat16},
}
TYPES = {"table": "*i64", "qmap1": "*fp32", "qmap2": "*fp32", "COUNT": "i32"}


def main(name):
    kernel = getattr(kernels, name)
    constants = {**CONSTANTS[name], "DEPTH": 8, "EVEN": True}
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={n: "constexpr" if n in constants else TYPES.get(n, "fp32") for n in names},
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index("table"),): [["tt.divisibility", 16]]},
    )
    options = {"num_warps": launch.WARPS}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert ".v4.b32" in compiled.asm["ptx"], "no 16-byte loads"
    assert ".local" not in compiled.asm["ptx"], "registers spilled to memory"
    print("compiled", name)


if __name__ == "__main__":
    main(sys.argv[1])
