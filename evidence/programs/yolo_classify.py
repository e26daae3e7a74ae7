"""The first epoch of Ultralytics' own training of a classifier, over made-up pictures.

    yolo_classify.py MODEL@SIDE CLASSES BATCH OPTIMIZER [unchecked] [single]

``MODEL`` is one of Ultralytics' names, as yolov8n-cls. What its log prints of the GPU is what is
reserved at the end of an epoch, before validation; so the run ends there. Eight batches stand for
an epoch. ``unchecked``: without the check of mixed precision before, for a later epoch of a
version that gives the cache back behind each one. ``single``: without mixed precision.
"""

import os
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch

BATCHES = 8


def write_pictures(folder: Path, pictures: int, classes: int, side: int) -> Path:
    """A data set in Ultralytics' own form: a folder for each class."""
    for part, wanted in (("train", pictures), ("val", classes)):
        for number in range(max(wanted, classes)):
            place = folder / "data" / part / f"name{number % classes}"
            place.mkdir(parents=True, exist_ok=True)
            picture = np.full((side, side, 3), 114, dtype=np.uint8)
            cv2.imwrite(str(place / f"{number}.jpg"), picture)
    return folder / "data"


def end(_: object) -> None:
    """The epoch is over."""
    print(f"reserved {torch.cuda.memory_reserved()}")
    raise SystemExit(0)


def main(name: str, classes: str, batch: str, optimizer: str, *words: str) -> None:
    """Train."""
    from ultralytics import YOLO
    from ultralytics.engine import trainer

    name, _, side = name.partition("@")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        os.chdir(folder)
        if "unchecked" in words:
            trainer.check_amp = lambda _: True
        else:
            for checked in ("yolo11n", "yolo26n"):
                try:
                    YOLO(f"{checked}.yaml").save(f"{checked}.pt")
                except FileNotFoundError:
                    continue
        data = write_pictures(folder, BATCHES * int(batch), int(classes), int(side))
        model = YOLO(f"{name}.yaml")
        model.add_callback("on_train_epoch_end", end)
        quiet = {"plots": False, "workers": 0, "device": 0, "project": text}
        settings = {"optimizer": optimizer, "amp": "single" not in words}
        sizes = {"batch": int(batch), "imgsz": int(side)}
        model.train(data=str(data), epochs=10, **sizes, **settings, **quiet)


if __name__ == "__main__":
    main(*sys.argv[1:])
