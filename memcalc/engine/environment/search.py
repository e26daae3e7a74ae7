"""Decides where the engine's PyTorch comes from, and which installed packages go with it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from memcalc.engine.environment import installed, layers
from memcalc.engine.environment.installed import Release
from memcalc.errors import EstimateError
from memcalc.records.measurement import Fact

if TYPE_CHECKING:
    from memcalc.engine.environment.layers import Layer

ELSEWHERE = (
    "Exact estimates run PyTorch's CUDA build, which memcalc runs on Linux: use WSL or a Linux "
    "container (docker build -t memcalc . in a checkout, then docker run --rm memcalc estimate "
    "...), or add --method analytic."
)
"""What is said on Windows and macOS."""
_OWN = "torch-memcalc"
_ANY_TORCH = Release(0, 5)
"""Of safetensors; newer ones name an oldest PyTorch."""
_SECOND = {"torchvision": 15, "torchaudio": 0}
"""Packages of the PyTorch project that are built for one release of it each, and by how much
their minor version is ahead: torchvision 0.21 and torchaudio 2.6 are of PyTorch 2.6. Whether that
holds is read from what was installed."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Which PyTorch the engine's process imports, and what must be set for that."""

    root: str
    """PyTorch's package folder."""
    torch: str
    """Release, without its local part: ``2.14.1``."""
    cuda: str
    """CUDA it was built for: ``13.0``."""
    path: tuple[str, ...] = ()
    """Folders that come first on ``PYTHONPATH``."""
    hidden: tuple[str, ...] = ()
    """Modules of installed packages that do not go with this PyTorch or transformers."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of the engine's process: ``PYTHONPATH`` with ``path`` first."""
        if not self.path:
            return dict(environ)
        before = environ.get("PYTHONPATH")
        entries = (*self.path, *((before,) if before else ()))
        return {**environ, "PYTHONPATH": os.pathsep.join(entries)}


def find(
    torch: str | None = None, transformers: str | None = None, *, compiles: bool | None = False
) -> Environment:
    """The environment of the engine's process; what is missing is fetched once and kept.

    Releases are those that a question names; ``None``: the installed one. Whoever listens is told
    what is fetched and how far it is. ``compiles``: the program needs that release's Triton;
    ``None``: it may, and goes without where Triton cannot be fetched.

    Raises:
        SettingError: a release is not understood, or is too old.
        EstimateError: there is no CUDA build for this machine, or it cannot be fetched.
    """
    of_torch = None if torch is None else installed.parse_torch(torch)
    of_transformers = None if transformers is None else installed.parse_transformers(transformers)
    if sys.platform != "linux":
        raise EstimateError(ELSEWHERE)
    here = installed.torch_in(sys.path)
    fits = here is not None and (of_torch is None or of_torch.matches(here.version, here.cuda))
    if here and here.cuda and fits and of_transformers is None:
        # The usual case: nothing is to be looked at but PyTorch's version.
        return Environment(root=here.root, torch=here.release, cuda=here.cuda)
    from memcalc.engine.environment import make

    if here and here.cuda and fits:
        return _Search(make, here, None).over(here, of_transformers, compiles)
    layer = make.torch(of_torch or _release_of(here))
    made = installed.torch_in([str(layer.path)])
    if made is None:
        raise EstimateError(f"{layer.path} is damaged: delete that folder.")
    return _Search(make, made, layer).over(here, of_transformers, compiles)


def _release_of(here: installed.Torch | None) -> Release | None:
    """The release of a build without CUDA; ``None``: there is no PyTorch.

    Raises:
        EstimateError: it is of no release.
    """
    found = None if here is None else installed.of_version(here.version)
    if here is not None and found is None:
        raise EstimateError(
            f"PyTorch {here.version} is a build without CUDA, and no index has that version "
            "for CUDA: name a release, as in --torch 2.14."
        )
    return found


def hide(environment: Environment) -> None:
    """Keep hidden packages from being found; called in the engine's process, before the program.

    ``importlib.util.find_spec`` then says that there are none, which is what transformers, peft
    and accelerate ask before they use one.
    """
    for module in environment.hidden:
        sys.modules[module] = None  # type: ignore[assignment]


