"""Asks the real cuDNN for the workspace of a convolution, in a link namespace made here.

Usage: cudnn_direct.py FOLDER_OF_CUDNN FOLDER_OF_SHIM PROBLEM. It shares no code with the shim: the
descriptors, the device's words and the choice of a plan are written out again.
"""

import ctypes
import json
import sys
from pathlib import Path

INT64, DESCRIPTOR, CHAR = 3, 15, 24
FLOAT = 0
NEIGHBOURS = ("cuda", "cublasLt12", "cublasLt13", "nvrtc12", "nvrtc13")


def real(cudnn, shim):
    """The library, where it finds the same neighbors as below PyTorch."""
    system = ctypes.CDLL(None)
    system.dlmopen.restype = ctypes.c_void_p
    system.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
    system.dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    space = ctypes.c_long(-1)
    files = [Path(shim, f"libmemcalc_cudnn_{name}.so") for name in NEIGHBOURS]
    for file in (*files, Path(cudnn, "libcudnn.so.9")):
        handle = system.dlmopen(space, str(file).encode(), 1)
        assert handle, file
        system.dlinfo(handle, 1, ctypes.byref(space))
    return ctypes.CDLL("libcudnn.so.9", handle=handle)


class Asker:
    """Makes descriptors of one library."""

    def __init__(self, library, words):
        self.library = library
        text = json.dumps(words).encode()
        self.device = self.made(38)
        self.put(self.device, 2702, CHAR, len(text), text)
        self.finalized(self.device)

    def made(self, kind):
        one = ctypes.c_void_p()
        assert not self.library.cudnnBackendCreateDescriptor(kind, ctypes.byref(one))
        return one

    def put(self, one, name, kind, count, values):
        set_attribute = self.library.cudnnBackendSetAttribute
        assert not set_attribute(one, name, kind, ctypes.c_int64(count), values), name

    def finalized(self, one):
        assert not self.library.cudnnBackendFinalize(one)
        return one

    def numbers(self, one, name, *values):
        self.put(one, name, INT64, len(values), (ctypes.c_int64 * len(values))(*values))

    def code(self, one, name, kind, value):
        self.put(one, name, kind, 1, ctypes.byref(ctypes.c_int(value)))

    def linked(self, one, name, *others):
        array = (ctypes.c_void_p * len(others))(*(other.value for other in others))
        self.put(one, name, DESCRIPTOR, len(others), array)

    def got(self, one, name, kind, array, room):
        count = ctypes.c_int64()
        get = self.library.cudnnBackendGetAttribute
        error = get(one, name, kind, ctypes.c_int64(room), ctypes.byref(count), array)
        return None if error else count.value

    def tensor(self, number, shape, dtype):
        one = self.made(17)
        strides = [1]
        for side in reversed(shape[1:]):
            strides.insert(0, strides[0] * side)
        self.code(one, 901, 1, dtype)
        self.numbers(one, 902, *shape)
        self.numbers(one, 903, *strides)
        self.numbers(one, 906, number)
        self.numbers(one, 900, 16)
        return self.finalized(one)

    def graph(self, image, weight, padding, dtype):
        """A forward convolution of stride 1, as a graph."""
        output = [image[0], weight[0]]
        output += [
            side + 2 * padding - kernel + 1
            for side, kernel in zip(image[2:], weight[2:], strict=True)
        ]
        convolution = self.made(1)
        self.numbers(convolution, 106, 2)
        self.code(convolution, 100, 1, FLOAT)
        self.code(convolution, 101, 7, 1)
        for name, value in ((102, 1), (103, 1), (104, padding), (105, padding)):
            self.numbers(convolution, name, value, value)
        self.finalized(convolution)
        operation = self.made(10)
        self.linked(operation, 702, convolution)
        for name, number, shape in ((704, 1, image), (703, 2, weight), (705, 3, output)):
            self.linked(operation, name, self.tensor(number, shape, dtype))
        for name, value in ((700, 1.0), (701, 0.0)):
            self.put(operation, name, 4, 1, ctypes.byref(ctypes.c_float(value)))
        self.finalized(operation)
        graph = self.made(15)
        self.linked(graph, 801, operation)
        return self.finalized(graph)

    def workspace(self, graph):
        """Of the first configuration that cuDNN ranks whose plan can be had."""
        asked = self.made(4)
        self.linked(asked, 201, graph)
        self.code(asked, 200, 8, 0)
        self.linked(asked, 204, self.device)
        self.finalized(asked)
        configs = [self.made(3) for _ in range(self.got(asked, 202, DESCRIPTOR, None, 0))]
        array = (ctypes.c_void_p * len(configs))(*(one.value for one in configs))
        for one in configs[: self.got(asked, 202, DESCRIPTOR, array, len(configs))]:
            size = ctypes.c_int64()
            if self.compiles(one):
                if self.got(one, 303, INT64, ctypes.byref(size), 1) is not None:
                    return size.value
                continue
            plan = self.made(5)
            self.linked(plan, 401, one)
            self.linked(plan, 407, self.device)
            if self.library.cudnnBackendFinalize(plan):
                continue
            self.got(plan, 402, INT64, ctypes.byref(size), 1)
            return size.value
        return None

    def compiles(self, config):
        engine = self.made(2)
        self.got(config, 300, DESCRIPTOR, (ctypes.c_void_p * 1)(engine.value), 1)
        notes = (ctypes.c_int * 32)()
        return 0 in notes[: self.got(engine, 1305, 19, notes, 32) or 0]


def main(cudnn, shim, problem):
    asked = json.loads(problem)
    asker = Asker(real(cudnn, shim), asked["words"])
    graphs = (asker.graph(*one) for one in asked["convolutions"])
    print(json.dumps([asker.workspace(graph) for graph in graphs]))


if __name__ == "__main__":
    main(*sys.argv[1:])
