"""A function in another's place is found by whoever keeps that other in a table."""


def kept_before_and_after():
    import torch

    table = {torch.nn.functional.linear: "before"}
    from memcalc.trace.operators import patches

    original = torch.nn.functional.linear
    patches.install_once()
    replaced = torch.nn.functional.linear
    after = {replaced: "after"}
    said = []

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            said.append(table.get(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    weight = torch.ones(3, 2).as_subclass(Own)
    out = replaced(torch.ones(1, 2), weight, torch.ones(3))
    found = [replaced is not original, table.get(replaced), after.get(original)]
    return [*found, said, out.flatten().tolist()]


def test_a_table_of_functions_made_before_finds_the_one_in_its_place(forked):
    replaced, before, after, said, out = forked(kept_before_and_after)
    assert replaced
    assert (before, after) == ("before", "after")
    assert said[0] == "before"
    assert out == [3.0, 3.0, 3.0]


def happened(kind):
    """What a run on the simulated GPU makes and frees: bytes, and the complement of its birth."""
    import torch

    from memcalc.kernels.target import Target
    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder
    from memcalc.trace.scratch.kernels import TargetKernelMemory

    device.use("cuda")
    overrides.install()
    target = Target(capability=(9, 0), multiprocessors=132, torch=(2, 13))
    recorder = TraceRecorder(TargetKernelMemory(target))
    with device.fake_mode(), recorder, torch.no_grad():
        given = torch.zeros(64, 32, device=device.NAME, dtype=torch.bfloat16).T
        layer = torch.nn.Linear(8, 16, bias=False, device=device.NAME, dtype=torch.bfloat16)
        # As a forward does that is called again: the weight is in use.
        seen = layer.weight.view(-1)
        begin = len(recorder.ledger.events)
        if kind == "cast":
            made = [layer.to(torch.float32), layer.weight.dtype]
        else:
            made = torch.softmax(given, -1, torch.float32)
        events = recorder.ledger.events[begin:]
        del made, seen
    ledger, born = recorder.ledger, {}
    found = []
    for event in events:
        if event >= 0:
            born[event] = len(born)
            found.append(ledger.entries[event].bytes)
        elif ~event in born:
            found.append(~born[~event])
    return found


def test_shares_of_what_does_not_lie_in_rows_are_made_of_a_copy(forked):
    size = 64 * 32 * 4
    # The numbers in fp32, their shares, and the copy.
    assert forked(happened, "softmax") == [size, size, size, ~2, ~0]


def test_a_module_in_use_is_cast_as_on_a_gpu(forked):
    assert forked(happened, "cast") == [8 * 16 * 4]
