"""Sends live objects to the engine's process: code by value, large tensors by shape."""

import ast
import contextlib
import functools
import io
import linecache
import sys
import textwrap
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from memcalc.errors import EstimateError

_SMALL = 1 << 20
"""Elements of the largest tensor that travels with its values."""


def dump(what: str, value: Any) -> bytes:
    """Return a pickled value for a process over the stub driver; large tensors lose their values.

    Raises:
        EstimateError: it cannot be sent.
    """
    try:
        import cloudpickle
    except ImportError:
        raise EstimateError(
            "Live objects are sent to another process by cloudpickle: type pip install cloudpickle."
        ) from None

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            is_plain = type(obj) in (torch.Tensor, torch.nn.Parameter)
            if is_plain and obj.layout is torch.strided and (obj.numel() > _SMALL or obj.is_cuda):
                kind = str(obj.device), obj.requires_grad, isinstance(obj, torch.nn.Parameter)
                return _make_tensor, (tuple(obj.shape), obj.stride(), obj.dtype, *kind)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    try:
        Pickler(buffer).dump(value)
    except Exception as error:
        raise EstimateError(
            f"{what} cannot be sent to the process of the simulation ({error}): make it inside of "
            "what is simulated, or type memcalc simulate -- python train.py."
        ) from None
    return buffer.getvalue()


def _make_tensor(
    shape: Any, stride: Any, dtype: Any, device: str, requires_grad: bool, is_parameter: bool
) -> torch.Tensor:
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)


# ---- the body of a ``with``


def _run_source(source: str, file: str, line: int, names: dict[str, Any]) -> None:
    tree = ast.increment_lineno(ast.parse(source), line - 1)
    exec(compile(tree, file, "exec"), {"__name__": "__main__", **names})


def body_at(frame: FrameType) -> Callable[[], None]:
    """Return the body of the ``with`` that a frame is entering, as a picklable function.

    Raises:
        EstimateError: its source is not known, or it cannot be taken elsewhere.
    """
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = "".join(linecache.getlines(file, frame.f_globals))
    found: list[ast.With] = []
    with contextlib.suppress(SyntaxError):
        withs = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.With))
        found = [one for one in withs if one.lineno <= line <= one.body[0].lineno]
    if not found:
        raise EstimateError(
            "memcalc.simulate() reads the source of its block, and there is none here: put the "
            "code in a file."
        )
    block = max(found, key=lambda one: one.lineno)
    lines = text.splitlines(keepends=True)
    first, last = block.body[0], block.body[-1]
    if first.lineno == block.lineno:
        source = _cut_source(lines, first, last)
    else:
        source = textwrap.dedent("".join(lines[first.lineno - 1 : last.end_lineno]))
    try:
        code = compile(source, file, "exec")
    except SyntaxError:
        raise EstimateError(
            "The block of memcalc.simulate() leaves it by return, break or await: put that behind "
            "the block."
        ) from None
    held = {**frame.f_globals, **frame.f_locals}
    names = {name: held[name] for name in _find_names(code) if name in held}
    for name, value in names.items():
        dump(name, value)
    return functools.partial(_run_source, source, file, first.lineno, names)


def _cut_source(lines: list[str], first: ast.stmt, last: ast.stmt) -> str:
    """Return the source of statements that begin on the same line as their ``with``."""
    assert last.end_lineno is not None
    text = "".join(lines[first.lineno - 1 : last.end_lineno]).encode()
    tail = len(lines[last.end_lineno - 1].encode()) - (last.end_col_offset or 0)
    return text[first.col_offset : len(text) - tail].decode()


def _find_names(code: CodeType) -> set[str]:
    found = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _find_names(constant)
    return found


class Skipped(BaseException):
    """Signal to leave a ``with``, because its body ran in another process."""


_STORES = ("STORE_", "POP_TOP", "NOP", "RESUME", "CACHE")


def skip(frame: FrameType) -> Callable[[], None]:
    """Skip the body of the ``with`` that a frame is entering, by a trace function.

    Returns:
        To be called when it has been left: whoever traced before traces again.
    """
    import dis

    before = sys.gettrace()
    was = frame.f_trace, frame.f_trace_opcodes
    names = {one.offset: one.opname for one in dis.get_instructions(frame.f_code)}

    def trace(at: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and not names.get(at.f_lasti, "").startswith(_STORES):
            raise Skipped
        return trace

    def undo() -> None:
        frame.f_trace, frame.f_trace_opcodes = was
        sys.settrace(before)

    sys.settrace(lambda *_: None)
    frame.f_trace, frame.f_trace_opcodes = trace, True
    return undo
