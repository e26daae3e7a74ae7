"""What YOLO's search for a batch size runs: every batch thrice, one after the other.

    yolo_autobatch.py NAME CLASSES SIZE BATCH,BATCH,... [counted] [held=RESERVED,ALLOCATED]

The model is on the GPU twice (the trainer's, and the copy that is tried), one autocast holds its
cast weights to the end, the cache is given back between batches, and outputs live, with the graph
behind them, until the next ones are there (utils/torch_utils.py, ``profile``: ``y = m(x)``).
``counted``: operations were counted before (their figure is printed). ``held``: what the search
printed, in GiB, of the allocator as it began. Not followed: the trainer asks for deterministic
kernels before (``init_seeds``), for which PyTorch took cuDNN's default algorithms alone as long as
it called them one by one (Conv_v7.cpp, ``onlyDefaultAlgorithm``); their workspaces nobody recorded.
"""

import copy
import sys
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
    """One pass without gradients.

    Autocast keeps its casts: the weights that they stand for get no gradients from then on.
    """
    training = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        model(pictures)
    for module, was in training.items():
        module.training = was


def hold(reserved: float, allocated: float, known: int) -> list[torch.Tensor]:
    """What is held besides ``known`` bytes of weights; the rest of it stays cached."""

    def taken(size: int) -> list[torch.Tensor]:
        sizes = [BUFFER // 2] * (size // (BUFFER // 2))
        return [torch.empty(one, dtype=torch.uint8, device="cuda") for one in sizes]

    kept = taken(int(allocated * GIB) - known)
    cached = taken(int((reserved - allocated) * GIB))
    del cached
    return kept


def main() -> None:
    """Try every batch."""
    name, classes, size, batches, *more = sys.argv[1:]
    model = detector(name, int(classes)).to("cuda")
    held = [text.removeprefix("held=") for text in more if text.startswith("held=")]
    kept = []
    for text in held:
        known = sum(p.numel() * p.element_size() for p in model.parameters())
        kept = hold(*map(float, text.split(",")), known)
    with torch.autocast("cuda"):
        tried = copy.deepcopy(model).train()
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
