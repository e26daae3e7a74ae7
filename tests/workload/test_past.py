"""Losses of earlier releases: the same figure, other copies."""

import weakref

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from memcalc.catalog import releases
from memcalc.catalog.releases import Release
from memcalc.records.plan import Plan
from memcalc.workload import past


def llama(layers):
    """A small one."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=17,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )


@pytest.mark.parametrize("form", ["own", "own-float", "function-shift"])
def test_a_loss_is_what_it_is_today(form: str) -> None:
    torch.manual_seed(0)
    model = llama(layers=1)
    tokens = torch.randint(0, 17, (2, 5))
    today = model(input_ids=tokens, labels=tokens)
    past.give_loss(model, Release(loss=form))  # type: ignore[arg-type]
    then = model(input_ids=tokens, labels=tokens)
    torch.testing.assert_close(then.loss, today.loss)
    upcast = model.to(torch.bfloat16)(input_ids=tokens, labels=tokens)
    assert (upcast.logits.dtype is torch.float32) == (form == "own-float")
    assert (upcast.loss.dtype is torch.bfloat16) == (form == "own")


def test_the_release_that_runs_is_its_own_code(monkeypatch) -> None:
    for module in (past, releases):
        monkeypatch.setattr(module, "installed", {"transformers": "4.46.3"}.get)
    for asked in ("4.46", "4.46.3"):
        found = past.release(Plan(transformers=asked), "opt")
        assert not found.eager
        assert found.loss is None
        assert found.notes == ("transformers 4.46.3 is the one that runs: the code is its own",)
    for asked in ("4.4", "4.46.2"):
        notes = past.release(Plan(transformers=asked), "opt").notes
        assert "PYTHONPATH=FOLDER" in notes[-1]
        assert f"transformers=={asked}.*" in notes[-1]


@torch.no_grad()
def test_tuples_of_past_tokens_are_held_until_the_next_pass_begins() -> None:
    model = llama(layers=2)
    past.keep_past(model, Release(tuples=True))
    cache = model(input_ids=torch.zeros(1, 3, dtype=torch.int64)).past_key_values
    old = [weakref.ref(layer.keys) for layer in cache.layers]
    for tokens in (4, 5):
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64), past_key_values=cache)
        assert [layer.keys.shape[2] for layer in cache.layers] == [tokens, tokens]
        assert all((one() is not None) == (tokens == 4) for one in old)
