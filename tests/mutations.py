"""Damages files the way disks, editors, other programs and adversaries do; seeded."""

import copy
import json
import random

ODD = (
    None, True, False, 0, -1, 1, 2**31, 2**62, -(2**63), 10**30, 10**400, 1e308, -1e308, 1e-320,
    "", "x", "x" * 300, "\x1b[31m", "::error::x", "[/x]", "=1+1", "\u202e", "a\nb", "../../x",
    "$a$", "1", "nan", [], {}, [[]], [{}], {"a": 1}, {"": ""}, [1, "a", None], ["x"] * 50,
)  # fmt: skip
TOKENS = (
    b"NaN", b"Infinity", b"-0", b"1e999", b"9" * 5000, b"0x" + b"f" * 5000, b"\\ud800", b"\xff\xfe",
    b"\x00", b"\xef\xbb\xbf", b"[" * 3000, b"{\"a\":" * 3000, b"(" * 300, b"- " * 2000, b"&a *a",
    b"*a", b"<<: *a", b"!!python/object/apply:os.system [x]", b"%", b"'''", b'"""', b"#",
    b"1979-05-27", b"true", b"null", b"\r", b"\xe2\x80\xae", b"\n\n", b"=", b":", b",", b"}", b"]",
)  # fmt: skip


def bytes_of(data, chance):
    """Some bytes changed, cut, doubled or put in."""
    data = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at : at + chance.choice((1, 2, 10, 100, 10_000))]
        elif kind == 2:
            data[at:at] = chance.choice(TOKENS)
        elif kind == 3:
            data[at:at] = chance.randbytes(chance.choice((1, 3, 30)))
        elif kind == 4:
            data[at:at] = data[at : at + chance.choice((1, 10, 100, 1000))]
        elif kind == 5:
            data = data[:at] if chance.random() < 0.3 else data
        else:
            end = min(len(data), at + chance.choice((1, 4, 8)))
            data[at:end] = chance.choice(TOKENS)[: end - at]
    return bytes(data)


def value_of(value, chance):
    """A copy of plain values, in which some are other values, gone, or one too many."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            break
        holder, key = chance.choice(places)
        kind = chance.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(0, copy.deepcopy(holder[key]))
        elif kind == 2 and isinstance(holder, dict):
            holder[chance.choice(("", "x" * 300, "\x1b[31m", "9" * 400, "é"))] = holder[key]
        elif kind == 3 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] = chance.choice((holder[key] + 1, -holder[key], holder[key] << 40, 0))
        else:
            holder[key] = copy.deepcopy(chance.choice(ODD))
    return value


def _places(value):
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, inner in list(items):
            yield holder, key
            if isinstance(inner, dict | list) and inner:
                waiting.append(inner)


def mutations(data, seed, count):
    """Damaged copies of a file; of JSON, half of them are JSON still."""
    chance = random.Random(seed)
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    for number in range(count):
        if value is not None and number % 2:
            yield json.dumps(value_of(value, chance)).encode()
        else:
            yield bytes_of(data, chance)
