"""SegFormer with two learning rates, and intersections over unions after each step."""

import torch
from transformers import SegformerConfig, SegformerForSemanticSegmentation

m = SegformerForSemanticSegmentation(SegformerConfig(num_labels=19)).cuda()
enc = [p for n, p in m.named_parameters() if "decode_head" not in n]
dec = [p for n, p in m.named_parameters() if "decode_head" in n]
opt = torch.optim.AdamW([{"params": enc, "lr": 6e-5}, {"params": dec, "lr": 6e-4}])
sched = torch.optim.lr_scheduler.PolynomialLR(opt, 10)
for i in range(3):
    m.train()
    x = torch.randn(4, 3, 256, 256, device="cuda")
    y = torch.randint(0, 19, (4, 256, 256), device="cuda")
    y[torch.rand(4, 256, 256, device="cuda") < 0.1] = 255
    with torch.autocast("cuda", torch.bfloat16):
        out = m(pixel_values=x, labels=y)
    out.loss.backward()
    opt.step()
    sched.step()
    opt.zero_grad()
    m.eval()
    with torch.no_grad():
        up = torch.nn.functional.interpolate(
            m(pixel_values=x).logits, size=(256, 256), mode="bilinear", align_corners=False
        ).argmax(1)
        k = (y >= 0) & (y < 19)
        h = torch.bincount(19 * y[k] + up[k], minlength=361).reshape(19, 19)
        iou = h.diag() / (h.sum(0) + h.sum(1) - h.diag())
    print(out.loss.item(), iou.nanmean().item())
