"""The first epoch of Ultralytics' own training, by its own package, over made-up pictures.

    yolo_train.py MODEL CLASSES BATCH BOXES

``MODEL`` is yolo11n or yolo11n-seg. What its log prints of the GPU is what is reserved at the end
of an epoch, before validation; so the run ends there. Eight batches stand for one. ``BOXES``: how
many a picture has on average once it is augmented, of the objects that the log prints for the last
batch of an epoch; they are drawn (Poisson), as the loss takes its memory for the fullest picture of
a batch. The check of mixed precision runs before, as it does there, over a model of 80 classes.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch

STEPS, SIDE = 8, 640


def without_compiled_operators() -> None:
    """A build of torchvision for another PyTorch lacks its operators; boxes' overlap is one."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def keep(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
        return scores.argsort(descending=True)

    library.impl("nms", keep, "CompositeExplicitAutograd")
    without_compiled_operators.kept = library  # type: ignore[attr-defined]


def shape(drawn: random.Random, *, outline: bool) -> str:
    """One object's line: its class, and its box or its outline."""
    x, y = drawn.uniform(0.2, 0.8), drawn.uniform(0.2, 0.8)
    w, h = drawn.uniform(0.05, 0.3), drawn.uniform(0.05, 0.3)
    if not outline:
        return f"0 {x} {y} {w} {h}"
    corners = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    points = [(x + i * w / 2, y + j * h / 2) for i, j in corners]
    return "0 " + " ".join(f"{min(max(one, 0), 1)}" for point in points for one in point)


def poisson(drawn: random.Random, mean: float) -> int:
    """How many objects a picture has."""
    left, count = np.exp(-mean), -1
    product = 1.0
    while product > left:
        product *= drawn.random()
        count += 1
    return count


def write_pictures(folder: Path, pictures: int, boxes: float, classes: int, outline: bool) -> Path:
    """A data set in Ultralytics' own form."""
    drawn = random.Random(0)
    for part in ("images", "labels"):
        (folder / part).mkdir()
    for number in range(pictures):
        picture = np.full((SIDE, SIDE, 3), 114, dtype=np.uint8)
        cv2.imwrite(str(folder / "images" / f"{number}.jpg"), picture)
        lines = [shape(drawn, outline=outline) for _ in range(poisson(drawn, boxes))]
        (folder / "labels" / f"{number}.txt").write_text("\n".join(lines))
    names = "\n".join(f"  {number}: name{number}" for number in range(classes))
    text = f"path: {folder}\ntrain: images\nval: images\nnames:\n{names}\n"
    (folder / "data.yaml").write_text(text)
    return folder / "data.yaml"


def end(_: object) -> None:
    """The epoch is over."""
    print(f"reserved {torch.cuda.memory_reserved()}")
    raise SystemExit(0)


def main(name: str, classes: str, batch: str, boxes: str) -> None:
    """Train."""
    without_compiled_operators()
    from ultralytics import YOLO

    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        os.chdir(folder)
        YOLO("yolo11n.yaml").save("yolo11n.pt")
        outline = name.endswith("-seg")
        pictures = STEPS * int(batch)
        data = write_pictures(folder, pictures, float(boxes), int(classes), outline)
        model = YOLO(f"{name}.yaml")
        model.add_callback("on_train_epoch_end", end)
        # What a mosaic adds is in the number of boxes; it is off, as it changes no other size.
        quiet = {"plots": False, "workers": 0, "mosaic": 0.0, "close_mosaic": 0}
        still = {"scale": 0.0, "translate": 0.0, "device": 0, "project": text}
        model.train(data=str(data), epochs=10, batch=int(batch), imgsz=SIDE, **quiet, **still)


if __name__ == "__main__":
    main(*sys.argv[1:])
