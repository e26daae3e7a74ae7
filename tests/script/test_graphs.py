"""CUDA graphs and pools of a script's own: their memory is apart, and a replay is a step."""

CAPTURED = """
import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
x = torch.zeros(64, 512, device="cuda")
def step():
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    step()
optimizer.zero_grad()
graph = torch.cuda.CUDAGraph()
assert not torch.cuda.is_current_stream_capturing()
with torch.cuda.graph(graph):
    assert torch.cuda.is_current_stream_capturing()
    step()
"""


def test_what_a_graph_holds_is_kept_until_it_ends(run):
    found = run(
        CAPTURED
        + """
reserved = torch.cuda.memory_reserved
optimizer.zero_grad()
before = reserved()
torch.cuda.empty_cache()
held = reserved()
y = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
assert reserved() == held + (16 << 20), "it does not lie in what the graph has freed"
del y, graph
torch.cuda.empty_cache()
assert reserved() < held
torch.empty(1, device="cuda")
"""
    )
    assert found.ending.code == 0


def test_the_replay_of_a_step_is_a_step(run, capfd):
    found = run(
        CAPTURED
        + """
for number in range(1000):
    graph.replay()
    print("replayed", number)
""",
        steps=5,
    )
    assert found.ending.code == 0
    assert "replayed 2" in capfd.readouterr().err
    said = found.traced.prediction.assumptions
    assert "peaks are those of 5 optimizer steps and of what lay around them" in said


def test_graphs_share_a_pool_that_is_asked_for(run):
    found = run(
        """
import torch
pool = torch.cuda.graph_pool_handle()
x = torch.ones(1024, 1024, device="cuda")
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(first, pool=pool):
    y = x + 1
del y
held = torch.cuda.memory_reserved()
with torch.cuda.graph(second, pool=first.pool()):
    z = x + 2
assert torch.cuda.memory_reserved() == held
third = torch.cuda.CUDAGraph()
with torch.cuda.graph(third):
    z = x + 3
assert torch.cuda.memory_reserved() > held
"""
    )
    assert found.traced.prediction.peak.allocated


def test_a_value_is_not_read_while_a_graph_is_captured(run, capfd):
    found = run(CAPTURED + "    print(x.sum().item())")
    assert found.ending.code == 1
    assert "operation not permitted when stream is capturing" in capfd.readouterr().err


def test_a_graph_is_captured_once_and_on_a_stream_of_its_own(run):
    found = run(
        CAPTURED
        + """
for wrong, said in (
    (lambda: torch.cuda.CUDAGraph().capture_begin(), "non-default stream"),
    (lambda: torch.cuda.graph(graph).__enter__(), "already owns a captured graph"),
    (lambda: torch.cuda.CUDAGraph().replay(), "without a preceding successful capture"),
):
    try:
        wrong()
        raise SystemExit(3)
    except RuntimeError as error:
        assert said in str(error), error
    torch.cuda.set_stream(torch.cuda.default_stream())
"""
    )
    assert found.ending.code == 0


def test_a_pool_is_given_back_when_it_ends(run):
    found = run(
        """
import torch
pool = torch.cuda.MemPool()
x = torch.ones(1024, 1024, device="cuda")
with torch.cuda.use_mem_pool(pool):
    y = x + 1
assert pool.use_count() == 1
held = torch.cuda.memory_reserved()
del y
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == held
del pool
assert torch.cuda.memory_reserved() < held
"""
    )
    assert found.traced.prediction.peak.allocated
