"""The simulated GPU is behind the host: what another stream used is free once the host waits."""

import pytest

USES = """
side = torch.cuda.Stream()

def use(times=1):
    for _ in range(times):
        block = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            block.add_(1)
        block.record_stream(side)

def waiting():
    torch.empty(1, device="cuda")  # as memory is requested, the allocator looks what has finished
    statistics = torch.cuda.memory_stats()
    return statistics["active_bytes.all.current"] - statistics["allocated_bytes.all.current"] >> 20
"""


@pytest.mark.parametrize(
    "wait",
    [
        "torch.cuda.synchronize()",
        "side.synchronize()",
        "later.synchronize()",
        "torch.ones(1, device='cuda').item()",
        "torch.cuda.empty_cache()",
        "for _ in range(1000): one.add_(1)",
    ],
)
def test_what_another_stream_used_is_free_once_the_host_waits_for_later_work(over_stub, wait):
    over_stub(
        f"{USES}\none = torch.ones(1, device='cuda')\nuse(4)\nlater = side.record_event()\n"
        f"assert waiting() == 40, waiting()\n{wait}\nassert waiting() == 0, waiting()"
    )


@pytest.mark.parametrize("wait", ["earlier.synchronize()", "later.query()", "side.query()"])
def test_neither_a_wait_for_earlier_work_nor_a_question_frees_anything(over_stub, wait):
    over_stub(
        f"{USES}\nearlier = side.record_event()\nuse(4)\nlater = side.record_event()\n"
        f"{wait}\nassert waiting() == 40, waiting()"
    )


def test_blocks_of_one_stream_are_free_at_once(over_stub):
    over_stub(
        f"{USES}\nblock = torch.empty(1 << 20, device='cuda')\ndel block\nassert not waiting()"
    )
