"""What is kept of a call makes the same again: events, sizes, layouts and which memory is shown."""


def ran_as_kept(recorder, name):
    """What the operator of this name makes is among what is kept."""
    number = next(o.number for o in recorder._operators.values() if o.name == name)
    return any(number in (key[0], ~key[0]) for key in recorder._outcomes)


def program():
    """What two rounds of many kinds of calls make, with and without anything kept."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from memcalc.kernels.target import Target
    from memcalc.trace import device, outcomes
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder
    from memcalc.trace.scratch.kernels import TargetKernelMemory

    device.use("cuda")
    overrides.install()
    on = device.NAME
    target = Target(capability=(9, 0), multiprocessors=132, torch=(2, 13))

    def calls(weight, seen):
        x = torch.randn(4, 6, 8, device=on)
        pieces = x.chunk(3, dim=1)
        views = x.transpose(0, 1), x[1:, ::2], x.view(24, 8), x.unsqueeze(0), x.expand(4, 6, 8)
        product = torch.mm(x.view(24, 8), weight)
        buffer = torch.empty(24, 8, device=on)
        torch.mm(x.view(24, 8), weight, out=buffer)
        x.add_(1.0).mul_(0.5)
        x.unsqueeze_(0).squeeze_(0)
        x.t_() if x.dim() == 2 else None
        grown = torch.empty(2, device=on).resize_(64)
        dropped = F.dropout(x, 0.1)
        several = torch._foreach_mul([x, product], [0.1 + len(seen), 2.0])
        torch._foreach_add_(several, 1.0)
        chosen = x.topk(2, dim=-1).indices
        masked = x[x > 0]
        taken = weight[torch.zeros(3, dtype=torch.long, device=on)]
        strange = torch.view_as_complex(torch.randn(3, 2, device=on)).conj().imag
        halves = x.to(torch.bfloat16), x.to(torch.float32), x.bool().sum(), x.double().mean()
        strided = x.as_strided((2, 2), (1, 2), 1)
        last = F.layer_norm(x, (8,)), F.softmax(x, -1), F.pad(x, (1, 1)), x.flatten().split(7)
        found = (
            *pieces, *views, product, buffer, x, grown, dropped, *several, chosen, masked, taken,
            strange, *halves, strided, *last[:3], *last[3],
        )  # fmt: skip
        q = torch.zeros(2, 4, 16, 8, dtype=torch.bfloat16, device=on)
        seen.append(torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)[4:6])
        own = {x.untyped_storage()._cdata: "x"}
        for tensor in found:
            shown = own.get(tensor.untyped_storage()._cdata, "")
            layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
            seen.append((layout, str(tensor.dtype), shown, tensor.untyped_storage().nbytes()))
        return last[0]

    def ran(most):
        outcomes.MOST = most
        seen = []
        with device.fake_mode(), TraceRecorder(TargetKernelMemory(target)) as recorder:
            weight = torch.zeros(8, 8, device=on, requires_grad=True)
            model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))).to(on)
            for _ in range(3):
                with torch.no_grad():
                    calls(weight.detach(), seen)
                (model(torch.randn(5, 8, device=on)) @ weight + weight.sum()).sum().backward()
        kept = len(recorder._outcomes)
        assert most == 0 or ran_as_kept(recorder, "_scaled_dot_product_flash_attention")
        storages = [(entry.bytes, entry.op, entry.dtype) for entry in recorder.ledger.entries]
        return kept, seen, storages, list(recorder.ledger.events), recorder.operations.of_step(0)

    first, later = ran(1 << 15), ran(1 << 15)
    assert later[0] >= first[0] > 50
    outcomes.outcomes(with_kernels=True).clear()
    without = ran(0)
    assert without[0] == 0
    return [
        len(without[1]),
        *(a == b for run in (first, later) for a, b in zip(run[1:], without[1:], strict=True)),
    ]


def test_what_is_kept_makes_the_same_again(forked):
    """In the run that it was learnt in, and in a later one of the process."""
    calls, *alike = forked(program)
    assert calls > 90
    assert alike == [True] * 8


def inference():
    """Tensors of inference mode and others do not stand for each other."""
    import torch

    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder

    device.use("cuda")
    overrides.install()
    with device.fake_mode(), TraceRecorder(None):
        x = torch.zeros(4, 4, device=device.NAME)
        made = []
        for _ in range(2):
            made.append((x * 2).is_inference())
            with torch.inference_mode():
                y = x * 2
                made.append(y.is_inference())
                made.append(y.view(16).is_inference())
                made.append(x.view(16).is_inference())
        x.requires_grad_()
        x.view(16).sum().backward()
    return made


def test_inference_mode_keeps_its_own_tensors(forked):
    assert forked(inference) == [False, True, True, False] * 2
