"""Models with recurrent layers, as cuDNN runs them; see configs/suites/standin-recurrent.toml."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WORDS = 1000


class Tagger(nn.Module):
    """Two layers in both directions over words, with dropout between them."""

    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(WORDS, 96)
        self.l = nn.LSTM(96, 200, 2, batch_first=True, bidirectional=True, dropout=0.3)
        self.o = nn.Linear(400, 17)

    def forward(self, ids, tags):
        states, _ = self.l(self.e(ids))
        return F.cross_entropy(self.o(states).flatten(0, 1), tags.flatten())


class Language(nn.Module):
    """Four layers in one direction, many steps: several run at once."""

    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(WORDS, 256)
        self.l = nn.LSTM(256, 256, 4, dropout=0.2)
        self.o = nn.Linear(256, WORDS)

    def forward(self, ids):
        states, _ = self.l(self.e(ids))
        return F.cross_entropy(self.o(states[:-1]).flatten(0, 1), ids[1:].flatten())


class Speech(nn.Module):
    """GRU without biases, and a narrow one whose weights stay in the multiprocessors."""

    def __init__(self):
        super().__init__()
        self.a = nn.GRU(80, 320, 3, batch_first=True, bias=False)
        self.b = nn.GRU(320, 64, batch_first=True, bidirectional=True)
        self.o = nn.Linear(128, 40)

    def forward(self, x, y):
        states, _ = self.a(x)
        _, last = self.b(states)
        return F.cross_entropy(self.o(last.transpose(0, 1).flatten(1)), y)


class Projected(nn.Module):
    """LSTM with projections, whose states are given, and a plain layer."""

    def __init__(self):
        super().__init__()
        self.l = nn.LSTM(64, 256, 2, proj_size=96, bidirectional=True)
        self.r = nn.RNN(192, 448, nonlinearity="relu")
        self.o = nn.Linear(448, 1)

    def forward(self, x):
        like = {"device": x.device, "dtype": x.dtype}
        states = (torch.zeros(4, x.shape[1], 96, **like), torch.zeros(4, x.shape[1], 256, **like))
        y, _ = self.l(x, states)
        y, _ = self.r(y)
        return self.o(y).square().mean()


class Packed(nn.Module):
    """Sequences of several lengths."""

    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(WORDS, 128)
        self.l = nn.LSTM(128, 160, 2, batch_first=True, dropout=0.1)
        self.o = nn.Linear(160, 2)

    def forward(self, ids, y):
        lengths = torch.tensor([max(1, ids.shape[1] - 3 * row) for row in range(ids.shape[0])])
        packed = pack_padded_sequence(self.e(ids), lengths, batch_first=True)
        states, _ = self.l(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        return F.cross_entropy(self.o(states.mean(1)), y)


class Wide(nn.Module):
    """One layer of sizes that fp16 may keep in the multiprocessors."""

    def __init__(self):
        super().__init__()
        self.l = nn.LSTM(128, 512, batch_first=True)
        self.o = nn.Linear(512, 3)

    def forward(self, x, y):
        states, _ = self.l(x)
        return F.cross_entropy(self.o(states[:, -1]), y)
