"""The Triton kernels, run by Triton's interpreter on the CPU, against the reference."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytest.importorskip("triton", reason="Triton is not installed")


KERNELS = ["adam_32bit", "adam_8bit", "adamw_bf16"]


@pytest.mark.parametrize("cases", ["few", pytest.param("all", marks=pytest.mark.nightly)])
def test_the_kernels_equal_the_reference(cases):
    # The interpreter must be chosen before Triton is imported: hence a process of its own.
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, str(HERE / "interpret_kernels.py"), cases, *KERNELS],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("compared") == len(KERNELS)


@pytest.mark.nightly
@pytest.mark.parametrize("capability", ["90", "75"])
def test_the_kernels_compile_without_spilling(tmp_path, capability):
    # Needs no GPU: Triton brings its own assembler.
    script = HERE.parent.parent / "benchmarks" / "kernel_resources.py"
    options = ["--capability", capability]
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "kernels.json"), *options],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for variant in json.loads((tmp_path / "kernels.json").read_text())["variants"]:
        assert variant["stack_bytes"] == 0
        assert not variant["local"]
        assert variant["wide_loads"] or not variant["wide"]
