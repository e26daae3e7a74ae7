r"""Record what cuDNN takes, as PyTorch asks the allocator for it: attention and convolutions.

On a GPU, or over a stand-in driver with a cuDNN that plans for a device it is told of
(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, "deviceless ahead-of-time compilation").

    python benchmarks/record_cudnn.py problems MODEL... > problems.json      (needs no GPU)
    python benchmarks/record_cudnn.py convolutions problems.json out.json
    python benchmarks/record_cudnn.py ask problems.json 8.0 108 out.json [1,2,4]  (needs no GPU)
    MEMCALC_CUDNN=FOLDER:FOLDER python benchmarks/record_cudnn.py changed configs/convolutions 9.0 \
        132 9.20                                       (those of another PyTorch's wheel; no GPU)
    python benchmarks/record_cudnn.py attention out.json
    python benchmarks/record_cudnn.py join configs/convolutions out.json...
"""

import functools
import itertools
import json
import os
import pathlib
import random
import sys

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
COMMON_BATCHES = (8, 16, 32, 64, 128)
COLUMNS = (
    *("batch", "heads", "kv_heads", "q_len", "k_len", "head_dim", "value_dim"),
    *("dtype", "causal", "mask", "layout", "forward", "backward"),
)


def problems(models: list[str]) -> list:
    """Sizes, but for batch and type, of every convolution in these models.

    A model is a bundled name, or package:name@224 for one of pictures of that size: of torchvision,
    timm or ultralytics, or a callable of a module; with @224@last its channels lie last, as with
    ``model.to(memory_format=torch.channels_last)``. One of volumes or videos has @4x128x128x128,
    channels first (``volume_models``).
    """
    seen: dict[str, None] = {}
    for model in models:
        package, _, named = model.partition(":")
        seen |= dict.fromkeys(_of_pictures(package, named) if named else _bundled(model))
    return [json.loads(text) for text in seen]


def _bundled(name: str) -> list[str]:
    from memcalc.estimation.tracing import Desk
    from memcalc.kernels import convolution
    from memcalc.trace.scratch.kernels import TargetKernelMemory

    from memcalc.records.plan import Plan

    seen, transient = [], TargetKernelMemory.transient

    def logged(self, call):
        if call.name == "convolution" and len(call.args) == 6:
            (_, *image), weight, moves, groups, _ = call.args[1:]
            seen.append(convolution.text((image, weight, moves, groups)))
        elif call.name == "convolution" and len(call.args) == 7:
            (_, *image), weight, moves, groups, _, last = call.args[1:]
            seen.append(convolution.text((image, weight, moves, groups, last)))
        return transient(self, call)

    TargetKernelMemory.transient = logged
    Desk().estimate(Plan(model=name, batch=2, gpu="H100 SXM"))
    TargetKernelMemory.transient = transient
    return seen


