"""Decides where the engine's PyTorch comes from, and which installed packages go with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memcalc.engine.environment import installed, release
from memcalc.engine.environment.records import Environment, Hidden
from memcalc.engine.environment.release import Release
from memcalc.errors import EstimateError
from memcalc.records.progress import Report, tell

if TYPE_CHECKING:
    from memcalc.engine.environment.layers import Layer
    from memcalc.engine.environment.make import Maker

ELSEWHERE = (
    "Exact estimates run PyTorch's CUDA build, which memcalc runs on Linux: use WSL or a Linux "
    "container (docker build -t memcalc . in a checkout, then docker run --rm memcalc estimate "
    "...), or add --method analytic."
)
"""What is said on Windows and macOS."""
_OWN = "torch-memcalc"
_SECOND = {"torchvision": 15, "torchaudio": 0}
"""Packages of the PyTorch project that are built for one release of it each, and by how much
their minor version is ahead: torchvision 0.21 and torchaudio 2.6 are of PyTorch 2.6. Whether that
holds is read from what was installed."""


def find(
    torch: str | None = None,
    transformers: str | None = None,
    *,
    progress: Report | None = None,
    packages: Sequence[str] = (),
    triton: bool = False,
) -> Environment:
    """The environment of the engine's process; what is missing is fetched once and kept.

    Args:
        torch: the release that a question names; ``None``: the installed one.
        transformers: likewise.
        progress: told what is fetched and how far it is; ``None``: who listens.
        packages: requirements that the question needs too, such as ``peft``; those that are
            installed and fit are used.
        triton: the program compiles kernels, as ``torch.compile`` does.

    Raises:
        SettingError: a release is not understood, or is too old.
        EstimateError: there is no CUDA build for this machine, or it cannot be fetched.
    """
    of_torch = None if torch is None else release.parse_torch(torch)
    of_transformers = None if transformers is None else release.parse_transformers(transformers)
    if sys.platform != "linux":
        raise EstimateError(ELSEWHERE)
    here = installed.torch_in(sys.path)
    usable = here is not None and bool(here.cuda)
    if here and usable and (of_torch is None or of_torch.matches(here.version, here.cuda)):
        if of_transformers is None and not packages and not triton:
            # The usual case: nothing is to be looked at but PyTorch's version.
            return _running(here)
        return _Search(_maker(progress), here, packages, triton).over(here, of_transformers)
    maker = _maker(progress)
    layer = maker.torch(of_torch or _release_of(here))
    made = installed.torch_in([str(layer.path)])
    if made is None:
        raise EstimateError(f"{layer.path} is damaged: delete that folder.")
    return _Search(maker, made, packages, triton, layer).over(here, of_transformers)


def _release_of(here: installed.Torch | None) -> Release | None:
    """The release of a build without CUDA; ``None``: there is no PyTorch.

    Raises:
        EstimateError: it is of no release.
    """
    found = None if here is None else release.of_version(here.version)
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
    for package in environment.hidden:
        for module in package.modules:
            sys.modules[module] = None  # type: ignore[assignment]


def _maker(progress: Report | None) -> Maker:
    from memcalc.engine.environment.make import Maker

    return Maker(progress or tell)


def _running(here: installed.Torch) -> Environment:
    from memcalc.version import installed as version

    return Environment(
        kind="running",
        root=here.root,
        torch=here.release,
        cuda=here.cuda,
        transformers=version("transformers"),
    )


class _Search:
    """Gathers folders until all that is asked for is there and fits."""

    def __init__(
        self,
        maker: Maker,
        torch: installed.Torch,
        packages: Sequence[str],
        triton: bool,
        layer: Layer | None = None,
    ) -> None:
        self.maker, self.torch, self.triton, self.layer = maker, torch, triton, layer
        self.asked = packages
        self.first: list[Layer] = []
        self.below = installed.packages(sys.path)

    def over(self, running: installed.Torch | None, transformers: Release | None) -> Environment:
        """The environment over a running Python.

        Args:
            running: its own PyTorch; packages with compiled parts are built for it.
            transformers: the release that is asked for.
        """
        own = self.below.get("transformers")
        if transformers and not (own and transformers.matches(own.version)):
            self.first.append(self.maker.single("transformers", transformers))
        if self.layer is not None:
            self._companions()
        self._rest()
        hidden = self._hidden(running)
        gone = {found.package for found in hidden}
        shown = self._imported()
        found = shown.get("transformers")
        folders = [*self.first, *([self.layer] if self.layer else [])]
        return Environment(
            kind="running" if self.layer is None else "made",
            root=self.torch.root,
            torch=self.torch.release,
            cuda=self.torch.cuda,
            path=tuple(str(folder.path) for folder in folders),
            transformers=found.version if found and "transformers" not in gone else None,
            hidden=hidden,
            notes=tuple(dict.fromkeys(note for f in folders for note in f.marker.notes)),
        )

    def _imported(self) -> dict[str, installed.Package]:
        """What would be imported with the folders so far."""
        layered = [*self.first, *([self.layer] if self.layer else [])]
        own = installed.packages([str(layer.path) for layer in layered])
        return {**self.below, **own}

    def _companions(self) -> None:
        """Put torchvision and torchaudio of this PyTorch in place of installed ones of another."""
        major, minor = map(int, self.torch.release.split(".")[:2])
        for name, ahead in _SECOND.items():
            here = self.below.get(name)
            if here is None:
                continue
            fits = not _unmet(here, "torch", self.torch.version)
            if not fits:
                likely = [Release(0 if ahead else major, minor + ahead - less) for less in (0, 1)]
                self._replace(name, likely)
            elif here.version.endswith("+cpu") and (same := release.of_version(here.version)):
                # A build without CUDA has no operators for tensors there.
                self._replace(name, [same])

    def _replace(self, name: str, likely: Sequence[Release]) -> None:
        """Put a release of a package first that takes this PyTorch, if the index has one."""
        from memcalc.engine.environment import layers

        for candidate in likely:
            if layers.is_absent(f"{name}-{candidate}"):
                continue
            try:
                layer = self.maker.single(name, candidate)
            except layers.AbsentError:
                layers.note_absent(f"{name}-{candidate}")
                continue
            except EstimateError:
                # The engine does without it, and it is looked for again next time.
                return
            made = installed.packages([str(layer.path)])[name]
            if not _unmet(made, "torch", self.torch.version):
                self.first.append(layer)
                return

    def _rest(self) -> None:
        """Add what the folders' packages and the question need and the Python lacks."""
        from packaging.requirements import Requirement

        own = installed.packages([str(x.path) for x in self.first])
        wanted = [need for package in own.values() for need in package.requirements()]
        torch = self._imported().get("torch")
        if torch is not None:
            of_torch = list(torch.requirements())
            if self.layer is not None:
                wanted += [need for need in of_torch if not installed.is_vendor(need)]
            if self.triton:
                wanted += [need for need in of_torch if need.name.endswith("triton")]
        wanted += [Requirement(text) for text in self.asked]
        lacking = installed.missing(wanted, self._imported())
        if lacking:
            self.first.insert(0, self.maker.rest(lacking, self._imported()))

    def _hidden(self, running: installed.Torch | None) -> tuple[Hidden, ...]:
        """Installed packages that ask for another version of what the folders bring."""
        shown = self._imported()
        own = installed.packages([str(layer.path) for layer in self.first])
        brought = {name: package.version for name, package in own.items()}
        if self.layer is not None:
            brought["torch"] = self.torch.version
        other = (
            running is None or running.release.split(".")[:2] != self.torch.release.split(".")[:2]
        )
        found: dict[str, str] = {}
        for name, package in shown.items():
            if name in brought or name == _OWN:
                continue
            reason = _clash(package, brought)
            if reason is None and self.layer is not None and other and _built_for(package):
                reason = f"{name} {package.version} is compiled for another PyTorch"
            if reason is not None:
                found[name] = reason
        _follow(found, shown, brought)
        return tuple(
            Hidden(package=name, modules=shown[name].modules(), reason=reason)
            for name, reason in sorted(found.items())
        )


