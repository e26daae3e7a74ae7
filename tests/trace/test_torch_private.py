"""Private names of PyTorch stand in one place, and one that means something else is noticed."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

import memcalc.trace
from memcalc.catalog import plan as plans
from memcalc.estimation.question import resolve

CODE = """
import itertools, json, os, sys
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn.utils import clip_grad
from torch.optim import optimizer
from transformers.utils import import_utils

clears, chooses, is_fake = (
    torch.clear_autocast_cache, clip_grad._has_foreach_support, import_utils.is_fake_tensor
)

from memcalc.errors import EstimateError
from memcalc.trace import device, engine, ledger, modules, recorder, self_check
from memcalc.trace.operators import attention, autocast, overrides
from memcalc.trace.torch_private import dispatch, names
from memcalc.trace.torch_private import engine as private_engine

device.use("cuda")
autocast.install()
overrides.install()

numbers = itertools.count(1)
BREAKS = {
    "nothing": (self_check, "F", self_check.F),
    "how often a storage is used": (engine, "is_owned_once", lambda _: False),
    "that a storage is used by others": (engine, "is_owned_once", lambda _: True),
    "who holds a gradient": (engine, "is_held_by_engine_alone", lambda _: False),
    "that a program holds a gradient": (engine, "is_held_by_engine_alone", lambda _: True),
    "which frames are wrappers": (private_engine, "_WRAPPERS", ("elsewhere.py",)),
    "who calls the dispatch mode": (engine, "called_from_engine", lambda _: True),
    "what names a storage": (ledger, "named", lambda _: next(numbers)),
    "how clipping chooses": (clip_grad, "_has_foreach_support", chooses),
    "when casts are forgotten": (torch, "clear_autocast_cache", clears),
    "who routes attention": (attention, "install", lambda _: attention._libraries.clear()),
    "how nodes are numbered": (modules, "next_node_number", lambda: 0),
    "how transformers knows a fake tensor": (import_utils, "is_fake_tensor", is_fake),
}

def outcome():
    self_check._checked.clear()
    try:
        return list(self_check.run())
    except EstimateError as error:
        return str(error)

found = {}
for name, (owner, attribute, broken) in BREAKS.items():
    with patch.object(owner, attribute, broken):
        found[name] = outcome()
optimizer._foreach_supported_types.remove(dispatch.FakeTensor)
found["which tensors are taken by foreach"] = outcome()
optimizer._foreach_supported_types.append(dispatch.FakeTensor)
with patch.object(self_check, "NEWEST_TORCH", (2, 1)):
    found["everything is whole again"] = outcome()
with device.fake_mode(), recorder.TraceRecorder(None) as seen:
    pair = torch.empty(4, device="simgpu"), torch.empty(4, device="simgpu", dtype=torch.bfloat16)
    with torch.autocast("simgpu", torch.bfloat16):
        torch.cat(pair)
    found["cat"] = [entry.op for entry in seen.ledger.entries]
device.use("cpu")
with patch.object(private_engine, "_ENGINE", "_renamed"):
    found["who runs the engine on a CPU"] = outcome()
found["a CPU's run"] = outcome()
for path in ("torch._C:_gone", "torch._gone:name"):
    try:
        names.ask(path)
    except EstimateError as error:
        found[path] = str(error)
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def found(shared):
    """What each break led to; found once for all workers."""
    path = shared / "breaks.json"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            command = [sys.executable, "-c", CODE]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.stdout, done.stderr
            path.write_text(done.stdout)
    return json.loads(path.read_text())


@pytest.mark.parametrize("case", ["nothing", "everything is whole again", "a CPU's run"])
def test_a_pytorch_that_was_read_passes(found, case):
    assert found[case] == []


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        ("how often a storage is used", "autograd adds gradients in place"),
        ("that a storage is used by others", "only where nobody else holds it"),
        ("who holds a gradient", "autograd adds gradients in place"),
        ("that a program holds a gradient", "only where nobody else holds it"),
        ("which frames are wrappers", "autograd adds gradients in place"),
        ("who calls the dispatch mode", "only where nobody else holds it"),
        ("who runs the engine on a CPU", "autograd adds gradients in place"),
        ("what names a storage", "a storage is seen to live"),
        ("how clipping chooses", "choose foreach"),
        ("which tensors are taken by foreach", "choose foreach"),
        ("when casts are forgotten", "each weight once"),
        ("who routes attention", "attention takes the kernel"),
    ],
)
def test_what_would_make_sizes_wrong_ends_in_an_error(found, broken, noticed):
    assert noticed in found[broken]
    assert "--method analytic" in found[broken]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("how nodes are numbered", "it is not known which module"),
        ("how transformers knows a fake tensor", "transformers makes masks as for a graph"),
    ],
)
def test_what_changes_no_size_is_said(found, broken, said):
    assert len(found[broken]) == 1
    assert found[broken][0].startswith(said)


def test_a_name_that_is_gone_is_named(found):
    assert "has no torch._C._gone, which" in found["torch._C:_gone"]
    assert "has no torch._gone.name, which" in found["torch._gone:name"]


@pytest.mark.parametrize(
    ("torch", "than"), [("2.99", "newer"), ("2.4", "older"), ("2.11", None), ("2.13", None)]
)
def test_a_pytorch_newer_or_older_than_any_that_was_read_is_named(torch, than):
    _, notes = resolve(plans.make({"model": "gpt2", "torch": torch}), None)
    said = [note for note in notes if "held against" in note]
    assert said == [note for note in said if f"PyTorch {torch} is {than} than any" in note]
    assert bool(said) == (than is not None)


def test_autocast_leaves_alone_what_cudas_leaves_alone(found):
    # Seen with PyTorch 2.11 and 2.13 over the stand-in driver: no operand of cat is cast.
    assert found["cat"] == ["empty", "empty", "cat"]


FOLDER = Path(memcalc.trace.__file__).parent


def private_names(source):
    """Names of PyTorch with an underscore that a module uses; operators of ATen may have one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [node.module, *(alias.name for alias in node.names)]
            yield from (n for n in names if any(p.startswith("_") for p in n.split(".")))
        elif isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            if private and path.startswith("torch.") and not path.startswith("torch.ops"):
                yield path


def test_a_private_name_is_found():
    assert list(private_names("from torch._C import x")) == ["torch._C"]
    assert list(private_names("torch._C.x + torch.nn.Module._apply")) == [
        "torch.nn.Module._apply",
        "torch._C",
    ]


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: p.name)
def test_private_names_of_pytorch_stand_in_one_place(path):
    if path.parent.name != "torch_private":
        assert not list(private_names(path.read_text())), path
