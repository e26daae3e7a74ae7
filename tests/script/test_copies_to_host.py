"""What copies to the host take on the GPU, and how they lie there; PyTorch's code says the same."""

COPIES = """
    import numpy, torch

    def taken(copy):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = copy()
        return torch.cuda.max_memory_allocated() - before, out

    image = torch.rand(300, 401, 3, device="cuda").permute(2, 0, 1)
    half_of = torch.rand(500, 600, device="cuda")[:, ::2]
    block = 512 * -(-4 * 300 * 401 * 3 // 512)
    size, out = taken(lambda: image.to("cpu", torch.uint8))
    assert (size, out.stride()) == (block, image.stride())
    size, out = taken(lambda: image.to("cpu"))
    assert (size, out.stride()) == (0, image.stride())
    size, out = taken(lambda: image.to("cpu", torch.float64, non_blocking=True))
    assert size == 4 * block
    size, out = taken(half_of.tolist)
    assert (size, len(out)) == (600064, 500)

    for read in (image.numpy, lambda: numpy.asarray(image), lambda: numpy.mean([image[0, 0, 0]])):
        try:
            read()
            raise SystemExit("only memory of the host becomes an array")
        except TypeError as error:
            assert "Use Tensor.cpu()" in str(error)
    assert image.numpy(force=True).shape == image.shape
"""


def test_copies_to_the_host_go_by_a_contiguous_one_on_the_gpu(run):
    assert run(COPIES).ending.code == 0
