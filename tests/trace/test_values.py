"""Values read from the simulated device agree with each other, as those of zeroed memory would."""


def reads():
    import torch

    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder

    device.use("cuda")
    overrides.install()
    recorder = TraceRecorder(None)
    with device.fake_mode(), recorder:
        on = device.NAME
        scores = torch.randn(6, 4, device=on)
        chosen = scores.topk(2, dim=1).indices
        gates = torch.zeros(6, 4, device=on).scatter(1, chosen, 1)
        assert sum(gates.long().sum(0).tolist()) == 12
        assert torch.arange(5, device=on).sum().item() == 10
        assert bool((scores >= 0).all())
        assert not scores.isnan().any()
        hit = (chosen.sum(1) >= 0).nonzero()
        assert [int(row[0]) for row in hit] == list(range(6))
        assert f"expert_{hit[3][0]}" == "expert_3"

        ids = torch.ones(2, 3, dtype=torch.long, device=on)
        assert ids.sum().item() == 6
        ids[:, -1:].zero_()
        # Written through a view: the whole holds it.
        assert ids.sum().item() == 4
        steps = torch.full((), 3.0, device=on)
        steps += 1
        assert steps.item() == 4
        assert torch.unique_consecutive(ids.sum(1)).numel() == 1
        assert ids[ids.bool()].shape == (4,)
        assert torch.multinomial(scores.softmax(1), 1).tolist() == [[0]] * 6
        other = torch.empty(0, dtype=torch.long, device=on)
        other.set_(ids.untyped_storage(), 0, (2, 3), (3, 1))
        # Of other memory nobody knows anything, until it is written to.
        assert [other.sum().item(), ids.sum().item()] == [0, 4]
        assert other.fill_(2).sum().item() == 12
        some = torch.arange(12, device=on).view(2, 2, 3)[:, :1]
        rows = torch.ops.aten._reshape_alias(some, [2, 3], [6, 1])
        assert rows.tolist() == [[0, 1, 2], [6, 7, 8]]
    return list(recorder.assumptions)


def test_what_is_read_is_what_zeroed_memory_gives(forked):
    assert any("taken to be those of zeros" in text for text in forked(reads))


def selections():
    import torch

    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder

    device.use("cuda")
    overrides.install()
    found = {}
    with device.fake_mode(), TraceRecorder(None):
        on = device.NAME
        ids = torch.cat((torch.full((2, 3), 9), torch.ones(2, 4, dtype=torch.long)), 1).to(on)
        wide = torch.zeros(2, 7, 5, device=on)
        places = (ids == 9).unsqueeze(-1).expand_as(wide)
        found["by token"] = list(wide[ids == 9].shape)
        found["expanded"] = list(wide[places].shape)
        found["selected"] = list(torch.masked_select(wide, places).shape)
        found["by the host"] = list(wide[(ids == 9).cpu()].shape)
        found["of no token"] = list(wide[ids == 8].shape)
        found["by numbers nobody wrote"] = list(wide[torch.rand(2, 7, device=on) > 0.5].shape)
        found["drawn"] = list(wide[torch.randint(2, (2, 7), device=on) == 1].shape)
        ends = ids.sum(1)
        found["listed"] = torch.tensor([0, *ends], device=on).cumsum(0).tolist()
    return found


def test_a_mask_of_known_tokens_selects_as_many_and_any_other_may_select_all(forked):
    assert forked(selections) == {
        "by token": [6, 5],
        "expanded": [30],
        "selected": [30],
        "by the host": [6, 5],
        "of no token": [14, 5],
        "by numbers nobody wrote": [14, 5],
        "drawn": [14, 5],
        "listed": [0, 31, 62],
    }


def sizes_and_truths():
    """Operators whose result, or its size, depends on values, and how often one is worked out."""
    import torch

    from memcalc.trace import device, flops, recipes
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder

    device.use("cuda")
    overrides.install()
    ran = []
    call = recipes.call

    def counted(made, *rest):
        ran.append(made)
        return call(made, *rest)

    recipes.call = counted
    recorder = TraceRecorder(None)
    found = {}
    with device.fake_mode(), recorder:
        on = device.NAME
        zeros = torch.zeros(5, dtype=torch.long, device=on)
        twice = torch.full((5,), 2, device=on)
        found["equal"] = [torch.equal(zeros, zeros + 0), torch.equal(zeros, twice)]
        found["unique"] = list(torch.unique(zeros).shape)
        found["bincount"] = list(torch.bincount(twice).shape)
        rows = torch.zeros(5, 3, device=on)
        found["repeated"] = list(torch.repeat_interleave(rows, twice, dim=0).shape)
        found["truth"] = torch.is_nonzero(zeros.sum())
        unwritten = torch.empty_like(twice)
        found["unwritten"] = [recorder._values.recipe_of(unwritten) is None, unwritten.sum().item()]
        found["on the host"] = twice.cpu().sum().item()
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            torch.zeros(4, 2, 3, device=on), torch.tensor([4, 2])
        )
        found["packed"] = [list(packed.data.shape), packed.batch_sizes.tolist()]

        total, steps = torch.zeros((), dtype=torch.long, device=on), []
        for _ in range(40):
            total = total + 1
            before = len(ran)
            assert total.item() == len(steps) + 1
            steps.append(len(ran) - before)
        found["worked out at each read"] = max(steps)

        far = torch.zeros((), dtype=torch.long, device=on)
        for _ in range(2000):
            far = far + 1
        found["far"] = far.item()

        flops._COUNTS[torch.ops.aten.mm] = lambda *_, **__: 1 / 0
        rows @ rows.T
    found["flops"] = [recorder.operations.of_step(0), *recorder.operations.said()]
    return found


