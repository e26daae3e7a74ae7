"""Compiles the stub driver and the cuDNN shim into wheels for Linux, and for editable installs.

``MEMCALC_WHEEL_MACHINE`` (``x86_64`` or ``aarch64``) builds by Zig for that machine, as published
wheels are: those run wherever PyTorch's do. Without it the C compiler of the system builds for this
machine, and where there is none that works, Zig does.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_STUB = "memcalc/engine/stub"


class StubDriverHook(BuildHookInterface):
    """Builds the libraries where they can run; elsewhere the wheel is pure Python."""

    PLUGIN_NAME = "custom"
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Zig's compiler, where the system has no C compiler that works."""
        machine = _machine()
        by_zig = machine is not None and self._compiler(machine) is None
        return ["ziglang>=0.13"] if by_zig and self.target_name == "wheel" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the platform in the wheel's tag."""
        machine = _machine()
        if self.target_name != "wheel" or machine is None:
            return
        build = self._module()
        compiler, tag = self._compiler(machine), f"linux_{machine}"
        if compiler is None:
            compiler = build.zig(machine)
            tag = f"manylinux_2_17_{machine}.manylinux2014_{machine}"
        if compiler is None:
            raise RuntimeError(
                "memcalc's stub driver needs a C compiler: install gcc or clang, or ziglang by pip"
            )
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        if version == "editable":
            build.BUILT.mkdir(exist_ok=True)
            build.build(build.BUILT, compiler, machine)
            return
        # Not among the sources: a checkout may be built for another machine than its own.
        self._scratch = tempfile.TemporaryDirectory()
        build.build(Path(self._scratch.name), compiler, machine)
        build_data["force_include"][self._scratch.name] = f"{_STUB}/{build.BUILT.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for the wheel."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def _compiler(self, machine: str) -> list[str] | None:
        """The system's, if it works and the wheel is for this machine."""
        if os.environ.get("MEMCALC_WHEEL_MACHINE"):
            return None
        build = self._module()
        found: list[str] | None = build.compilers.system_compiler()
        return found if found is not None and build.works(found) else None

    def _module(self) -> ModuleType:
        """The builder of this checkout, which needs no package, for none is installed here."""
        if self.root not in sys.path:
            sys.path.insert(0, self.root)
        return import_module(f"{_STUB.replace('/', '.')}.build")


def _machine() -> str | None:
    """The machine for which to compile; ``None``: PyTorch's CUDA build runs on no such system."""
    named = os.environ.get("MEMCALC_WHEEL_MACHINE")
    machine = named or platform.machine()
    here = sys.platform == "linux" or bool(named)
    return machine if here and machine in ("x86_64", "aarch64") else None
