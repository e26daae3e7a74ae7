"""whisper: OpenAI's own model.

Requires: openai-whisper
"""

import torch
from whisper.model import ModelDimensions, Whisper

dims = ModelDimensions(80, 1500, 128, 4, 2, 5000, 448, 128, 4, 2)
model = Whisper(dims).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for i in range(5):
    mel = torch.randn(2, 80, 3000).cuda()
    tok = torch.randint(0, 5000, (2, 65)).cuda()
    loss = torch.nn.functional.cross_entropy(
        model(mel, tok[:, :-1]).flatten(0, 1), tok[:, 1:].flatten()
    )
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
