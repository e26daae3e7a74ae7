"""Data loaders with workers load in this process what their workers would load."""

import ast
import runpy
import sys

LOADERS = """
    import random, sys
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

    class Stream(IterableDataset):
        def __init__(self, rows):
            self.first, self.last, self.draw = 0, rows, random.Random(1)
        def __iter__(self):
            for _ in range(self.first, self.last):
                yield torch.ones(self.draw.randint(1, 99) + int(torch.randint(99, ())))

    class Rows(Dataset):
        def __init__(self):
            self.draw = torch.Generator().manual_seed(1)
        def __len__(self):
            return 20
        def __getitem__(self, row):
            more = int(torch.randint(99, (), generator=self.draw))
            return torch.ones(100 * row + more + random.randint(0, 99))

    def share(number):
        worker = get_worker_info()
        assert worker.id == number and worker.seed == torch.initial_seed()
        share = -(-worker.dataset.last // worker.num_workers)
        worker.dataset.first = number * share
        worker.dataset.last = min(worker.dataset.last, (number + 1) * share)

    def pad(rows):
        return pad_sequence(rows, batch_first=True)

    def broken(rows):
        raise KeyError("own")

    def main():
        random.seed(0)
        torch.manual_seed(0)
        kept = {"num_workers": 2, "collate_fn": pad, "persistent_workers": True}
        found = []
        for loader in (
            DataLoader(Stream(11), 3, num_workers=2, collate_fn=pad),
            DataLoader(Stream(11), 2, num_workers=3, collate_fn=pad, worker_init_fn=share),
            DataLoader(Rows(), 3, shuffle=True, prefetch_factor=4, timeout=60, **kept),
            DataLoader(Subset(Rows(), range(9)), None, num_workers=2),
            DataLoader(Rows(), 6, shuffle=True, drop_last=True, collate_fn=pad),
        ):
            found.append(loader.num_workers)
            for epoch in range(2):
                found += [tuple(batch.to(sys.argv[1]).shape) for batch in loader]
                found.append(float(torch.rand(())))
        assert get_worker_info() is None
        try:
            next(iter(DataLoader(Rows(), 2, num_workers=1, collate_fn=broken)))
        except KeyError:
            found.append(random.random())
        with open(f"{sys.argv[1]}.txt", "w") as file:
            file.write(repr(found))

    if __name__ == "__main__":
        main()
"""


def run_on_the_cpu():
    sys.argv = ["train.py", "cpu"]
    runpy.run_path("train.py", run_name="__main__")


def test_batches_and_random_numbers_are_those_of_real_workers(run, forked, tmp_path):
    assert run(LOADERS, "cuda", steps=0).ending.code == 0
    forked(run_on_the_cpu)
    simulated, real = ((tmp_path / f"{place}.txt").read_text() for place in ("cuda", "cpu"))
    assert ast.literal_eval(simulated) == ast.literal_eval(real)
