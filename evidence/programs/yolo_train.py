"""The first epoch of Ultralytics' own training, by its own package, over made-up pictures.

    yolo_train.py MODEL CLASSES BATCH BOXES [even|full]

``MODEL`` is one of Ultralytics' names, as yolo11n or yolo11n-seg, or one over pictures of another
side, as yolov8n@1280. What its log prints of the GPU is what is reserved at the end of an epoch,
before validation; so the run ends there. Eight batches stand for one. ``BOXES``: how many a picture
has on average once it is augmented, of the objects that the log prints for the last
batch of an epoch; they are drawn (Poisson), as the loss takes its memory for the fullest picture of
a batch. ``even``: all have as many, the least that the fullest one can have. ``full``: they are
drawn from the distribution of the largest entropy that has this mean (geometric), for no more is
known of them; and as a mosaic puts four pictures together and may show all of them (``scale`` 0.5,
data/augment.py, ``RandomPerspective``), one picture of each batch has as many as the fullest of
four times as many drawn, and three usual ones. The check of mixed precision runs before, as it does
there, over a model of 80 classes.

What boxes fit where, a run without numbers does not know, and the loss would find nothing to learn
from: here every object gets ``topk`` (10) anchors, the most (utils/tal.py,
``select_topk_candidates``), or one where it is ``even``; and some anchor is wanted by two.
"""

import math
import os
import random
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch

STEPS, SIDE = 8, 640
TOPK = 10
"""Anchors that an object gets at most."""


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


def geometric(share: float, mean: float) -> int:
    """How many objects this share of pictures does not exceed."""
    return int(math.log(1 - share) / math.log(mean / (mean + 1)))


def counts(drawn: random.Random, batch: int, boxes: float, spread: str) -> list[int]:
    """How many objects each picture of the epoch has; any batch of them has a fullest one."""
    if spread == "even":
        return [max(round(boxes), 1)] * (STEPS * batch)
    if spread != "full":
        return [poisson(drawn, boxes) for _ in range(STEPS * batch)]
    found = [geometric(drawn.random(), boxes) for _ in range(STEPS * batch)]
    most = geometric(1 - 1 / (4 * len(found)), boxes) + round(3 * boxes)
    found[::batch] = [most] * STEPS
    return found


def write_pictures(
    folder: Path, objects: list[int], classes: int, outline: bool, side: int
) -> Path:
    """A data set in Ultralytics' own form."""
    drawn = random.Random(0)
    for part in ("images", "labels"):
        (folder / part).mkdir()
    for number, count in enumerate(objects):
        picture = np.full((side, side, 3), 114, dtype=np.uint8)
        cv2.imwrite(str(folder / "images" / f"{number}.jpg"), picture)
        lines = [shape(drawn, outline=outline) for _ in range(count)]
        (folder / "labels" / f"{number}.txt").write_text("\n".join(lines))
    names = "\n".join(f"  {number}: name{number}" for number in range(classes))
    text = f"path: {folder}\ntrain: images\nval: images\nnames:\n{names}\n"
    (folder / "data.yaml").write_text(text)
    return folder / "data.yaml"


def end(_: object) -> None:
    """The epoch is over."""
    print(f"reserved {torch.cuda.memory_reserved()}")
    raise SystemExit(0)


def matched(each: int) -> None:
    """From now on so many anchors of a picture have an object."""
    from ultralytics.utils.tal import TaskAlignedAssigner

    forward = TaskAlignedAssigner.forward

    def assigned(self, scores, boxes, anchors, labels, objects, there):
        *found, chosen, which = forward(self, scores, boxes, anchors, labels, objects, there)
        mask = torch.zeros(chosen.shape, dtype=torch.bool)
        mask[:, :each] = True
        chosen.copy_(mask)
        return *found, chosen, which

    def best(wanted, overlaps, most, *_):
        several = (wanted.sum(-2).unsqueeze(1) > 1).expand(-1, most, -1)
        first = torch.zeros(wanted.shape, dtype=wanted.dtype, device=wanted.device)
        first.scatter_(1, overlaps.argmax(1).unsqueeze(1), 1)
        wanted = torch.where(several, first, wanted).float()
        return wanted.argmax(-2), wanted.sum(-2), wanted

    TaskAlignedAssigner.forward = assigned
    TaskAlignedAssigner.select_highest_overlaps = staticmethod(best)


def main(name: str, classes: str, batch: str, boxes: str, spread: str = "") -> None:
    """Train."""
    from ultralytics import YOLO

    name, _, said = name.partition("@")
    side = int(said or SIDE)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        os.chdir(folder)
        checked = YOLO("yolo11n.yaml")
        checked.ckpt = checked.ckpt or {}  # Older releases take it for granted.
        checked.save("yolo11n.pt")
        matched(round(float(boxes) * (1 if spread == "even" else TOPK)) or 1)
        objects = counts(random.Random(1), int(batch), float(boxes), spread)
        data = write_pictures(folder, objects, int(classes), name.endswith("-seg"), side)
        model = YOLO(f"{name}.yaml")
        model.add_callback("on_train_epoch_end", end)
        # What a mosaic adds is in the number of boxes; it is off, as it changes no other size.
        quiet = {"plots": False, "workers": 0, "mosaic": 0.0, "close_mosaic": 0}
        still = {"scale": 0.0, "translate": 0.0, "device": 0, "project": text}
        model.train(data=str(data), epochs=10, batch=int(batch), imgsz=side, **quiet, **still)


if __name__ == "__main__":
    main(*sys.argv[1:])