def test_what_depends_on_values_is_worked_out_and_each_part_once(forked):
    found = forked(sizes_and_truths)
    assert found["equal"] == [True, False]
    assert (found["unique"], found["bincount"], found["repeated"]) == ([1], [3], [10, 3])
    assert found["truth"] is False
    # Memory of the host that nobody wrote would hold whatever was there before.
    assert found["unwritten"] == [True, 0]
    assert found["on the host"] == 10
    assert found["packed"] == [[6, 3], [2, 2, 1, 1]]
    # However long the sum is, a read adds what is new since the last.
    assert found["worked out at each read"] <= 2
    assert found["far"] == 2000


def test_a_count_of_operations_that_fails_is_said_and_ends_nothing(forked):
    known, said = forked(sizes_and_truths)["flops"]
    assert known is None
    assert said.endswith("PyTorch cannot count mm")


def routed():
    """A router's tokens over experts, one by one: what each gets, and what was assumed."""
    import torch

    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder

    device.use("cuda")
    overrides.install()
    recorder = TraceRecorder(None)
    with device.fake_mode(), recorder:
        scores = torch.randn(12, 4, device=device.NAME).softmax(-1)
        best = scores.topk(2, dim=-1).indices
        taken = torch.nn.functional.one_hot(best, 4).permute(2, 1, 0)
        hit = (taken.sum((1, 2)) > 0).nonzero()
        several = [[int(one), len(torch.where(taken[one[0]])[1])] for one in hit]
        first = torch.nn.functional.one_hot(scores.argmax(-1), 4).sum(0).tolist()
        lowest = torch.bincount(scores.min(dim=1, keepdim=True)[1].flatten()).tolist()
        groups = scores.view(12, 2, 2).amax(-1).topk(1, dim=-1).indices
        kept = torch.zeros(12, 2, dtype=torch.long, device=device.NAME).scatter(1, groups, 1)
        kept = kept.unsqueeze(-1).expand(12, 2, 2).reshape(12, 4)
        within = scores.masked_fill(kept == 0, -torch.inf).topk(1, dim=-1).indices.flatten()
        ungrouped = (kept.gather(1, within[:, None]) == 0).sum().item()
        # A vocabulary has more words than there are rows.
        said = len(recorder.said_of_values())
    with device.fake_mode(), TraceRecorder(None) as alone:
        word = torch.randn(3, 50, device=device.NAME).argmax(-1).tolist()
    return several, first, lowest, ungrouped, word, said, len(alone.said_of_values())


def test_tokens_are_shared_evenly_among_experts_that_nobody_scored(forked):
    several, first, lowest, ungrouped, word, said, without = forked(routed)
    assert several == [[0, 6], [1, 6], [2, 6], [3, 6]]
    assert first == lowest == [3, 3, 3, 3]
    assert ungrouped == 0
    assert word == [0, 0, 0]
    assert (said, without) == (1, 0)


def silences():
    """Which calls nothing follows from but by what comes out of them."""
    import torch

    import memcalc
    from memcalc.trace.reals import RealValues

    aten, values = torch.ops.aten, RealValues(lambda generator, device: (0, 0))
    with memcalc.simulate(gpu="t4"):
        wide, other = torch.randn(4, 4, device="cuda"), torch.randn(4, 4, device="cuda")
        whole = torch.randint(9, (4, 4), device="cuda")
        values.know(other, torch.ones(4, 4))
        within = other[0]

        def silent(func, *args, **kwargs):
            return values.calls_of(func).silent(args, kwargs)

        return {
            "unknown": silent(aten.mul.Tensor, wide, wide),
            "known": silent(aten.mul.Tensor, wide, other),
            "whole numbers": silent(aten.mul.Tensor, wide, whole),
            "of the host": silent(aten.mul.Tensor, wide, torch.zeros(())),
            "in a list": silent(aten.cat.default, [wide, other]),
            "written": silent(aten.add_.Tensor, wide, wide),
            "written where known": silent(aten.zero_.default, within),
            "a step": silent(aten._foreach_mul_.Scalar, [wide, wide], 2.0),
            "a step where known": silent(aten._foreach_mul_.Scalar, [wide, within], 2.0),
            "by name": silent(aten.mul.out, wide, wide, out=wide),
            "drawn": silent(aten.uniform_.default, wide),
        }


def test_nothing_is_noted_of_numbers_that_nobody_knows(forked):
    found = forked(silences)
    assert [name for name in found if found[name]] == ["unknown", "written", "a step"]


def norms():
    """Norms of gradients, which nobody knows, and what a program makes of them."""
    import torch

    from memcalc.trace import device
    from memcalc.trace.operators import overrides
    from memcalc.trace.recorder import TraceRecorder

    device.use("cuda")
    overrides.install()
    recorder = TraceRecorder(None)
    with device.fake_mode(), recorder:
        norms = torch._foreach_norm([torch.randn(3, device=device.NAME) for _ in range(4)])
        total = torch.linalg.vector_norm(torch.stack(norms))
        remembered = [recorder._values.recipe_of(norm) is not None for norm in norms]
        return [remembered, norms[0].item(), total.item(), (1 / (total + 2)).item()]


def test_norms_of_what_nobody_knows_are_zeros_like_it(forked):
    assert forked(norms) == [[False] * 4, 0, 0, 0.5]
