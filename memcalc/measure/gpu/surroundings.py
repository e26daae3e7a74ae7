"""The kind of machine (container, WSL, MIG), which limits what can be read."""

from __future__ import annotations

import os
from pathlib import Path


def is_wsl() -> bool:
    """Linux under Windows, whose driver moves GPU memory to main memory instead of refusing."""
    return "microsoft" in _text("/proc/version").lower()


def container() -> str | None:
    """The kind of container this process is in, or ``None``; inside, NVML's numbers are the host's.

    Source: files that Docker and Podman make, and the names of control groups.
    """
    if os.path.exists("/.dockerenv"):
        return "Docker"
    if os.path.exists("/run/.containerenv"):
        return "Podman"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    groups = _text("/proc/1/cgroup")
    for word in ("docker", "kubepods", "containerd", "lxc"):
        if word in groups:
            return word
    return None


def main_memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
