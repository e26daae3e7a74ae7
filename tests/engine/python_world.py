"""A Python with packages of its own, for tests of where the engine's PyTorch comes from."""

import os
import shutil
from types import SimpleNamespace

from uv import find_uv_bin

from memcalc.engine.environment import find, folders, uv
from memcalc.records.progress import listening
from tests.engine import wheels


class World:
    """A Python with packages, a folder of wheels and an empty cache."""

    def __init__(self, folder, monkeypatch):
        self.monkeypatch = monkeypatch
        self.site, self.offered = folder / "site", folder / "offered"
        self.bin, self.cache = folder / "bin", folder / "cache"
        for place in (self.site, self.offered, self.bin):
            place.mkdir()
        monkeypatch.syspath_prepend(str(self.site))
        for name in [n for n in os.environ if n.startswith(("PIP_", "UV_", "HF_HUB_OFF"))]:
            monkeypatch.delenv(name)
        self.set(
            MEMCALC_CACHE=str(self.cache),
            PIP_CONFIG_FILE=os.devnull,
            PIP_NO_INDEX="1",
            PIP_FIND_LINKS=str(self.offered),
            PATH=f"{self.bin}:/usr/bin:/bin",
        )
        # pip takes a third of a second to say so.
        self._read_pip_settings = uv._read_pip_settings
        known = {"no-index": "1", "find-links": str(self.offered)}
        monkeypatch.setattr(uv, "_read_pip_settings", lambda: known)
        self.told = []
        (self.bin / "uv").symlink_to(self.real_uv)
        # The disk under the tests may be nearly full, and the wheels here are tiny.
        self.has_free(10**12)

    def has_free(self, size):
        disk = SimpleNamespace(free=size)
        self.monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)

    def set(self, **variables):
        for name, value in variables.items():
            self.monkeypatch.setenv(name, value)

    def ask_pip(self, **variables):
        """Let pip say where packages are: by these variables, in an index."""
        self.monkeypatch.setattr(uv, "_read_pip_settings", self._read_pip_settings)
        self.monkeypatch.delenv("PIP_NO_INDEX")
        self.set(**variables)

    def has(self, name, version, **more):
        wheels.install(self.site, name, version, **more)

    def has_torch(self, version, cuda=None):
        self.has("torch", version, modules=wheels.torch_modules(version, cuda))

    def find(self, *names, **how):
        with listening(self.told.append):
            return find(*names, **how)

    def said(self):
        return [at.text for at in self.told]

    @property
    def real_uv(self):
        return find_uv_bin()

    def uv(self, script):
        """uv whose installing is this script; it begins in the folder of what is fetched."""
        path = self.bin / "uv"
        path.unlink()
        rest = f'case "$*" in "pip install"*) ;; *) exec {self.real_uv} "$@" ;; esac\n'
        path.write_text(f"#!/bin/bash\n{rest}{script}")
        path.chmod(0o755)

    @staticmethod
    def brought(environment):
        """Packages of an environment with their versions."""
        (site,) = environment.path
        found = [name for name in os.listdir(site) if name.endswith(".dist-info")]
        return {name.removesuffix(".dist-info") for name in found}

    def left(self):
        """Folders that are unfinished or damaged."""
        return [path.name for path, marker in folders.existing().items() if marker is None]
