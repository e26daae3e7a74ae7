"""Language modeling by an LSTM: truncated backpropagation, detached state, weight tying, ASGD."""

import math

import torch
from torch import nn

device = "cuda"
VOCAB, WIDTH, LAYERS, BPTT, BATCH = 8000, 320, 3, 70, 20


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.4)
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(nn.LSTM(WIDTH, WIDTH) for _ in range(LAYERS))
        self.out = nn.Linear(WIDTH, VOCAB)
        self.out.weight = self.words.weight

    def forward(self, tokens, states):
        x = self.drop(self.words(tokens))
        after = []
        for layer, state in zip(self.layers, states):
            x, state = layer(x, state)
            after.append(state)
            x = self.drop(x)
        return self.out(x), after, x


def detached(states):
    return [tuple(part.detach() for part in state) for state in states]


corpus = torch.randint(0, VOCAB, (BATCH, 400)).t().contiguous().to(device)
model = LanguageModel().to(device)
optimizer = torch.optim.ASGD(model.parameters(), lr=30.0, t0=0, lambd=0.0, weight_decay=1.2e-6)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    model.train()
    states = [
        tuple(torch.zeros(1, BATCH, WIDTH, device=device) for _ in range(2)) for _ in range(LAYERS)
    ]
    at, total = 0, 0.0
    while at < corpus.size(0) - 2:
        length = min(BPTT - 10 * (at % 3), corpus.size(0) - 1 - at)
        states = detached(states)
        logits, states, hidden = model(corpus[at : at + length], states)
        loss = criterion(logits.view(-1, VOCAB), corpus[at + 1 : at + 1 + length].reshape(-1))
        slow = (hidden[1:] - hidden[:-1]).pow(2).mean()
        optimizer.zero_grad()
        (loss + 2 * hidden.pow(2).mean() + slow).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
        at += length
    print(epoch, math.exp(min(20, total)))
    model.eval()
    with torch.no_grad():
        states = [
            tuple(torch.zeros(1, BATCH, WIDTH, device=device) for _ in range(2))
            for _ in range(LAYERS)
        ]
        logits, _, _ = model(corpus[:120], states)
        print(criterion(logits.view(-1, VOCAB), corpus[1:121].reshape(-1)).item())
