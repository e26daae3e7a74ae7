"""torchvision's detectors: boxes that a network proposes are not known, and decide how many go on.

A trained network proposes the most that it may, and enough of these match an object. Read in
torchvision 0.29 (models/detection/rpn.py and roi_heads.py).
"""

from typing import Any

import torch

from memcalc.engine.host_view import map_tensors
from memcalc.engine.patches import Patches
from memcalc.engine.values.follower import Values

MOST = (
    "torchvision's detectors are assumed to keep as many proposals as they may, and as many of "
    "these to match an object"
)


def install(patches: Patches, values: Values) -> None:
    """Patch torchvision's detectors to keep all boxes of which the values are unknown."""

    def keep_boxes(original: Any, boxes: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out: torch.Tensor = original(boxes, *args, **kwargs)
        if not boxes.is_cuda:
            return out
        if values.knows(boxes):
            out = original(
                *map_tensors((boxes, *args), values.host), **map_tensors(kwargs, values.host)
            )
            return out.to(boxes.device)
        patches.say(MOST)
        return torch.arange(len(boxes), device=boxes.device)

    for name in ("nms", "remove_small_boxes"):
        patches.wrap_later("torchvision.ops.boxes", name, keep_boxes)
    networks = "torchvision.models.detection.rpn"
    patches.wrap_later(networks, "RegionProposalNetwork.filter_proposals", _keep_all_scores)
    heads = "torchvision.models.detection.roi_heads"
    patches.wrap_later(heads, "RoIHeads.assign_targets_to_proposals", _match_most)


def _keep_all_scores(original: Any, network: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``filter_proposals`` with a score threshold of 0."""
    with Patches() as inside:
        inside.set(network, "score_thresh", 0.0)
        return original(network, *args, **kwargs)


def _match_most(original: Any, heads: Any, proposals: Any, boxes: Any, classes: Any) -> Any:
    """Match as many proposals to an object as the sampler takes of these."""
    found, labels = original(heads, proposals, boxes, classes)
    sampler = heads.fg_bg_sampler
    most = int(sampler.batch_size_per_image * sampler.positive_fraction)
    for label, of_objects in zip(labels, classes, strict=True):
        if len(of_objects) and label.is_cuda:
            label[:most] = of_objects[0]
    return found, labels
