"""Rows of many lengths, streamed by two workers that draw them, and a rate that is a tensor."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WORDS, WIDTH, ROWS = 2000, 128, 42


class Rows(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for _ in range(worker.id, ROWS, worker.num_workers):
            yield torch.randint(1, WORDS, (random.randint(40, 400),))


def pad(rows):
    return pad_sequence(rows, batch_first=True)


def main():
    random.seed(0)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), layer, nn.Linear(WIDTH, WORDS)).cuda()
    rate = torch.tensor(1e-3, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    loader = DataLoader(Rows(), 6, collate_fn=pad, num_workers=2, persistent_workers=True)
    for _ in range(2):
        for rows in loader:
            rows = rows.cuda()
            logits = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.mul_(0.9)
        print(tuple(rows.shape), float(loss.detach()))


if __name__ == "__main__":
    main()
