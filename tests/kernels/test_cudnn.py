"""What cuDNN takes, held against what the library itself asked for."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.kernels import convolution
from memcalc.kernels.attention import cudnn as cudnn_attention
from memcalc.kernels.formulas import KernelCall, scratch, uncounted
from memcalc.kernels.target import Target

ROOT = pathlib.Path(__file__).parent.parent.parent
RECORDINGS = sorted((ROOT / "evidence" / "standin" / "cudnn").glob("attention-*.json"))


def target(capability=(9, 0), torch=(2, 13), **changes):
    return Target(
        capability=capability,
        multiprocessors=132,
        torch=torch,
        **changes,
    )


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem)
def recorded(request):
    found = json.loads(request.param.read_text())
    capability = tuple(map(int, found["capability"].split(".")))
    torch = tuple(map(int, found["torch"][0].split(".")))
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return target(capability, torch), rows


def test_every_recorded_attention_takes_what_the_formulas_say(recorded):
    gpu, rows = recorded
    assert len(rows) >= 80
    for row in rows:
        query = (row["batch"], row["heads"], row["q_len"], row["head_dim"])
        key = (row["batch"], row["kv_heads"], row["k_len"], row["head_dim"])
        script = cudnn_attention.backward(query, key, row["value_dim"], 0, gpu)
        assert script == (row["backward"], ~0), row
        assert sum(size for size in cudnn_attention.forward(gpu) if size > 0) == row["forward"]


def test_recordings_hold_grouped_heads_masks_and_sequences_around_the_switch():
    rows = [row for path in RECORDINGS for row in json.loads(path.read_text())["rows"]]
    columns = json.loads(RECORDINGS[0].read_text())["columns"]
    values = {name: {row[columns.index(name)] for row in rows} for name in columns}
    assert {127, 128, 129} <= values["q_len"] & values["k_len"]
    assert {None, "float", "bool"} == values["mask"]
    assert {True, False} == values["causal"]
    assert {"float16", "bfloat16"} == values["dtype"]
    assert any(row[columns.index("heads")] != row[columns.index("kv_heads")] for row in rows)


sizes = st.integers(1, 300)


@given(sizes, sizes, sizes, sizes, st.sampled_from([(8, 0), (9, 0), (10, 0), (12, 0)]))
def test_attention_never_takes_less_than_its_row_sums_and_one_accumulator(b, h, s, d, capability):
    script = cudnn_attention.backward(
        (b, h, s, 8 * d), (b, h, s, 8 * d), 8 * d, 0, target(capability)
    )
    assert script[0] >= 4 * b * h * s * (8 * d + 1)


def test_a_strided_gradient_is_copied_before_the_workspace_and_freed_after_it():
    script = cudnn_attention.backward((1, 2, 64, 64), (1, 2, 64, 64), 64, 16384, target())
    assert script == (16384, 4 * 2 * 64 * 65 + 256, ~1, ~0)


PATCHES = ((3, 224, 224), (768, 3, 16, 16), (16, 16, 0, 0, 1, 1), 1, 2)


def call(direction, batch, problem=PATCHES):
    image, *rest = problem
    return KernelCall("convolution", (direction, (batch, *image), *rest))


def test_a_recorded_convolution_is_the_inputs_and_outputs_in_rows_of_eight_channels():
    # Patches of ViT in bf16 on Hopper: image and weight with 3 channels padded to 8, the output.
    image, weight, output = 32 * 8 * 224 * 224 * 2, 768 * 8 * 16 * 16 * 2, 32 * 768 * 14 * 14 * 2
    assert scratch(call(0, 32), target()).after == (image + weight + output + 16, ~0)


def test_a_convolution_that_nobody_knows_is_said_to_be_uncounted(monkeypatch):
    monkeypatch.setattr(convolution.cudnn, "workspace", lambda *_: None)
    assert uncounted([call(0, 32)], target()) == ()
    odd = KernelCall("convolution", (0,))
    assert uncounted([odd], target()) == (convolution.UNKNOWN,)
    assert scratch(odd, target()).after == ()
    assert uncounted([odd], target(cudnn=False)) == ()


def test_the_table_of_convolutions_says_where_it_comes_from():
    files = sorted((ROOT / "configs" / convolution.FOLDER).glob("*/*.json"))
    data = [(file, json.loads(file.read_text())) for file in files]
    entries = [(file, entry) for file, one in data for entry in one.get("recorded", (one,))]
    assert len(entries) > len(files) > 3 * len(convolution.capabilities()) >= 21
    for file, entry in entries:
        assert entry["capability"] == file.parent.name
        assert f"{file.stem}." in f"{entry['cudnn']}, 9.20.0"
        assert entry["how"]
        for problem, batches in entry["problems"].items():
            assert json.loads(problem)[4] in range(len(convolution.DTYPES))
            for taken in batches.values():
                assert [size >= 0 for size in taken] == [True] * 3


@pytest.mark.parametrize("torch", [(2, 11), (2, 13)])
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0)])
def test_layers_of_nets_that_people_train_are_in_the_table(capability, torch, monkeypatch):
    monkeypatch.setattr(convolution.cudnn, "workspace", lambda *_: None)
    once = ((3, 3), (1, 1, 1, 1, 1, 1))
    vgg, resnet, densenet = ((64, 224, 64), (64, 56, 64), (128, 28, 32))
    for channels, side, out in (vgg, resnet, densenet):
        problem = (channels, side, side), (out, channels, *once[0]), once[1], 1
        for dtype in (0, 1):
            for batch in (8, 16, 32, 64, 128):
                calls = [call(way, batch, (*problem, dtype)) for way in (0, 1, 2)]
                assert uncounted(calls, target(capability, torch)) == ()


@pytest.mark.parametrize(
    ("capability", "least"), [((7, 5), 10_000), ((8, 0), 1000), ((9, 0), 20_000)]
)
def test_what_a_newer_library_plans_otherwise_is_told_by_differences(capability, least):
    before, now = (convolution.recorded(capability, torch) for torch in ((2, 13), (2, 15)))
    assert before.keys() == now.keys()
    pairs = [(before[name], now[name]) for name in before]
    assert all(one.keys() == other.keys() for one, other in pairs)
    assert sum(one[at] != other[at] for one, other in pairs for at in one) > least
    between = convolution.recorded(capability, (2, 14))
    assert sum(between[name] != now[name] for name in now) < len(now) / 2
    assert convolution.nearest((2, 16), capability) == (2, 15)
