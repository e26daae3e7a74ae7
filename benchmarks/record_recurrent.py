"""Record what cuDNN says that recurrent layers and batch norms take; needs no GPU and no PyTorch.

    MEMCALC_CUDNN=FOLDER python benchmarks/record_recurrent.py out.json [SEED]

``cudnnCreate`` wants a driver, and a device cannot be told to it as to the backend's planner. But
what only answers a size reads little of a handle: zeroed memory stands for one, in which a few
numbers of the device are written. Where those lie is found each time, by changing words until the
answers say so. Sizes are answered before the runtime is asked for the current device, which fails
then (5000, 5003).
"""

import ctypes
import json
import os
import pathlib
import random
import sys

WORDS = 256
DEVICES = (
    *((750, 40), (750, 72), (800, 108), (860, 28), (860, 84), (890, 24), (890, 128)),
    *((900, 114), (900, 132), (1000, 148), (1200, 170)),
)
TYPES = ((0, 0, 0, 4), (2, 0, 1, 2), (9, 0, 0, 2), (1, 1, 0, 8))
"""Of numbers: cudnnDataType_t, the type of products, the math that PyTorch asks for, bytes."""
ANSWERED, REFUSED = (0, 5000, 5003), 3000
LAYERS = (
    *("capability", "multiprocessors", "mode", "layers", "directions", "inputs", "hidden"),
    *("projected", "type", "steps", "batch", "lengths", "dropout", "train", "algorithm"),
    *("workspace", "reserve", "weights"),
)
NORMS = ("capability", "shape", "half", "last", "forward", "reserve", "backward")


class Library:
    """Functions of cuDNN over memory that stands for a handle."""

    def __init__(self, folder: pathlib.Path) -> None:
        names = ("libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_adv.so.9")
        graph, self.ops, self.adv = (
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in names
        )
        graph.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = graph.cudnnGetVersion()
        self.words = (ctypes.c_int32 * (64 * WORDS))()
        self.handle = ctypes.cast(self.words, ctypes.c_void_p)
        self.dropout = self._made(self.ops.cudnnCreateDropoutDescriptor)
        self.layers = self._made(self.adv.cudnnCreateRNNDescriptor)
        self.data = self._made(self.adv.cudnnCreateRNNDataDescriptor)
        self.image, self.moments = (
            self._made(self.ops.cudnnCreateTensorDescriptor) for _ in range(2)
        )
        self._find()

    def _made(self, create) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        assert create(ctypes.byref(made)) == 0
        return made

    def _find(self) -> None:
        """Find the words of the handle that hold what decides."""
        self.words[:] = [1000] * len(self.words)
        self._drop(0.0)
        self.multiprocessors, self.threads = self._that_decide(lambda: self.states() == 0)
        small = {"mode": 2, "algorithm": 3, "hidden": 64}
        (self.capability,) = self._that_decide(lambda: self.sizes(**small) is None)
        image = ((8, 64, 16, 16), True, True)
        decide = self._that_decide(lambda: self.norm(*image)[0] == 0)
        (self.cooperates,) = (word for word in decide if word != self.capability)
        self.words[:] = [0] * len(self.words)

    def _that_decide(self, gone) -> list[int]:
        found = []
        for word in range(WORDS):
            self.words[word] = 0
            if gone():
                found.append(word)
            self.words[word] = 1000
        return found

    def device(self, capability: int, multiprocessors: int, threads: int = 2048) -> None:
        """The device from now on; capability 9.0 is 900."""
        self.words[self.capability] = capability
        self.words[self.multiprocessors] = multiprocessors
        self.words[self.threads] = threads
        self.words[self.cooperates] = 1

    def states(self) -> int:
        """Bytes of the random states of dropout."""
        size = ctypes.c_size_t()
        self.ops.cudnnDropoutGetStatesSize(self.handle, ctypes.byref(size))
        return size.value

    def _drop(self, share: float) -> None:
        share, seed = ctypes.c_float(share), ctypes.c_ulonglong()
        if share.value:
            where, size = ctypes.c_void_p(1 << 20), ctypes.c_size_t(1 << 30)
            restore = self.ops.cudnnRestoreDropoutDescriptor
            assert restore(self.dropout, self.handle, share, where, size, seed) == 0
        else:
            none = ctypes.c_size_t()
            unset = self.ops.cudnnSetDropoutDescriptor
            assert unset(self.dropout, self.handle, share, None, none, seed) == 0

    def sizes(
        self, *, mode, algorithm, hidden, layers=1, directions=1, inputs=64, projected=0,
        type=0, steps=10, batch=4, lengths=None, dropout=False, train=True,
    ):  # fmt: skip
        """Bytes of the workspace, of the reserve and of the weights; ``None``: it is refused."""
        number, products, math, _ = TYPES[type]
        self._drop(0.5 if dropout else 0.0)
        shape = (inputs, hidden, projected or hidden, layers)
        fixed = (algorithm, mode, 2, directions - 1, 0, number, products, math)
        described = self.adv.cudnnSetRNNDescriptor_v8
        if described(self.layers, *fixed, *shape, self.dropout, int(lengths is None)):
            return None
        each = (ctypes.c_int * batch)(*(lengths or [steps] * batch))
        layout = int(lengths is not None)
        given = self.adv.cudnnSetRNNDataDescriptor
        if given(self.data, number, layout, steps, batch, inputs, each, None):
            return None
        work, kept, weights = (ctypes.c_size_t() for _ in range(3))
        asked = (self.handle, self.layers, int(train), self.data)
        answer = self.adv.cudnnGetRNNTempSpaceSizes(*asked, *map(ctypes.byref, (work, kept)))
        if answer not in ANSWERED:
            assert answer == REFUSED, answer
            return None
        of_weights = self.adv.cudnnGetRNNWeightSpaceSize
        assert of_weights(self.handle, self.layers, ctypes.byref(weights)) in ANSWERED
        return work.value, kept.value, weights.value

    def norm(self, shape, half: bool, last: bool) -> tuple[int, int, int]:
        """Bytes of a batch norm in training: forward, kept for backward, backward.

        ``CUDNN_BATCHNORM_SPATIAL_PERSISTENT`` where channels lie last, as PyTorch asks.
        """
        order = [0, *range(2, len(shape)), 1] if last else list(range(len(shape)))
        strides, size = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis], size = size, size * shape[axis]
        array, image, mode = ctypes.c_int * len(shape), self.image, 2 if last else 1
        described = (2 if half else 0, len(shape), array(*shape), array(*strides))
        assert self.ops.cudnnSetTensorNdDescriptor(image, *described) == 0
        assert self.ops.cudnnDeriveBNTensorDescriptor(self.moments, image, mode) == 0
        forward, kept, backward = (ctypes.c_size_t() for _ in range(3))
        begin, x, m = (self.handle, mode, 0), image, self.moments
        names = ("ForwardTrainingExWorkspace", "TrainingExReserveSpace", "BackwardExWorkspace")
        asked = (
            (x, x, x, m, None, ctypes.byref(forward)),
            (None, x, ctypes.byref(kept)),
            (x, x, x, None, x, m, None, ctypes.byref(backward)),
        )
        for name, rest in zip(names, asked, strict=True):
            function = getattr(self.ops, f"cudnnGetBatchNormalization{name}Size")
            assert function(*begin, *rest) == 0
        return forward.value, kept.value, backward.value


