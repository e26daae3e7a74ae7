"""A loss in pieces is the loss, and trains the same."""

import copy

import pytest
import torch
import transformers

from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.workload.chunked import chunk_loss

SMALL = {
    "gpt2": transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=61, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    ),
    "llama": transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=61,
    ),
    "opt": transformers.OPTConfig(
        num_hidden_layers=2, hidden_size=16, ffn_dim=32, num_attention_heads=2, vocab_size=61,
        word_embed_proj_dim=16, max_position_embeddings=32, dropout=0.0,
    ),
    "neox": transformers.GPTNeoXConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2,
        vocab_size=61,
    ),
}  # fmt: skip


def _gradients(model, batch):
    outputs = model(**batch)
    outputs["loss"].backward()
    return outputs["loss"].detach(), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("chunks", [2, pytest.param(5, marks=pytest.mark.nightly)])
def test_a_loss_in_pieces_has_the_loss_and_the_gradients_of_the_whole(forked, family, chunks):
    # A backward on the CPU, after which nothing can be traced in the same process.
    forked(compared, family, chunks)


def compared(family, chunks):
    torch.manual_seed(0)
    whole = transformers.AutoModelForCausalLM.from_config(SMALL[family])
    pieces = copy.deepcopy(whole)
    chunk_loss(pieces, chunks)
    ids = torch.randint(3, 61, (3, 7))
    labels = ids.clone()
    labels[0, :4] = -100
    loss, gradients = _gradients(whole, {"input_ids": ids, "labels": labels})
    other, others = _gradients(pieces, {"input_ids": ids, "labels": labels})
    torch.testing.assert_close(other, loss)
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (transformers.BertConfig(num_hidden_layers=1, hidden_size=16, intermediate_size=16,
                                 num_attention_heads=2, vocab_size=61, is_decoder=True),
         "leave --loss-chunks out"),
        (transformers.Gemma2Config(num_hidden_layers=1, hidden_size=16, intermediate_size=16,
                                   num_attention_heads=2, num_key_value_heads=2, head_dim=8,
                                   vocab_size=61),
         "does more to its logits"),
        (transformers.GraniteConfig(num_hidden_layers=1, hidden_size=16, intermediate_size=16,
                                    num_attention_heads=2, num_key_value_heads=2, vocab_size=61,
                                    logits_scaling=2.0),
         "does more to its logits"),
        (transformers.CohereConfig(num_hidden_layers=1, hidden_size=16, intermediate_size=16,
                                   num_attention_heads=2, num_key_value_heads=2, vocab_size=61),
         "does more to its logits"),
    ],
)  # fmt: skip
def test_a_head_that_does_more_is_refused(made, words):
    with pytest.raises(UsageError, match=words):
        chunk_loss(transformers.AutoModelForCausalLM.from_config(made), 4)


def test_a_head_that_does_more_in_some_configs_is_taken_by_what_it_does():
    config = transformers.Gemma3TextConfig(
        num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, vocab_size=61,
    )  # fmt: skip
    chunk_loss(transformers.AutoModelForCausalLM.from_config(config), 4)
    config.final_logit_softcapping = 30.0
    with pytest.raises(UsageError, match="does more to its logits"):
        chunk_loss(transformers.AutoModelForCausalLM.from_config(config), 4)


def test_recomputing_every_nth_layer_needs_checkpointing():
    with pytest.raises(UsageError, match="--checkpointing"):
        make({"model": "gpt2", "checkpoint_every": 2})


def test_a_copy_of_a_model_makes_its_loss_with_its_own_layers():
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    chunk_loss(model, 2)
    copied = copy.deepcopy(model).to_empty(device="cpu")
    tokens = torch.zeros(1, 4, dtype=torch.long)
    assert copied(input_ids=tokens, labels=tokens)["loss"].device.type == "cpu"
