"""What cuDNN takes for recurrent layers and batch norms, against what the library answers."""

import json
import pathlib

import pytest

from memcalc.kernels import norms, recurrent
from memcalc.kernels.formulas import KernelCall, scratch
from memcalc.kernels.target import Target

FOLDER = pathlib.Path(__file__).parents[2] / "evidence" / "standin" / "cudnn"
RECORDINGS = sorted(FOLDER.glob("recurrent-*.json"))
BYTES = (4, 2, 2, 8)


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem)
def recorded(request):
    return json.loads(request.param.read_text())


def target(capability, multiprocessors):
    found = (capability // 100, capability // 10 % 10)
    return Target(capability=found, multiprocessors=multiprocessors, torch=(2, 13))


def asked(columns, row):
    """The layers and sequences of a row, with all that it says."""
    told = dict(zip(columns, row, strict=True))
    lengths, batch = told["lengths"], told["batch"]
    layers = recurrent.Layers(
        **{name: told[name] for name in ("mode", "layers", "directions", "inputs", "hidden")},
        projected=told["projected"],
        element=BYTES[told["type"]],
        half=told["type"] == 1,
    )
    given = recurrent.Sequences(
        steps=told["steps"],
        batch=batch,
        rows=sum(lengths) if lengths else told["steps"] * batch,
        packed=bool(lengths),
        dropout=bool(told["dropout"]),
    )
    return layers, given, told


def test_every_size_that_was_asked_of_the_library_is_met(recorded, monkeypatch):
    rows = recorded["layers"]
    assert len(rows) >= 1000
    for row in rows:
        layers, given, told = asked(recorded["columns"], row)
        chosen = recurrent._Algorithm(told["algorithm"])
        monkeypatch.setattr(recurrent, "_algorithm", lambda *_, chosen=chosen, **__: chosen)
        gpu = target(told["capability"], told["multiprocessors"])
        train = bool(told["train"])
        assert recurrent.workspace(layers, given, gpu, train=train) == told["workspace"], told
        assert (recurrent.reserve(layers, given) if train else 0) == told["reserve"], told
        assert recurrent.weights(layers) * layers.element == told["weights"], told


def test_random_states_are_there_for_every_thread_of_the_device(recorded):
    for capability, multiprocessors, threads, size in recorded["states"]:
        gpu = target(capability, multiprocessors)
        assert gpu.architecture.threads == threads
        assert recurrent.dropout_states(gpu) == size


def test_every_batch_norm_that_was_asked_of_the_library_is_met(recorded):
    for _, shape, half, last, forward, reserve, backward in recorded["norms"]:
        batch, channels, *rest = shape
        rows = batch
        for size in rest:
            rows *= size
        assert reserve == 0
        if last:
            assert norms.forward(rows, channels, half=bool(half)) == forward
            assert norms.backward(rows, channels) == backward
        else:
            assert forward == backward == 0


LSTM = recurrent.Layers(
    mode=recurrent.Mode.LSTM, layers=1, directions=1, inputs=256, hidden=512, element=2, half=True
)
GIVEN = recurrent.Sequences(steps=50, batch=64, rows=3200)


@pytest.mark.parametrize(
    ("capability", "multiprocessors", "batch", "stays"),
    [
        ((8, 0), 108, 64, True),
        ((9, 0), 132, 64, True),
        ((9, 0), 132, 63, False),
        ((9, 0), 132, 136, False),
        ((8, 6), 82, 64, False),
        ((8, 9), 24, 64, False),
        ((7, 5), 40, 64, False),
        ((7, 0), 80, 64, True),
        ((7, 0), 80, 80, False),
    ],
)
def test_weights_stay_in_the_multiprocessors_where_pytorch_says_so(
    capability, multiprocessors, batch, stays
):
    gpu = Target(capability=capability, multiprocessors=multiprocessors, torch=(2, 13))
    given = recurrent.Sequences(steps=50, batch=batch, rows=50 * batch)
    found = recurrent._algorithm(LSTM, given, gpu, backward=False)
    assert (found is recurrent._Algorithm.STATIC) is stays


def test_narrow_layers_run_another_algorithm_forward_than_backward():
    gpu = target(900, 132)
    narrow = recurrent.Layers(
        mode=recurrent.Mode.LSTM, layers=1, directions=1, inputs=64, hidden=160, element=4
    )
    forward, backward = (
        recurrent.workspace(narrow, GIVEN, gpu, train=True, backward=back) for back in (False, True)
    )
    assert forward > backward


def test_where_cudnn_is_off_pytorchs_own_batch_norm_takes_its_sums():
    call = KernelCall("batch_norm", (((1024, 64), 0, (), ()), (4096, 64, True)))
    on, off = (
        Target(capability=(9, 0), multiprocessors=132, torch=(2, 13), cudnn=cudnn)
        for cudnn in (True, False)
    )
    assert scratch(call, off).after == (1024, 64, ~1, ~0)
    assert scratch(call, on).after == (norms.forward(4096, 64, half=True), ~0)