def _of_pictures(package: str, named: str) -> list[str]:
    import torch
    from memcalc.kernels import convolution
    from memcalc.trace.operators.convolution import _layout as layout
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Logged(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.convolution.default:
                x, weight, _, *moves, transposed, _, groups = args
                axes = x.dim() - 2
                if axes == 3 or (axes == 2 and not transposed):
                    moves = [n for some in moves for n in (some * axes)[:axes]]
                    # A transposed one is the gradient of another's input.
                    image = out if transposed else x
                    problem = (list(image.shape[1:]), list(weight.shape), moves, groups)
                    rows = layout(x, weight) is torch.contiguous_format
                    seen.append(convolution.text((*problem, *(() if rows else (True,)))))
            return out

    name, size, *last = named.split("@")
    with torch.device("meta"):
        sides = [int(side) for side in size.split("x")] if "x" in size else [3, *[int(size)] * 2]
        model = _built(package, name, sides)
        pictures = torch.empty(2, *sides)
    if last:
        layout_last = torch.channels_last if len(sides) == 3 else torch.channels_last_3d
        model, pictures = (one.to(memory_format=layout_last) for one in (model, pictures))
    with Logged(), torch.no_grad():
        model(pictures)
    return seen


def _built(package: str, name: str, sides: list[int]):
    import importlib

    import torch

    if package in ("torchvision", "timm"):
        _without_operators()
    if package == "torchvision":
        import torchvision

        options = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
        with torch.device("cpu"):  # some read numbers as they are built
            return torchvision.models.get_model(name, weights=None, **options).to("meta")
    if package == "timm":
        import timm

        return timm.create_model(name)
    if package == "ultralytics":
        from ultralytics.nn.tasks import DetectionModel

        with torch.device("cpu"):
            return DetectionModel(f"{name}.yaml", verbose=False).train().to("meta")
    build = getattr(importlib.import_module(package), name)
    if package == "volume_models":
        with torch.device("cpu"):
            return build(sides).to("meta")
    return build()


def _without_operators() -> None:
    """Let torchvision be imported where its wheel is for another build of PyTorch.

    That lacks its operators (boxes), which no classifier runs.
    """
    import torch

    for name in ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"):
        if not hasattr(torch.ops.torchvision, name):
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{name}(Tensor x) -> Tensor")
            _KEPT.append(library)


_KEPT: list = []
"""Libraries go with their last reference."""


def asked(
    wanted: list, capability: str, multiprocessors: int, batches: tuple = COMMON_BATCHES
) -> dict:
    """What the installed library says, without a GPU and without PyTorch."""
    from memcalc.kernels import cudnn
    from memcalc.kernels.convolution import Direction, text
    from memcalc.kernels.target import Target

    major, minor = map(int, capability.split("."))
    torch = next(filter(cudnn.answers_for, cudnn.BROUGHT))
    target = Target(capability=(major, minor), multiprocessors=multiprocessors, torch=torch)
    found: dict[str, dict[int, list[int]]] = {}
    for problem, dtype in itertools.product(wanted, (0, 1, 2)):
        if major < 8 and dtype == 2:
            continue
        image, weight, moves, groups, *last = problem
        rest = (tuple(weight), tuple(moves), groups, dtype, *last)
        known = found.setdefault(text((*problem[:4], dtype, *last)), {})
        for batch in batches:
            sizes = [cudnn.workspace(way, ((batch, *image), *rest), target) for way in Direction]
            if None not in sizes:
                known[batch] = sizes
    return {
        "capability": capability,
        "cudnn": cudnn.version(),
        "how": "the library asked without a device",
        "problems": found,
    }


def taken(run) -> tuple[object, int]:
    """What a call returns, and the bytes that it took and gave back at once."""
    import torch

    memory = torch.cuda.memory
    memory._record_memory_history(enabled=None)
    memory._record_memory_history(max_entries=1000, context=None)
    before = len(memory._snapshot()["device_traces"][0])
    result = run()
    events = memory._snapshot()["device_traces"][0][before:]
    events = [e for e in events if e["action"] in ("alloc", "free_requested")]
    pairs = [
        first["size"]
        for first, second in itertools.pairwise(events)
        if (first["action"], second["action"]) == ("alloc", "free_requested")
        and first["addr"] == second["addr"]
    ]
    return result, pairs[-1] if pairs else 0


def environment() -> dict:
    import torch

    major, minor = torch.cuda.get_device_capability()
    number = torch.backends.cudnn.version()
    return {
        "capability": f"{major}.{minor}",
        "cudnn": f"{number // 10000}.{number // 100 % 100}.{number % 100}",
        "how": os.environ.get("STANDIN_CUDNN", "on a GPU"),
    }


def convolution(problem: list, batch: int) -> list[int]:
    """The workspaces of output, gradient of the input and gradient of the weight."""
    import torch
    from memcalc.kernels.convolution import DTYPES

    image, weight, moves, groups, dtype = problem
    make = {"device": "cuda", "dtype": getattr(torch, DTYPES[dtype])}
    x, w = torch.empty(batch, *image, **make), torch.empty(weight, **make)
    stride, padding, dilation = moves[:2], moves[2:4], moves[4:]
    options = (stride, padding, dilation, False, [0, 0], groups)
    y, output = taken(lambda: torch.ops.aten.convolution(x, w, None, *options))
    sizes = [output]
    for mask in ([True, False, False], [False, True, False]):
        arguments = (y, x, w, None, *options, mask)
        run = functools.partial(torch.ops.aten.convolution_backward, *arguments)
        sizes.append(taken(run)[1])
    return sizes


def convolutions(wanted: list) -> dict:
    from memcalc.kernels.convolution import text

    found: dict[str, dict[int, list[int]]] = {}
    old = float(environment()["capability"]) < 8
    for problem, dtype in itertools.product(wanted, (0, 1, 2)):
        if old and dtype == 2:
            continue
        known = found.setdefault(text((*problem, dtype)), {})
        for batch in BATCHES:
            try:
                known[batch] = convolution([*problem, dtype], batch)
            except RuntimeError as error:  # no engine takes it
                print(problem, dtype, batch, str(error)[:80], file=sys.stderr)
    return {**environment(), "problems": found}


def cases(seed: int, count: int):
    """Calls of attention: short, long and odd sequences, grouped heads, masks, layouts."""
    draw = random.Random(seed)
    for length in (16, 64, 127, 128, 129, 160, 512, 1024, 4096):
        yield 1, 2, 2, length, 512, 64, 64, "bfloat16", False, None, "bshd"
        yield 1, 2, 2, 512, length, 64, 64, "bfloat16", False, None, "bshd"
        yield 2, 8, 2, length, length, 128, 128, "bfloat16", True, None, "bshd"
    for _ in range(count):
        heads = draw.choice((1, 2, 3, 4, 8, 12, 14, 32))
        grouped = draw.choice([n for n in range(1, heads + 1) if heads % n == 0])
        q_len = draw.choice((draw.randint(2, 1200), draw.choice((77, 197, 257, 577, 1500, 2048))))
        square = draw.random() < 0.7
        head = 8 * draw.randint(1, 16)
        yield (
            draw.randint(1, 6),
            heads,
            draw.choice((heads, grouped)),
            q_len,
            q_len if square else draw.randint(2, 2000),
            head,
            head if draw.random() < 0.8 else 8 * draw.randint(1, 16),
            draw.choice(("bfloat16", "float16")),
            square and draw.random() < 0.5,
            draw.choice((None, None, "float", "bool")),
            draw.choice(("bshd", "bshd", "bhsd")),
        )


def attention(case) -> list:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch, heads, kv_heads, q_len, k_len, head, value, dtype, causal, masked, layout = case

    def make(number: int, length: int, width: int):
        shape = (batch, number, length, width)
        if layout == "bshd":
            shape = (batch, length, number, width)
        made = torch.empty(shape, device="cuda", dtype=getattr(torch, dtype), requires_grad=True)
        return made.transpose(1, 2) if layout == "bshd" else made

    q, k, v = make(heads, q_len, head), make(kv_heads, k_len, head), make(kv_heads, k_len, value)
    mask = None
    if masked:
        kind = torch.bool if masked == "bool" else q.dtype
        mask = torch.empty(batch, 1, q_len, k_len, device="cuda", dtype=kind)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        out, forward = taken(
            lambda: scaled_dot_product_attention(
                q, k, v, mask, is_causal=causal, enable_gqa=kv_heads != heads
            )
        )
        grad = torch.empty_like(out)
        _, backward = taken(lambda: torch.autograd.grad(out, (q, k, v), grad))
    return [*case, forward, backward]


def main(arguments: list[str]) -> None:
    command, *rest = arguments
    if command == "problems":
        print(json.dumps(problems(rest)))
    elif command == "convolutions":
        found = convolutions(json.loads(pathlib.Path(rest[0]).read_text()))
        pathlib.Path(rest[1]).write_text(json.dumps(found))
    elif command == "ask":
        batches = tuple(map(int, rest[4].split(","))) if len(rest) > 4 else COMMON_BATCHES
        wanted = json.loads(pathlib.Path(rest[0]).read_text())
        found = asked(wanted, rest[1], int(rest[2]), batches)
        pathlib.Path(rest[3]).write_text(json.dumps(found))
    elif command == "changed":
        changed(pathlib.Path(rest[0]), rest[1], int(rest[2]), rest[3])
    elif command == "attention":
        rows = ",\n".join(json.dumps(attention(case)) for case in cases(1, 60))
        head = json.dumps({**environment(), "columns": COLUMNS})[:-1]
        pathlib.Path(rest[0]).write_text(f'{head}, "rows": [\n{rows}\n]}}\n')
    elif command == "join":
        for name in rest[1:]:
            join(pathlib.Path(rest[0]), json.loads(pathlib.Path(name).read_text()))
    sys.stdout.flush()
    os._exit(0)


def join(folder: pathlib.Path, new: dict) -> None:
    """Add what is not known yet to the file of its capability and cuDNN; each problem is a line.

    Raises:
        SystemExit: it says something else than what is known.
    """
    path = _path(folder, new)
    entries = json.loads(path.read_text())["recorded"] if path.exists() else []
    for entry in entries:
        for problem, sizes in entry["problems"].items():
            more = new["problems"].get(problem, {})
            for batch, taken in sizes.items():
                if batch in more and more.pop(batch) != taken:
                    raise SystemExit(f"{path}: {problem} at batch {batch} is another")
    new["problems"] = {name: sizes for name, sizes in new["problems"].items() if sizes}
    entries = [*entries, new] if new["problems"] else entries
    blocks = ",\n".join(map(_block, entries))
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"recorded": [\n{blocks}\n]}}\n')


