"""Speech recognition: log-mel by torch.stft, convolutions, a bidirectional GRU and CTC."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)


class Speech(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(8000, 16000, (1,), generator=g))
        m = int(torch.randint(5, 20, (1,), generator=g))
        return torch.randn(n, generator=g), torch.randint(1, 29, (m,), generator=g)


def collate(items):
    waves, texts = zip(*items)
    return (
        pad_sequence(waves, batch_first=True),
        torch.tensor([len(w) for w in waves]),
        torch.cat(texts),
        torch.tensor([len(t) for t in texts]),
    )


class Net(nn.Module):
    def __init__(self, mels=40, width=128):
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("mel", torch.rand(mels, 201))
        self.conv = nn.Sequential(
            nn.Conv1d(mels, width, 5, stride=2, padding=2), nn.BatchNorm1d(width), nn.ReLU()
        )
        self.rnn = nn.GRU(width, width, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(2 * width, 29)

    def forward(self, wave, lengths):
        spec = (
            torch.view_as_real(torch.stft(wave, 400, 160, window=self.window, return_complex=True))
            .pow(2)
            .sum(-1)
        )
        x = torch.log(self.mel @ spec + 1e-6)
        x = (x - x.mean(dim=(1, 2), keepdim=True)) / (x.std(dim=(1, 2), keepdim=True) + 1e-5)
        x = self.conv(x).transpose(1, 2)
        frames = (lengths // 160 + 1 + 1) // 2
        packed = pack_padded_sequence(x, frames.cpu(), batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return F.log_softmax(self.out(x), dim=-1).transpose(0, 1), frames


model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=8)
criterion = nn.CTCLoss(blank=0, zero_infinity=True)
loader = DataLoader(Speech(), batch_size=6, shuffle=True, collate_fn=collate)
for epoch in range(2):
    for wave, lengths, text, sizes in loader:
        wave, text = wave.cuda(), text.cuda()
        logp, frames = model(wave, lengths)
        loss = criterion(logp, text, frames, sizes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        print(loss.item())
    model.eval()
    with torch.no_grad():
        logp, frames = model(wave, lengths)
        best = logp.argmax(-1).transpose(0, 1)
        texts = [torch.unique_consecutive(row) for row in best]
        print([len(t[t != 0]) for t in texts])
    model.train()
