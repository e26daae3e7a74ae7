"""Calls of flash-attn's functions: packed and not, of equal and varying lengths, some graded."""

import itertools
import random

import torch
from flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input

choose = random.Random(0)
BATCHES, HEADS, QUERIES = (1, 2, 3, 8), (4, 6, 8, 12), (1, 7, 64, 129, 500, 1030)
WIDTHS = (16, 32, 40, 60, 64, 80, 96, 128, 160, 200, 256)


def begins(longest, batch):
    """Where sequences begin, of which the first is the longest, and how long they are."""
    lengths = [longest, *(choose.randint(1, longest) for _ in range(batch - 1))]
    places = [0, *itertools.accumulate(lengths)]
    return torch.tensor(places, dtype=torch.int32, device="cuda"), lengths


def options(heads):
    return {
        "dropout_p": choose.choice([0.0, 0.0, 0.1]),
        "causal": choose.random() < 0.5,
        "window_size": choose.choice([(-1, -1), (-1, -1), (64, 0)]),
        "deterministic": choose.random() < 0.3,
        "alibi_slopes": choose.choice([None, None, torch.empty(heads, device="cuda")]),
    }


def call(kind):
    batch, heads, width = choose.choice(BATCHES), choose.choice(HEADS), choose.choice(WIDTHS)
    kv_heads = choose.choice([n for n in (1, 2, heads) if heads % n == 0])
    queries = choose.choice(QUERIES)
    keys = queries if choose.random() < 0.6 else choose.choice([1, 100, 777, 2049])
    graded, told = choose.random() < 0.7, options(heads)
    dtype = choose.choice([torch.float16, torch.bfloat16])

    def tensor(*shape):
        return torch.empty(shape, dtype=dtype, device="cuda", requires_grad=graded)

    begins_q, lengths = begins(queries, batch)
    begins_k, others = begins(keys, batch)
    tokens, tokens_k = sum(lengths), sum(others)
    if kind == "plain":
        q = tensor(batch, queries, heads, width)
        if choose.random() < 0.3:
            q = tensor(batch, heads, queries, width).transpose(1, 2)
        k, v = (tensor(batch, keys, kv_heads, width) for _ in range(2))
        out = flash_attn_func(q, k, v, **told)
    elif kind == "kv":
        q, kv = tensor(batch, queries, heads, width), tensor(batch, keys, 2, kv_heads, width)
        out = flash_attn_kvpacked_func(q, kv, **told)
    elif kind == "qkv":
        out = flash_attn_qkvpacked_func(tensor(batch, queries, 3, heads, width), **told)
    elif kind == "varlen":
        q = tensor(tokens, heads, width)
        k, v = (tensor(tokens_k, kv_heads, width) for _ in range(2))
        out = flash_attn_varlen_func(q, k, v, begins_q, begins_k, queries, keys, **told)
    elif kind == "varlen-kv":
        q, kv = tensor(tokens, heads, width), tensor(tokens_k, 2, kv_heads, width)
        out = flash_attn_varlen_kvpacked_func(q, kv, begins_q, begins_k, queries, keys, **told)
    elif kind == "varlen-qkv":
        qkv = tensor(tokens, 3, heads, width)
        out = flash_attn_varlen_qkvpacked_func(qkv, begins_q, queries, **told)
    else:
        hidden = tensor(batch, queries, heads * width)
        mask = torch.zeros(batch, queries, dtype=torch.long)
        for row, length in enumerate(lengths):
            mask[row, :length] = 1
        found, where, *_ = unpad_input(hidden, mask.cuda())
        again = index_first_axis(hidden.flatten(0, 1), where)
        out = pad_input(found + again, where, batch, queries)
    if graded:
        out.backward(torch.empty_like(out))


KINDS = ("plain", "kv", "qkv", "varlen", "varlen-kv", "varlen-qkv", "padding")
for _ in range(80):
    call(choose.choice(KINDS))
    print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
