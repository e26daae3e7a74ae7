"""Functions that check a condition or branch by it; pytest rewrites asserts in tests."""


def asserted(x):
    assert x


def asserted_with_words(x, shape=(1, 2)):
    assert x, f"{shape[0]} and {shape[1]:.3f} of {len(shape)} {'more' if shape else 'none'}"


def raised_if(x):
    if x:
        raise ValueError(f"it is true: {2:.3f}")


def raised_unless(x):
    if not x:
        raise ValueError("it is false")


def raised_in_else(x):
    if x:
        return 1
    raise KeyError


def raised_later(x):
    if x:
        print(end="")
    else:
        print(end="")
    return x


def returned(x):
    return 1 if x else 2


def looped(x):
    while x:
        break


def assert_above(x):
    assert x > 3


def assert_between(x):
    assert 0 <= x <= 1, "out of range"


def raise_above(x):
    if x > 3:
        raise ValueError


def keep(x):
    found = x > 3
    return [found, 2]


def assert_call(x):
    assert x.below(3)
