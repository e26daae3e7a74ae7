"""An environment with vLLM, made once in memcalc's cache: without NVIDIA's own libraries."""

from memcalc.engine.environment import folders
from memcalc.engine.environment.releases import Release
from memcalc.engine.environment.uv import NVIDIA, Uv, find_python
from memcalc.records.progress import Progress, tell

_SIZE = "about 2.5 GB to fetch, 5.8 GB on disk"
_ROOM = 9e9
"""Bytes of disk while it is installed."""
_LEFT_OUT = (
    # Readers of media and of checkpoints, which no start with dummy weights needs.
    *("torchaudio", "torchcodec", "pynvvideocodec", "fastsafetensors", "instanttensor"),
    *NVIDIA,
)
_NEEDED = ("setuptools", "cuda-python>=12.8")
"""What vLLM's own requirements leave open: a cuda-python before 12.8 overwrites cuda-bindings."""


def existing() -> str | None:
    """Return the Python of the newest environment with vLLM, or None without one."""
    made = [path for path, marker in folders.existing().items() if marker is not None]
    mine = [path for path in made if path.match(str(folders.locate("vllm-*")))]
    return find_python(mine[-1]) if mine else None


def find(release: Release) -> str:
    """Return the Python of an environment with vLLM; a missing one is made.

    Raises:
        EstimateError: it cannot be fetched.
    """
    title = f"vLLM {release}"

    def fill(uv: Uv) -> None:
        tell(Progress(f"{title}: {_SIZE}, once"))
        wanted = [release.requirement("vllm"), *_NEEDED]
        uv.install(uv.resolve(wanted, preferred={}, excluded=_LEFT_OUT), title)

    return find_python(folders.make(f"vllm-{release}", title, _ROOM, fill))
