"""Compile every variant of the shipped Triton kernels and read what it takes of a GPU.

Needs Triton and no GPU: Triton brings its own assembler. The tables go into docs/optimizers.md.

    python benchmarks/kernel_resources.py evidence/kernels.json
    python benchmarks/kernel_resources.py FILE --kernel adam_8bit --capability 90
"""

import argparse
import pathlib
import re
import subprocess
import tempfile

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
KERNELS = ("adam_8bit", "adam_32bit", "adamw_bf16")
DTYPES = ("fp32", "bf16", "fp16")
_TYPES = {"table": "*i64", "qmap1": "*fp32", "qmap2": "*fp32", "COUNT": "i32"}
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


def constants(kernel, dtype, even):
    """What a launch over 129 to 256 tensors compiles a kernel with."""
    import triton.language as tl

    from memcalc.optim import table
    from memcalc.optim.blockwise import BLOCK

    kind = {"fp32": tl.float32, "bf16": tl.bfloat16, "fp16": tl.float16}[dtype]
    span = table.SPANS[even]
    size = {"BLOCKS": span // BLOCK} if kernel == "adam_8bit" else {"SPAN": span}
    param = {} if kernel == "adamw_bf16" else {"PARAM": kind}
    return {**size, **param, "GRAD": kind, "DEPTH": 8, "EVEN": even}


def compiled(kernel, capability, dtype, even):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from memcalc.optim import kernels, launch

    function, fixed = getattr(kernels, kernel), constants(kernel, dtype, even)
    names = function.arg_names
    source = ASTSource(
        fn=function,
        signature={n: "constexpr" if n in fixed else _TYPES.get(n, "fp32") for n in names},
        constexprs={(names.index(n),): value for n, value in fixed.items()},
        attrs={(names.index("table"),): [["tt.divisibility", 16]]},
    )
    options = {"num_warps": launch.WARPS}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def usage(binary):
    """Read (registers, stack bytes) of a thread from a compiled kernel."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = map(int, _USAGE.search(said).groups())
    return registers, stack


def measure(kernel, capability, dtype, even):
    """Describe one variant; what a thread spills lies on its stack."""
    made = compiled(kernel, capability, dtype, even)
    registers, stack = usage(made.asm["cubin"])
    return {
        "kernel": kernel,
        "capability": capability,
        "dtype": dtype,
        "wide": even,
        "registers": registers,
        "stack_bytes": stack,
        "shared_bytes": made.metadata.shared,
        "wide_loads": "v4.b32" in made.asm["ptx"],
        "local": ".local" in made.asm["ptx"],
    }


def document(rows):
    """The table of docs/optimizers.md: registers of a thread / shared bytes of a program."""
    found = {(r["kernel"], r["dtype"], r["wide"], r["capability"]): r for r in rows}
    head = " | ".join(f"{c // 10}.{c % 10}" for c in CAPABILITIES)
    lines = [f"| kernel | weights | loads | {head} |", "|---|---|---|" + "---|" * len(CAPABILITIES)]
    for kernel, dtype, wide in dict.fromkeys((r["kernel"], r["dtype"], r["wide"]) for r in rows):
        cells = [found[kernel, dtype, wide, c] for c in CAPABILITIES]
        texts = " | ".join(f"{c['registers']} / {c['shared_bytes']}" for c in cells)
        lines.append(f"| `{kernel}` | {dtype} | {'wide' if wide else 'single'} | {texts} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--kernel", choices=KERNELS, action="append")
    parser.add_argument("--capability", type=int, choices=CAPABILITIES, action="append")
    arguments = parser.parse_args()
    import tables
    import triton

    variants = [
        measure(kernel, capability, dtype, even)
        for kernel in arguments.kernel or KERNELS
        for dtype in (DTYPES if kernel != "adamw_bf16" else ("bf16",))
        for even in (True, False)
        for capability in arguments.capability or CAPABILITIES
    ]
    tables.write_rows(arguments.output, {"triton": triton.__version__}, "variants", variants)
    if not (arguments.kernel or arguments.capability):
        print(document(variants))


if __name__ == "__main__":
    main()
