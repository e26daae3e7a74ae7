"""Tensors without memory are pickled: what comes back is such a tensor, where it was."""

PICKLES = """
    import copy, pickle, torch
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256))
    on_host = pickle.loads(pickle.dumps(model))
    assert isinstance(on_host[0].weight, torch.nn.Parameter) and not on_host[0].weight.is_cuda
    on_host.cuda()(torch.ones(2, 256, device="cuda")).sum().backward()
    model.cuda()
    before = torch.cuda.memory_allocated()
    with open("model.pkl", "wb") as file:
        pickle.dump(dict(model=model), file)
    shown = copy.copy(model[0].weight)
    assert torch.cuda.memory_allocated() == before
    with open("model.pkl", "rb") as file:
        again = pickle.load(file)["model"]
    assert again[0].weight.is_cuda and again[0].weight.requires_grad
    assert torch.cuda.memory_allocated() > before + 4 * 256 * 256
"""


def test_models_are_pickled_and_come_back(run):
    found = run(PICKLES)
    assert found.ending.code == 0
    assert any("pickled holds no numbers" in said for said in found.traced.prediction.assumptions)