def _up_to(most: int) -> int:
    """A number, small ones as likely as large ones."""
    return int(most ** random.random())


def recurrent(library: Library, count: int) -> list[list]:
    """Layers drawn at random."""
    rows: list[list] = []
    while len(rows) < count:
        capability, multiprocessors = random.choice(DEVICES)
        library.device(capability, multiprocessors)
        mode, kind = random.randrange(4), random.randrange(4)
        layers, directions = random.choice((1, 1, 2, 3, 4, 8)), random.choice((1, 1, 2))
        steps, batch, hidden, inputs = map(_up_to, (1024, 256, 4096, 4096))
        if random.random() < 0.3:
            # What persistent algorithms take.
            kind, layers, directions = 1, 1, 1
            hidden, inputs = 128 * random.randint(1, 8), 128 * random.randint(1, 16)
            batch = 8 * random.randint(1, 17)
        projected = random.randrange(hidden) if mode == 2 and random.random() < 0.2 else 0
        lengths = None
        if batch <= 16 and random.random() < 0.3:
            rest = (random.randint(1, steps) for _ in range(batch - 1))
            lengths = sorted([steps, *rest], reverse=True)
        train = random.random() < 0.7
        dropout = train and layers > 1 and random.random() < 0.4
        algorithm = 0
        if not projected and lengths is None and kind != 3:
            algorithm = 3 if hidden <= (192 if mode > 1 else 384) else 0
            if kind == 1 and layers == directions == 1 and hidden % 128 == inputs % 128 == 0:
                algorithm = algorithm or (1 if hidden <= 1024 else 0)
        numbers = {
            "mode": mode,
            "layers": layers,
            "directions": directions,
            "inputs": inputs,
            "hidden": hidden,
            "projected": projected,
            "type": kind,
            "steps": steps,
            "batch": batch,
            "lengths": lengths,
            "dropout": dropout,
            "train": train,
        }
        found = library.sizes(algorithm=algorithm, **numbers)
        if found is not None and max(found) < 1 << 34:
            row = [capability, multiprocessors, *numbers.values(), algorithm, *found]
            rows.append([int(one) if isinstance(one, bool) else one for one in row])
    return rows


def norms(library: Library, count: int) -> list[list]:
    """Batch norms drawn at random."""
    rows: list[list] = []
    while len(rows) < count:
        capability, multiprocessors = random.choice(DEVICES)
        library.device(capability, multiprocessors)
        shape = list(map(_up_to, (256, 2048, 128, 128)))
        if random.random() < 0.6:
            shape[1] = max(4, shape[1] // 4 * 4)
        if random.random() < 0.2:
            shape = [*shape[:2], max(1, shape[2] // 8), shape[3], max(1, shape[3] // 2)]
        half, last = random.random() < 0.5, random.random() < 0.8
        answer = library.norm(shape, half, last)
        rows.append([capability, shape, int(half), int(last), *answer])
    return rows


def main(output: str, seed: str = "0") -> None:
    folder = next(filter(None, os.environ["MEMCALC_CUDNN"].split(os.pathsep)))
    library = Library(pathlib.Path(folder))
    random.seed(int(seed))
    number = library.version
    recorded = {
        "cudnn": f"{number // 10000}.{number // 100 % 100}.{number % 100}",
        "columns": [*LAYERS],
        "layers": recurrent(library, 1200),
        "norm_columns": [*NORMS],
        "norms": norms(library, 600),
        "states": [],
    }
    for capability, multiprocessors, threads in (
        (750, 40, 1024),
        (860, 84, 1536),
        (900, 132, 2048),
    ):
        library.device(capability, multiprocessors, threads)
        recorded["states"].append([capability, multiprocessors, threads, library.states()])
    lines = [f'"{key}": {json.dumps(value)}' for key, value in recorded.items()]
    text = "{" + ",\n".join(lines).replace("], [", "],\n[") + "}\n"
    pathlib.Path(output).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
