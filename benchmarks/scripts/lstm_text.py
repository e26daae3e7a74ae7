"""A bidirectional LSTM over packed sequences, Adagrad, embedding with padding."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8000, 128, padding_idx=0)
        self.lstm = nn.LSTM(
            128, 128, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2
        )
        self.out = nn.Linear(256, 5)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(states.max(1).values)


model = Classifier().to("cuda")
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
for _ in range(3):
    lengths = torch.tensor([60, 50, 40, 30] * 8)
    tokens = torch.randint(1, 8000, (32, 60)).to("cuda")
    loss = nn.functional.cross_entropy(
        model(tokens, lengths), torch.randint(0, 5, (32,)).to("cuda")
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
