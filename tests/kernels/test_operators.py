"""Single operators, forward and backward: what PyTorch's CUDA allocator saw, and what memcalc says.

Recordings were made with PyTorch's CUDA build over the stand-in driver by
``benchmarks/record_operators.py``.
"""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
STANDIN = ROOT / "evidence" / "standin"
RECORDINGS = sorted(
    path for kind in ("operators", "modules", "large") for path in STANDIN.glob(f"{kind}-*.json")
)
LAYOUTS = sorted(STANDIN.glob("layouts-*.json"))
AT_NIGHT = pytest.mark.nightly
USUAL = {"operators-torch2.13-cc90-cudnn"}
LEAST = {True: 40, False: 250}
"""Cases of a recording where cuDNN runs, and where it does not."""
UNEQUAL = {
    **dict.fromkeys(
        ("optim.Rprop fp32", "optim.Rprop bf16", "optim.Rprop foreach=False"),
        "a number is made for each write by a mask, of 4 bytes",
    ),
    "BatchNorm2d channels last": "cuDNN takes a workspace, and the stand-in's asks for none",
    "Embedding of norm": "CUDA sorts the indices first, for as many as are in a batch",
}
"""Operators whose events differ, and why; their peaks do not."""
UNEQUAL_ON = {"large-torch2.13-cc89": "embedding"}
"""The first of two sums of places there takes 1,535 bytes, and 1,279 are said."""
ALIKE = ("layer_norm", "rms_norm")
"""They sum into a new block and drop one of as many bytes, which here stays the result's."""
_FEW = 16
"""Bytes by which PyTorch 2.13 takes more than 2.11 does."""
UNEQUAL_LAYOUT = "MaxUnpool2d"
"""Of it, CUDA copies what lies with channels last elsewhere; peaks do not differ."""
_ALGEBRA = "pivots, copies and workspaces of linear algebra are named as not counted"
_FEW_BYTES = "numbers of segments or tensors that kernels are told take 1 to 1400 bytes"
LOWER = {
    **dict.fromkeys(
        "linalg.det linalg.slogdet linalg.cholesky linalg.pinv linalg.lu_factor linalg.lu "
        "linalg.lstsq lu_solve logdet householder".split(),
        (_ALGEBRA, 0.28),
    ),
    "linalg.matrix_exp": ("its steps depend on values, and are named as not counted", 0.58),
    "masked_scatter": ("the stand-in selects nothing: zeros are added in backward", 0.2),
    "sort": ("on older GPUs counters of narrow keys are named as not counted", 0.87),
    "weight_norm": ("the norms of fp16 rows are fp32", 0.01),
    **dict.fromkeys("segment_reduce bincount foreach".split(), (_FEW_BYTES, 0.08)),
}
"""Library cases whose peak is lower here than recorded, why, and by which share at most."""


def simulated(name, every=1):
    from tests.kernels.simulate import simulate

    return simulate(name, every)


def canonical(name, events):
    """Neighbouring deaths in any order are the same to an allocator."""
    form, deaths, sizes = [], [], [event for event in events if event >= 0]
    for event in [*events, None]:
        if event is not None and event < 0:
            deaths.append(-sizes[~event] if name.startswith(ALIKE) else event)
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
    ("path", "every"),
    [
        # Some of a PyTorch, of layouts and of the newest, and those with cuDNN; the rest at night.
        *(
            pytest.param(path, 1, id=path.stem, marks=() if path.stem in USUAL else [AT_NIGHT])
            for path in [*RECORDINGS, *LAYOUTS]
        ),
        pytest.param(STANDIN / "operators-torch2.13-cc75.json", 3, id="some"),
        pytest.param(LAYOUTS[0], 12, id="some layouts"),
        pytest.param(STANDIN / "operators-torch2.15-cc90.json", 4, id="some of the newest"),
    ],
)
def test_every_event_of_every_operator_is_the_recorded_one(forked, path, every):
    recorded = json.loads(path.read_text())["cases"]
    assert len(recorded) > LEAST["-cudnn" in path.stem]
    found = forked(simulated, str(path), every)
    assert len(found) * every >= len(recorded)
    for name in found:
        events = recorded[name]
        assert isinstance(found[name], list), f"{name}: {found[name]}"
        assert peak(found[name]) == peak(events), name
        equal = canonical(name, found[name]) == canonical(name, events)
        known = name.split()[0] == UNEQUAL_ON.get(path.stem)
        assert equal == (as_recorded(name) and not known), (
            f"{name}: {found[name]} here, {events} recorded"
        )


@pytest.mark.pinned
@pytest.mark.parametrize(
    ("path", "every"),
    [
        pytest.param(
            path,
            every,
            id=f"{path.stem}-{every}",
            marks=() if "2.13" in path.stem and every > 1 else pytest.mark.nightly,
        )
        for path in sorted(STANDIN.glob("library-*.json"))
        for every in (1, 8)
    ],
)
def test_the_peak_of_every_library_operator_is_the_recorded_one(forked, path, every):
    recorded = json.loads(path.read_text())["cases"]
    found = forked(simulated, str(path), every)
    assert len(found) * every > 650
    off = {}
    for name in found:
        events = recorded[name]
        assert isinstance(found[name], list), f"{name}: {found[name]}"
        _, share = LOWER.get(name.split()[0], ("", 0))
        here, there = peak(found[name]), peak(events)
        if not there * (1 - share) <= here <= there + _FEW:
            off[name] = here, there
    assert not off


def as_recorded(name):
    """Events, and not just peaks, are the recorded ones."""
    if name.endswith("channels last") and name.split()[0] in UNEQUAL_LAYOUT.split():
        return False
    return not any(f"{name} ".startswith(f"{other} ") for other in UNEQUAL)


def test_every_module_of_torch_nn_is_recorded_or_said_not_to_be(forked):
    assert forked(missing) == []


def missing():
    from tests.kernels import simulate

    return sorted(simulate.module_cases.missing())
