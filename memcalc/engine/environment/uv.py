"""uv, which finds the packages that go together and installs them into venvs."""

import ast
import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from memcalc.children import command
from memcalc.errors import EstimateError
from memcalc.records.progress import Progress, tell

_LIBRARIES = (
    *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn", "cufft", "cufile"),
    *("curand", "cusolver", "cusparse", "cusparselt", "nccl", "nvjitlink", "nvshmem", "nvtx"),
)
_SUFFIXES = ("", "-cu11", "-cu12", "-cu13")
NVIDIA = ("cuda-toolkit", *(f"nvidia-{one}{end}" for one in _LIBRARIES for end in _SUFFIXES))
"""Libraries that PyTorch is linked to; it finds the stub driver in their place."""
_PIP_AS_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "trusted-host": "UV_INSECURE_HOST",
}
"""pip's settings of where packages are, by the variable that tells uv the same."""
_NO_NETWORK = re.compile(
    r"name resolution|connection (broken|refused|reset|aborted)|error sending request|"
    r"timed out|unreachable|certificate verify|Could not fetch URL",
    re.IGNORECASE,
)
_ALWAYS = ("--no-progress", "--only-binary", ":all:", "--index-strategy", "unsafe-best-match")
_FULL = "No space left on device"
_POLL = 0.5
"""Seconds between two looks at what is fetched."""


class UnsolvableError(EstimateError):
    """No package index has releases that go together."""


class Uv:
    """uv on this machine, which fills a venv; it leaves nothing outside the venv's folder."""

    def __init__(self, folder: Path) -> None:
        """Make a venv of a folder; ``scratch`` in it takes what is downloaded.

        Raises:
            EstimateError: uv is not here and cannot be fetched.
        """
        self.folder, self.scratch = folder, folder / ".installing"
        self.scratch.mkdir()
        self._variables, self._options = _make_settings(self.scratch)
        self._uv = _find_uv() or self._fetch_uv()
        venv = ("venv", "--allow-existing", "--python", sys.executable)
        self._run_command([*self._uv, *venv, str(folder)])

    def add_index(self, url: str) -> None:
        """Look for packages in one more index."""
        self._options += ["--index", url]

    def resolve(
        self,
        requirements: Sequence[str],
        *,
        preferred: Mapping[str, str],
        excluded: Iterable[str],
    ) -> dict[str, str]:
        """Return releases of some packages and of all that they need, as wheels.

        Args:
            requirements: as pip writes them.
            preferred: versions that are taken where they fit.
            excluded: packages that are left out whoever needs them.

        Raises:
            UnsolvableError: no releases fit.
            EstimateError: the indexes cannot be asked.
        """
        asked, left_out, pins = (self.scratch / name for name in ("in", "without", "out"))
        asked.write_text("\n".join(requirements))
        left_out.write_text("\n".join(excluded))
        pins.write_text("\n".join(f"{name}=={version}" for name, version in preferred.items()))
        self._run_uv_pip(
            *("compile", "--python", sys.executable, "--no-header", "--no-annotate"),
            *("--excludes", str(left_out), "-o", str(pins), str(asked)),
        )
        lines = (line.partition(" ;")[0] for line in pins.read_text().splitlines())
        return dict(line.split("==", 1) for line in lines if "==" in line)

    def install(self, pins: Mapping[str, str], what: str) -> None:
        """Install the named releases, versions by package, without their requirements.

        ``what``: their name in a sentence.

        Raises:
            EstimateError: it cannot be fetched, or the disk is full.
        """
        # Three: 2.13.0+cpu shall not stand in for 2.13.0.
        named = [f"{name}==={version}" for name, version in pins.items()]
        self._run_uv_pip(
            "install", "--python", find_python(self.folder), "--no-deps", *named, what=what
        )

    def _run_uv_pip(self, *arguments: str, what: str = "") -> None:
        self._run_command([*self._uv, "pip", *arguments, *_ALWAYS, *self._options], what)

    def _fetch_uv(self) -> list[str]:
        """Fetch uv by pip."""
        if importlib.util.find_spec("pip") is None:
            raise EstimateError(
                "Neither uv nor pip is here to fetch packages: type "
                f"{sys.executable} -m ensurepip once."
            )
        target = self.scratch / "uv"
        tell(Progress("fetching uv, which makes the environment"))
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-input", "--no-compile"]
        self._run_command([*pip, "--target", str(target), "uv"])
        return [str(target / "bin" / "uv")]

    def _run_command(self, arguments: Sequence[str], what: str = "") -> None:
        """Run a command to its end, and report the bytes that it has fetched; raise if it fails."""
        log = self.scratch / "log"
        with open(log, "wb") as out:
            # Not in the user's folder: a pip.py there would be run in place of pip.
            process = command.start(
                arguments,
                self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._variables,
                cwd=self.scratch,
            )
            try:
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL)
                    if what:
                        tell(Progress(f"{what}: {size_text(sum_sizes(self.scratch))} fetched"))
            finally:
                if process.poll() is None:
                    command.end(process)
        if process.returncode:
            said = log.read_text(encoding="utf-8", errors="replace")
            tool = "pip" if arguments[1:3] == ["-m", "pip"] else "uv"
            raise _make_error(tool, process.returncode, said)