def changed(folder: pathlib.Path, capability: str, multiprocessors: int, since: str) -> None:
    """Ask the library all that is recorded, and write down what it plans otherwise.

    Args:
        folder: configs/convolutions.
        capability: of the GPU.
        multiprocessors: those that it has.
        since: the cuDNN that was recorded whole.
    """
    from memcalc.kernels import convolution, cudnn
    from memcalc.kernels.target import Target

    major, minor = map(int, capability.split("."))
    torch = next(filter(cudnn.answers_for, cudnn.BROUGHT))
    target = Target(capability=(major, minor), multiprocessors=multiprocessors, torch=torch)
    found: dict[str, dict[str, list]] = {}
    before = convolution.of_library((major, minor), int(since.split(".")[1]))
    for name, by_batch in before.items():
        image, *rest = json.loads(name)
        rest = [tuple(one) if isinstance(one, list) else one for one in rest]
        for batch, known in by_batch.items():
            problem = ((int(batch), *image), *rest)
            sizes = [cudnn.workspace(way, problem, target) for way in convolution.Direction]
            if None in sizes:
                raise SystemExit(f"{name} at batch {batch}: the library has no answer")
            if sizes != known:
                found.setdefault(name, {})[batch] = sizes
    new = {
        "capability": capability,
        "cudnn": cudnn.version(),
        "since": since,
        "how": "the library asked without a device",
        "problems": found,
    }
    _path(folder, new).write_text(f"{_block(new)}\n")


def _path(folder: pathlib.Path, entry: dict) -> pathlib.Path:
    library = ".".join(entry["cudnn"].split(".")[:2])
    return folder / entry["capability"] / f"{library}.json"


def _block(entry: dict) -> str:
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(sizes, separators=(',', ':'))}"
        for name, sizes in entry["problems"].items()
    )
    head = json.dumps({key: value for key, value in entry.items() if key != "problems"})
    return f'{head[:-1]}, "problems": {{\n{lines}\n}}}}'


if __name__ == "__main__":
    main(sys.argv[1:])
