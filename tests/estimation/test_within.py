"""What a GPU that fills up gets back is told as a range."""

from memcalc.estimation import predict


def test_a_full_gpu_gets_cached_blocks_back():
    span = predict.given_back(reserved=70, unlimited=90)
    assert (span.low, span.likely, span.high) == (70, 70, 90)
    assert [part.name for part in span.parts] == [predict.GIVEN_BACK]
