"""For a build of torchvision for another PyTorch, which lacks its operators: boxes' overlap."""

import torch


def define() -> None:
    """Stand in for them, before torchvision is imported."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def keep(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
        return scores.argsort(descending=True)

    library.impl("nms", keep, "CompositeExplicitAutograd")
    define.kept = library  # type: ignore[attr-defined]
