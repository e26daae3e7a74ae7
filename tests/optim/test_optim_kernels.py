"""The Triton kernels, run by Triton's interpreter on the CPU, against the reference."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.parametrize("kernel", ["adam_32bit", "adam_8bit", "adamw_bf16"])
def test_a_kernel_equals_the_reference(kernel):
    # The interpreter must be chosen before Triton is imported: hence a process of its own.
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, str(HERE / "interpret_kernels.py"), kernel],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "compared" in run.stdout


@pytest.mark.parametrize("kernel", ["adam_32bit", "adam_8bit", "adamw_bf16"])
def test_a_kernel_compiles_for_hopper_with_wide_loads_and_without_scratch(kernel):
    # Needs no GPU: Triton brings its own assembler.
    run = subprocess.run(
        [sys.executable, str(HERE / "compile_kernels.py"), kernel],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "compiled" in run.stdout
