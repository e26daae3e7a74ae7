"""Environment variables of child processes: which of a shell's they get, and which they must not.

An answer depends on its question alone. So a child that answers gets the variables that say where
things are and how they are fetched, and none that tell a library how to train.
"""

import re
from collections.abc import Mapping

_NEEDED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|TMP|TEMP|VIRTUAL_ENV"
    r"|CC|CXX|LD_PRELOAD|LD_LIBRARY_PATH|(CONDA|XDG|PIP|UV)_\w+|\w+_(HOME|CACHE|CACHE_DIR)"
    r"|PYTHON(PATH|HOME|USERBASE|NOUSERSITE|PYCACHEPREFIX|DONTWRITEBYTECODE|UTF8|IOENCODING)"
    r"|CUDA_PATH|HF_(TOKEN|TOKEN_PATH|ENDPOINT|HUB_\w+)|HUGGING_?FACE_HUB_\w+"
    r"|(TRANSFORMERS|HF_DATASETS)_OFFLINE"
    r"|(https?|ftp|all|no)_proxy|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE"
    r"|MEMCALC_(CACHE_SIZE|DEBUG|WORK)",
    re.IGNORECASE,
)
"""Names of variables that say where things are, how they are fetched and how text is written."""
_TELLING = re.compile(
    r"(ACCELERATE|AOT|BITSANDBYTES|BNB|CUBLAS|CUBLASLT|CUDNN|DEEPSPEED|DS|FLASH_ATTENTION|FSDP|HF"
    r"|LIGER|NCCL|NVTE|PEFT|PYTORCH|TORCH|TORCHDYNAMO|TORCHINDUCTOR|TRANSFORMERS|TRITON|XFORMERS"
    r")_\w+|(LOCAL_)?(RANK|WORLD_SIZE)|NVIDIA_TF32_OVERRIDE|CUDA_MODULE_LOADING"
    r"|USE_(TORCH|TF|FLAX|JAX|TORCH_XLA|HUB_KERNELS)|DISABLE_(ADDMM_CUDA_LT|KERNEL_MAPPING)"
)
"""Names of variables by which libraries of training are told what to do."""
_SAYING = re.compile(
    r"\w+_(VERSION|PATH|FOLDER|DIR|LIST|LOGS?|DEBUG(_\w+)?|VERBOSITY|LOG_LEVEL|NUMBER|TELEMETRY"
    r"|STACKTRACES|PROGRESS_BARS?)"
)
"""Names of variables that only change what libraries print, or where they look."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Says which of this machine's own GPUs are seen, which are not those of a simulated one."""
_STUB = "MEMCALC_STUB_"
"""Begins the names of what the stub driver is told, which each run is told anew."""


def select(shell: Mapping[str, str]) -> dict[str, str]:
    """Keep only the shell's variables for paths, locale, caches and network access."""
    return {name: value for name, value in shell.items() if _NEEDED.fullmatch(name)}


def without_settings(shell: Mapping[str, str]) -> dict[str, str]:
    """Drop the settings of training libraries and CUDA from the shell's variables."""
    return {
        name: value
        for name, value in shell.items()
        if _NEEDED.fullmatch(name)
        or not (_TELLING.fullmatch(name) or name == _VISIBLE or name.startswith(_STUB))
    }


def left_out(shell: Mapping[str, str]) -> tuple[str, ...]:
    """List the shell's settings of training libraries that children do not get, sorted."""
    return tuple(
        name
        for name, value in sorted(shell.items())
        if value
        and _TELLING.fullmatch(name)
        and not (_NEEDED.fullmatch(name) or _SAYING.fullmatch(name))
    )


def numbered_gpus(shell: Mapping[str, str], count: int) -> dict[str, str]:
    """Set ``CUDA_VISIBLE_DEVICES``, if the shell sets it, to as many GPUs as are simulated.

    A script may count the entries of the variable.
    """
    if _VISIBLE not in shell:
        return dict(shell)
    return {**shell, _VISIBLE: ",".join(map(str, range(count)))}
