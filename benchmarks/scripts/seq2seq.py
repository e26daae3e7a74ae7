"""nn.Transformer for translation: causal and padding masks, teacher forcing, Noam schedule."""

import torch
from torch import nn

PAD, VOCAB, WIDTH = 0, 4000, 192


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH, padding_idx=PAD)
        self.places = nn.Parameter(torch.zeros(1, 64, WIDTH))
        self.core = nn.Transformer(WIDTH, 4, 2, 2, 768, batch_first=True)
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, source, target):
        causal = nn.Transformer.generate_square_subsequent_mask(
            target.size(1), device=target.device
        )
        embed = lambda x: self.words(x) + self.places[:, : x.size(1)]  # noqa: E731
        hidden = self.core(
            *(embed(source), embed(target)),
            tgt_mask=causal,
            src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
        )
        return self.out(hidden)


model = Translator().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: WIDTH**-0.5 * min((s + 1) ** -0.5, (s + 1) * 4000**-1.5)
)
criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
for _ in range(3):
    source = torch.randint(1, VOCAB, (24, 48), device="cuda")
    target = torch.randint(1, VOCAB, (24, 40), device="cuda")
    target[:, 32:] = PAD
    logits = model(source, target[:, :-1])
    loss = criterion(logits.reshape(-1, VOCAB), target[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
