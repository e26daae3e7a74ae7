"""Single operators, forward and backward: what PyTorch's CUDA allocator saw, and what memcalc says.

Recordings were made with PyTorch's CUDA build over the stand-in driver by
``benchmarks/record_operators.py``.
"""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
RECORDINGS = sorted((ROOT / "evidence" / "standin").glob("operators-*.json"))
USUAL = {"operators-torch2.13-cc75", "operators-torch2.13-cc90", "operators-torch2.13-cc90-cudnn"}
LEAST = {True: 40, False: 250}
"""Cases of a recording where cuDNN runs, and where it does not."""
UNEQUAL = {
    "bce_with_logits": "autograd's formula for subclasses makes other temporaries",
    "index_put": "autograd takes the two gradients in another order",
}
"""Operators whose events differ, and why; their peaks do not."""


def simulated(name):
    from tests.kernels.simulate import simulate

    return simulate(name)


def canonical(events):
    """Neighbouring deaths in any order are the same to an allocator."""
    form, deaths = [], []
    for event in [*events, None]:
        if event is not None and event < 0:
            deaths.append(event)
            continue
        if deaths:
            form.append(tuple(sorted(deaths)))
            deaths = []
        form.append(event)
    return form


def peak(events):
    sizes, live, highest = [], 0, 0
    for event in events:
        if event >= 0:
            sizes.append(event)
        live += event if event >= 0 else -sizes[~event]
        highest = max(highest, live)
    return highest


@pytest.mark.parametrize(
    "path",
    [
        # One PyTorch on two generations, and with cuDNN; the rest at night.
        pytest.param(path, id=path.stem, marks=() if path.stem in USUAL else pytest.mark.nightly)
        for path in RECORDINGS
    ],
)
def test_every_event_of_every_operator_is_the_recorded_one(forked, path):
    recorded = json.loads(path.read_text())["cases"]
    assert len(recorded) > LEAST["-cudnn" in path.stem]
    found = forked(simulated, str(path))
    for name, events in recorded.items():
        assert isinstance(found[name], list), f"{name}: {found[name]}"
        equal = canonical(found[name]) == canonical(events)
        expected = not any(name.startswith(f"{other} ") for other in UNEQUAL)
        assert equal == expected, f"{name}: {found[name]} here, {events} recorded"
        assert peak(found[name]) == peak(events), name