def find_site(folder: Path) -> Path:
    """Return the ``site-packages`` of a venv."""
    return next(folder.glob("lib/python*/site-packages"))


def find_python(folder: Path) -> str:
    """Return the Python of a venv."""
    return str(folder / "bin" / "python")


def is_reachable() -> bool:
    """Return True where uv is installed, or pip can fetch it."""
    return _find_uv() is not None or importlib.util.find_spec("pip") is not None


def sum_sizes(path: Path) -> int:
    """Return the bytes of all files in a folder; unreadable ones count nothing."""
    return sum(size for _, size in list_sizes(path))


def list_sizes(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the files in a folder with their bytes."""
    for place, _, names in os.walk(path):
        for name in names:
            file = os.path.join(place, name)
            with contextlib.suppress(OSError):
                yield file, os.lstat(file).st_size


def size_text(count: float) -> str:
    """Return ``767 MB``, ``1.6 GB``: decimal, as indexes and disks count."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


def _find_uv() -> list[str] | None:
    """Return the command of an installed uv that can exclude packages, or None."""
    found = shutil.which("uv")
    if found is not None:
        uv = [found]
    elif importlib.util.find_spec("uv") is not None:
        uv = [sys.executable, "-m", "uv"]
    else:
        return None
    help_text = subprocess.run([*uv, "pip", "compile", "--help"], capture_output=True, check=False)
    return uv if b"--excludes" in help_text.stdout else None


def _make_settings(scratch: Path) -> tuple[dict[str, str], list[str]]:
    """Return variables and options for uv, with pip's index settings if uv has none."""
    found = {**os.environ, "UV_CACHE_DIR": str(scratch / "cache"), "TMPDIR": str(scratch)}
    found |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REPORT", "UV_TARGET", "UV_PREFIX"):
        found.pop(name, None)
    if {"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX"} & found.keys():
        return found, []
    settings = _read_pip_settings()
    found |= {_PIP_AS_UV[name]: value for name, value in settings.items() if name in _PIP_AS_UV}
    if settings.get("no-index", "0") in ("0", "false"):
        return found, []
    links = settings.get("find-links", "").split()
    return found, ["--no-index", *(part for link in links for part in ("--find-links", link))]


def _read_pip_settings() -> dict[str, str]:
    """Return pip's settings of ``install``; several values are joined by spaces."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in sections:
            sections[section][key] = " ".join(str(ast.literal_eval(value)).split())
    return sections["global"] | sections["install"] | sections[":env:"]


def _make_error(tool: str, code: int, log: str) -> EstimateError:
    if code < 0:
        return EstimateError(f"{tool} was ended by signal {-code}.")
    if _FULL in log:
        return EstimateError(
            "The disk of memcalc's cache is full: make room, or set MEMCALC_CACHE to a folder on "
            "a larger disk."
        )
    if _NO_NETWORK.search(log):
        return EstimateError(
            f"{tool} could not reach a package index; check the network and {tool}'s settings of "
            "index and proxy."
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(ERROR|error|cause|Because)\b", line)] or lines
    said = " ".join(told)[-400:].rstrip(".") or f"exit code {code}"
    kind = UnsolvableError if "No solution found" in log else EstimateError
    return kind(f"{tool} said: {said}.")