def _unmet(package: installed.Package, name: str, version: str) -> str | None:
    """The requirement of a package that a version does not meet; its extra ``torch`` counts."""
    for need in package.requirements("torch"):
        if installed.normal(need.name) == name and not installed.satisfied(need, version):
            return f"{name}{need.specifier}"
    return None


def _clash(package: installed.Package, brought: dict[str, str]) -> str | None:
    for name, version in brought.items():
        if (need := _unmet(package, name, version)) is not None:
            return f"{package.name} {package.version} needs {need}, and {version} runs"
    return None


def _built_for(package: installed.Package) -> bool:
    """Whether a package says nothing of which PyTorch it needs, and is compiled against one."""
    needs = [need for need in package.requirements() if installed.normal(need.name) == "torch"]
    return not any(need.specifier for need in needs) and package.linked_to_torch()


def _follow(
    found: dict[str, str], shown: dict[str, installed.Package], brought: Iterable[str]
) -> None:
    """Add packages that need a hidden one, and those that need them."""
    grown = True
    while grown:
        grown = False
        for name, package in shown.items():
            if name in found or name in brought or name == _OWN:
                continue
            needs = (installed.normal(need.name) for need in package.requirements())
            if (lost := next((need for need in needs if need in found), None)) is not None:
                found[name] = f"{name} {package.version} needs {lost}, which is hidden"
                grown = True