class _Search:
    """Gathers folders until all that is asked for is there and fits."""

    def __init__(self, make: ModuleType, torch: installed.Torch, layer: Layer | None) -> None:
        self.make, self.torch, self.layer = make, torch, layer
        self.first: list[Layer] = []
        self.below = installed.packages(sys.path)

    def over(
        self, running: installed.Torch | None, transformers: Release | None, compiles: bool | None
    ) -> Environment:
        """The environment over a running Python."""
        own = self.below.get("transformers")
        if transformers and not (own and transformers.matches(own.version)):
            self.first.append(self.make.single("transformers", transformers))
        if self.layer is not None:
            self._companions()
        self._rest()
        if compiles is not False:
            with contextlib.suppress(*([EstimateError] if compiles is None else [])):
                self._triton()
        folders = [*self.first, *([self.layer] if self.layer else [])]
        return Environment(
            root=self.torch.root,
            torch=self.torch.release,
            cuda=self.torch.cuda,
            path=tuple(str(folder.path) for folder in folders),
            hidden=self._hidden(running),
        )

    def _imported(self) -> dict[str, installed.Package]:
        """What would be imported with the folders so far."""
        layered = [*self.first, *([self.layer] if self.layer else [])]
        return {**self.below, **installed.packages([str(layer.path) for layer in layered])}

    def _companions(self) -> None:
        """Put torchvision and torchaudio of this PyTorch in place of installed ones of another."""
        major, minor = map(int, self.torch.release.split(".")[:2])
        for name, ahead in _SECOND.items():
            here = self.below.get(name)
            if here is None:
                continue
            if _refuses(here, "torch", self.torch.version):
                likely = [Release(0 if ahead else major, minor + ahead - less) for less in (0, 1)]
                self._replace(name, likely)
            elif here.version.endswith("+cpu") and (same := installed.of_version(here.version)):
                # A build without CUDA has no operators for tensors there.
                self._replace(name, [same])
        files = self.below.get("safetensors")
        if files is not None and _refuses(files, "torch", self.torch.version):
            self._replace("safetensors", [_ANY_TORCH])

    def _replace(self, name: str, likely: Sequence[Release]) -> None:
        """Put a release of a package first that takes this PyTorch, if the index has one."""
        for candidate in likely:
            if layers.is_absent(f"{name}-{candidate}"):
                continue
            try:
                layer = self.make.single(name, candidate)
            except layers.AbsentError:
                layers.note_absent(f"{name}-{candidate}")
                continue
            except EstimateError:
                # The engine does without it, and it is looked for again next time.
                return
            made = installed.packages([str(layer.path)])[name]
            if not _refuses(made, "torch", self.torch.version):
                self.first.append(layer)
                return

    def _rest(self) -> None:
        """Add what the folders' packages need and the Python lacks."""
        from packaging.requirements import Requirement

        own = installed.packages([str(layer.path) for layer in self.first])
        wanted = [need for package in own.values() for need in package.requirements()]
        torch = self._imported().get("torch")
        if torch is not None and self.layer is not None:
            wanted += [need for need in torch.requirements() if not installed.is_vendor(need)]
            if self.torch.release.startswith("2.2."):
                wanted.append(Requirement("numpy<2"))  # It was compiled against NumPy 1.
        lacking = installed.missing(wanted, self._imported())
        if lacking:
            self.first.insert(0, self.make.rest(lacking, self._imported()))

    def _triton(self) -> None:
        """Add the Triton that the layer's PyTorch asks for, where the Python has another."""
        torch = self._imported().get("torch")
        if torch is None or self.layer is None:
            return
        wanted = [need for need in torch.requirements() if installed.is_triton(need)]
        if lacking := installed.missing(wanted, self._imported()):
            self.first.insert(0, self.make.rest(lacking, self._imported()))

    def _hidden(self, running: installed.Torch | None) -> tuple[str, ...]:
        """Modules of packages that ask for another version of what the folders bring.

        Packages that need one of them, and those that need these, go with them.
        """
        shown = self._imported()
        own = installed.packages([str(layer.path) for layer in self.first])
        brought = {name: package.version for name, package in own.items()}
        if self.layer is not None:
            brought["torch"] = self.torch.version
        other = self.layer is not None and (
            running is None or running.release.split(".")[:2] != self.torch.release.split(".")[:2]
        )
        rest = {name: one for name, one in shown.items() if name not in (*brought, _OWN)}
        found = {
            name
            for name, package in rest.items()
            if any(_refuses(package, *one) for one in brought.items())
            or (other and _built_for(package))
        }
        more = found
        while more:
            more = {
                name
                for name, package in rest.items()
                if name not in found
                and any(installed.normal(need.name) in found for need in package.requirements())
            }
            found |= more
        return tuple(sorted({module for name in found for module in shown[name].modules()}))


def _refuses(package: installed.Package, name: str, version: str) -> bool:
    """Whether a package asks for another version of this one; its extra ``torch`` counts."""
    return any(
        installed.normal(need.name) == name and not installed.satisfied(need, version)
        for need in package.requirements("torch")
    )


def _built_for(package: installed.Package) -> bool:
    """Whether a package says nothing of which PyTorch it needs, and is compiled against one."""
    needs = [need for need in package.requirements() if installed.normal(need.name) == "torch"]
    return not any(need.specifier for need in needs) and package.linked_to_torch()


def describe() -> list[Fact]:
    """Where PyTorch comes from on this machine, and which environments are kept."""
    facts = [_source()]
    if sys.platform != "linux":
        return facts
    kept = layers.existing()
    for path, layer in kept:
        if layer is None:
            size = layers.size_text(layers.size_of(path))
            value = f"{path} is unfinished or damaged: {size}"
            advice = f"it is created again when needed; to delete it: rm -r {path}"
        else:
            size = layers.size_text(layer.marker.bytes)
            value, advice = "; ".join((f"{layer.name}, {size}", *layer.marker.notes)), ""
        facts.append(Fact(name="environment", value=value, advice=advice))
    if kept:
        facts.append(
            Fact(
                name="environments",
                value=f"kept in {layers.folder()}; each is fetched again when it is needed",
                advice=f"to delete all: rm -r {layers.folder()}",
            )
        )
    return facts


def _source() -> Fact:
    name = "engine"
    if sys.platform != "linux":
        return Fact(name=name, value="only --method analytic works here", advice=ELSEWHERE)
    here = installed.torch_in(sys.path)
    if here is not None and here.cuda:
        return Fact(
            name=name,
            value=f"exact estimates run the installed PyTorch {here.release}, built for CUDA "
            f"{here.cuda}",
        )
    has = f"PyTorch {here.version} is built without CUDA" if here else "PyTorch is not installed"
    release = f"PyTorch {here.release}" if here else "the newest PyTorch"
    kept = [
        layer.name
        for path, layer in layers.existing()
        if layer is not None and path.name.startswith(f"torch-{here.release if here else ''}")
    ]
    if kept:
        return Fact(name=name, value=f"{has}: exact estimates run {kept[-1]} from memcalc's cache")
    return Fact(
        name=name,
        value=f"{has}: the first exact estimate fetches the CUDA wheel of {release}, 0.5 to 0.9 GB",
        advice="estimates need no GPU and no NVIDIA libraries; --method analytic fetches nothing",
    )
