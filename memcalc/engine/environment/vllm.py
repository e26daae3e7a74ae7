"""An environment with vLLM, made once in memcalc's cache: without NVIDIA's own libraries."""

import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

from memcalc.engine.environment import installed, installer, layers, make
from memcalc.engine.environment.installed import Package, Release
from memcalc.engine.environment.layers import Built, Layer
from memcalc.errors import EstimateError, SettingError
from memcalc.files.offline import HOW, is_offline
from memcalc.records.progress import Progress, tell

_SIZE = "about 2.5 GB to fetch, 5.8 GB on disk"
_ROOM = 9e9
"""Bytes of disk while it is installed: 5.8 GB in the end, and archives."""
_LEFT_OUT = (
    # PyTorch is linked to these, and finds the stub driver in their place.
    *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn-cu13", "cufft", "cufile"),
    *("curand", "cusolver", "cusparse", "cusparselt-cu13", "nccl-cu13", "nvjitlink"),
    *("nvshmem-cu13", "nvtx"),
)
_OTHERS_LEFT_OUT = (
    *("torch", "torchaudio", "cuda-toolkit"),
    *("torchcodec", "pynvvideocodec", "fastsafetensors", "instanttensor"),
)
"""PyTorch, which is installed alone; readers of media and of checkpoints, which no start with dummy
weights needs."""


def parse(text: str) -> Release:
    """Return the release of vLLM that a question names.

    Raises:
        SettingError: it is not understood.
    """
    release = installed.parse(text, "vllm", "vLLM", "0.33 or 0.33.0")
    if release.build is not None:
        raise SettingError("vllm", f"--vllm {text}: leave +{release.build} out.")
    return release


def existing(release: Release | None = None) -> str | None:
    """Return the Python of an environment that was made before; ``None``: there is none."""
    found = make.newest("vllm", release)
    return None if found is None else _python(found.path)


def find(release: Release) -> str:
    """Return the Python of an environment with vLLM, which is made where there is none.

    Raises:
        EstimateError: it cannot be fetched.
    """
    known = existing(release)
    if known is not None:
        return known
    if is_offline():
        raise EstimateError(
            f"vLLM {release} is not in {layers.folder()} yet, and {HOW} forbids fetching it: run "
            "the same command once without that; it is kept."
        )

    def ready() -> Layer | None:
        return make.newest("vllm", release)

    return _python(layers.make(ready, lambda target: _build(release, target)).path)


def _python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def _build(release: Release, target: Path) -> Built:
    tell(Progress(f"vLLM {release}: {_SIZE}, once"))
    layers.require_room(layers.folder(), _ROOM, f"vLLM {release}")
    left_out = target.parent / "left-out.txt"
    names = [*(f"nvidia-{one}" for one in _LEFT_OUT), *_OTHERS_LEFT_OUT]
    left_out.write_text("\n".join(names) + "\n")
    _run([sys.executable, "-m", "venv", "--without-pip", str(target)], release)
    install = [*_uv(target.parent), "pip", "install", "--no-progress", "--python", _python(target)]
    named = release.requirement("vllm").replace("===", "==")
    _run([*install, "--excludes", str(left_out), named], release)
    # PyTorch asks for NVIDIA's libraries of exact versions, so the others are found without it.
    of_vllm = _package(target, "vllm")
    _run([*install, "--no-deps", *_named(of_vllm, "torch")], release)
    needs = _package(target, "torch").requirements()
    rest = [str(one) for one in needs if not _is_of_nvidia(one)]
    _run([*install, *rest, "setuptools"], release)
    return Built(f"vllm-{of_vllm.version}-{layers.suffix()}")


def _package(target: Path, name: str) -> Package:
    sites = [str(path) for path in target.glob("lib/python*/site-packages")]
    found = installed.packages(sites).get(name)
    if found is None:
        raise EstimateError(f"The installer left no {name} behind.")
    return found


def _named(package: Package, name: str) -> list[str]:
    """What a package asks for of another one, as an installer takes it."""
    return [
        f"{one.name}{one.specifier}"
        for one in package.requirements()
        if installed.normal(one.name) == name
    ]


def _is_of_nvidia(requirement: Requirement) -> bool:
    """Whether it is one of NVIDIA's packages; Triton is needed, for vLLM compiles with it."""
    return installed.normal(requirement.name).startswith(("nvidia-", "cuda-"))


def _uv(scratch: Path) -> list[str]:
    """The command of uv, which alone leaves packages out; it is fetched where it is not here."""
    here = installer.uv()
    if here:
        return list(here)
    folder = scratch / "uv"
    make.install(("uv",), folder)
    return [str(folder / "bin" / "uv")]


def _run(command: list[str], release: Release) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise EstimateError(f"Cannot make an environment with vLLM {release}: {why.rstrip('.')}.")
