"""What YOLO's search for a batch size runs: every batch thrice, one after the other.

    yolo_autobatch.py NAME CLASSES SIZE BATCH,... [counted] [held=RESERVED,ALLOCATED] [END]

The model is on the GPU twice (the trainer's, and the copy that is tried), one autocast holds its
casts to the end, the cache is given back between batches, and outputs live, with the graph behind
them, until the next ones are there (utils/torch_utils.py, ``profile``: ``y = m(x)``). ``counted``:
operations were counted before (their figure is printed), without gradients, inside that autocast.
``held``: what the search printed, in GiB, of the allocator once the copy was there. In what blocks,
it did not print; it is taken that what was free lay in segments of its own. ``END`` is ``unused``,
where none of it has room for what comes and none can be given back, as when a small block is in
every segment, or ``returned``, where all of it went back; both with one block, and with as much
more or less as the figures were rounded by. Not followed: the trainer asks for deterministic
kernels before (``init_seeds``), for which PyTorch took cuDNN's default algorithms alone as long as
it called them one by one (Conv_v7.cpp, ``onlyDefaultAlgorithm``); their workspaces nobody recorded.
"""

import copy
import sys
import weakref
from pathlib import Path
from unittest.mock import MagicMock

import torch

GIB = 1 << 30
BUFFER = 20 << 20
"""What the allocator asks the driver for, for blocks of 1 to 10 MiB."""


def detector(name: str, classes: int) -> torch.nn.Module:
    """The model by the package that has it."""
    if name.startswith("yolov5"):
        # Boxes are not looked at here; a build of torchvision for another PyTorch does not import.
        for part in ("", ".transforms", ".transforms.functional", ".ops"):
            sys.modules[f"torchvision{part}"] = MagicMock()
        import yolov5
        from yolov5.models.yolo import Model

        return Model(str(Path(yolov5.__file__).parent / "models" / f"{name}.yaml"), nc=classes)
    from ultralytics.nn.tasks import DetectionModel

    return DetectionModel(f"{name}.yaml", nc=classes, verbose=False)


def total(outputs: object) -> torch.Tensor:
    """The loss of the search."""
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    return sum(part.sum() for part in parts if torch.is_tensor(part))


def count(model: torch.nn.Module, pictures: torch.Tensor) -> None:
    """One pass without gradients."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        model(pictures)
    for module, was in training.items():
        module.training = was


class Casts:
    """Autocast's casts for convolutions, as PyTorch kept them before its pull request 165068.

    Those first made without gradients had none for ever (its issue 112583): neither weights nor
    pictures got any once operations were counted. To the end of autocast nothing is let go of.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._gone: list[torch.Tensor] = []

    def of(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """The cast of a leaf that wants a gradient; anything else as it is."""
        if tensor is None or not (tensor.is_leaf and tensor.requires_grad):
            return tensor
        known = self._found.get(id(tensor))
        if known is None or known[0]() is not tensor:
            if known is not None:
                self._gone.append(known[1])
            known = self._found[id(tensor)] = (weakref.ref(tensor), tensor.detach().half())
        return known[1]

    def install(self) -> None:
        """From now on convolutions take them."""
        forward = torch.nn.Conv2d._conv_forward

        def cast(layer: torch.nn.Conv2d, *tensors: torch.Tensor | None) -> torch.Tensor:
            return forward(layer, *map(self.of, tensors))

        torch.nn.Conv2d._conv_forward = cast


def hold(reserved: float, allocated: float) -> list[torch.Tensor]:
    """Fill up to so many GiB; what is reserved and not allocated stays cached."""

    def taken(size: float) -> list[torch.Tensor]:
        sizes = [BUFFER // 2] * round(size / (BUFFER // 2))
        return [torch.empty(one, dtype=torch.uint8, device="cuda") for one in sizes]

    kept = taken(allocated * GIB - torch.cuda.memory_allocated())
    cached = taken(reserved * GIB - torch.cuda.memory_reserved())
    del cached
    return kept


def hold_of(text: str, more: list[str]) -> list[torch.Tensor]:
    """What was printed as held, or the least or the most that it may stand for."""
    reserved, allocated = text.split(",")
    rounding = 10.0 ** -len(reserved.partition(".")[2]) / 2
    if "returned" in more:
        return block(float(allocated) - rounding)
    if "unused" in more:
        return block(float(reserved) + rounding)
    return hold(float(reserved), float(allocated))


def block(size: float) -> list[torch.Tensor]:
    """Fill up to so many GiB by one block."""
    left = int(size * GIB) - torch.cuda.memory_allocated()
    return [torch.empty(left, dtype=torch.uint8, device="cuda")] if left > 0 else []


def main() -> None:
    """Try every batch."""
    name, classes, size, batches, *more = sys.argv[1:]
    model = detector(name, int(classes)).to("cuda")
    if "counted" in more:
        Casts().install()
    with torch.autocast("cuda"):
        tried = copy.deepcopy(model).train()
        kept = []
        for text in more:
            if text.startswith("held="):
                kept = hold_of(text.removeprefix("held="), more)
        outputs = None
        for batch in map(int, batches.split(",")):
            pictures = torch.empty(batch, 3, int(size), int(size))
            pictures = pictures.to("cuda")
            pictures.requires_grad = True
            if "counted" in more:
                count(tried, pictures)
            for _ in range(3):
                outputs = tried(pictures)
                total(outputs).backward()
            torch.cuda.empty_cache()
    del kept, outputs


main()
