"""A folded trace is the whole trace: storage by storage, event by event, and its FLOPs."""

import json

import msgspec
import pytest

from memcalc.catalog import models

CASES = [
    ("gpt2", {"optim": "adamw", "seq": 16, "batch": 1}, True),
    ("gpt2", {"optim": "memcalc.adamw8bit", "seq": 16, "batch": 1, "max_grad_norm": 1.0}, True),
    ("bert-base-cased", {"optim": "adam8bit", "seq": 16, "precision": "amp-bf16"}, True),
    ("Qwen/Qwen2.5-0.5B", {"optim": "adamw_torch_fused", "seq": 16, "precision": "bf16"}, True),
    ("bert-base-cased", {"optim": "adamw", "seq": 16, "checkpointing": True}, True),
    ("Qwen/Qwen2.5-0.5B", {"optim": "adafactor", "seq": 16, "checkpointing": True}, True),
    ("bert-base-cased", {"optim": "adafactor", "seq": 16, "loop": "trainer"}, True),
    ("Qwen/Qwen2.5-0.5B", {"optim": "transformers.adafactor", "seq": 16}, True),
    ("bert-base-cased", {"optim": "adagrad", "seq": 16}, True),
    ("gpt2", {"optim": "rprop", "seq": 16}, True),
    ("bert-base-cased", {"optim": "adamw", "seq": 16, "resume": True}, True),
    # Its lists of single numbers tell of no parameter.
    ("gpt2", {"optim": "asgd", "seq": 16}, None),
]
LARGE = ("google/gemma-3-1b-pt", {"optim": "sgd", "seq": 16, "grad_accum": 2}, None)
DEPTH = {"gpt2": "n_layer"}


def folded_and_whole(settings):
    """Are the two traces equal, and was the first one folded?"""
    from memcalc import registry
    from memcalc.catalog.plan import make
    from memcalc.children.breadcrumbs import Breadcrumbs
    from memcalc.estimation.question import resolve
    from memcalc.trace.folding import fold
    from memcalc.trace.folding.tagged import TaggedTrace, canonical
    from memcalc.trace.run import trace
    from memcalc.workload.prepare import prepare

    def form(least):
        fold.LEAST_REPEATS = least
        plan = make(settings)
        program, target = prepare(plan, registry.find(plan.optim, {})), resolve(plan, None)[0]
        traced = trace(program, target, breadcrumbs=Breadcrumbs())
        raw = TaggedTrace(
            storages=list(traced.storages),
            storage_tags=[],
            events=list(traced.events),
            event_tags=[],
            marks=list(traced.marks),
        )
        folded = any("repeated layers" in said for said in traced.assumptions)
        return (canonical(raw), traced.flops), folded

    folded, was_folded = form(4)
    whole, _ = form(10**6)
    return [folded == whole, was_folded]


_BY_DAY = [
    case if number % 6 == 0 else pytest.param(*case, marks=pytest.mark.nightly)
    for number, case in enumerate(CASES)
]


@pytest.mark.parametrize(("model", "settings", "folds"), _BY_DAY, ids=lambda value: str(value)[:40])
def test_a_folded_trace_equals_the_whole_one(forked, tmp_path, model, settings, folds):
    config = {**models.find(model).config, DEPTH.get(model, "num_hidden_layers"): 6}
    # Lists with an entry a layer are made anew for the layers that are left.
    config.pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    equal, was_folded = forked(folded_and_whole, {"model": str(tmp_path), **settings})
    assert equal
    # Where it cannot be proven the model is traced whole, which is always right.
    assert folds is None or was_folded == folds


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "settings", "folds"), [*CASES, LARGE], ids=lambda value: str(value)[:40]
)
def test_a_folded_trace_of_a_whole_model_equals_the_whole_one(forked, model, settings, folds):
    equal, was_folded = forked(folded_and_whole, {"model": model, **settings})
    assert equal
    assert folds is None or was_folded == folds


@pytest.mark.nightly
def test_what_a_model_does_at_some_layers_alone_is_not_overlooked(forked, tmp_path):
    # Behind its first two layers there are half as many frames, which no layer itself knows.
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "head_dim": 16}
    part = {"num_hidden_layers": 8, "num_key_value_heads": 2, "vocab_size": 99}
    config = {"model_type": "granite_speech5_ctc", "vocab_size": 99, "encoder_config": sizes | part}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = {"model": str(tmp_path), "task": "ctc", "batch": 2, "precision": "bf16"}
    assert forked(folded_and_whole, plan) == [True, False]


def test_stacks_are_found_with_their_prefix_and_period():
    import torch

    from memcalc.catalog import models
    from memcalc.trace.folding.layers import Stack, find
    from memcalc.workload import tasks
    from memcalc.workload.model import build

    def stacks(name):
        source = models.find(name)
        with torch.device("meta"):
            return find(build(source, tasks.choose(source, "auto")), 3)

    only = Stack(path="model.layers", prefix=0, period=1, repeats=126, rest=0)
    assert stacks("meta-llama/Llama-3.1-405B") == [only]
    assert [msgspec.structs.astuple(s)[1:] for s in stacks("google/gemma-2-2b")] == [(0, 2, 13, 0)]
    assert [msgspec.structs.astuple(s)[1:] for s in stacks("google/gemma-3-1b-pt")] == [
        (0, 6, 4, 2)
    ]
    assert [msgspec.structs.astuple(s)[1:] for s in stacks("deepseek-ai/DeepSeek-V3")] == [
        (3, 1, 58, 0)
    ]
    assert [s.path for s in stacks("t5-small")] == ["encoder.block", "decoder.block"]


def test_layers_that_were_told_different_things_are_different():
    import torch
    from transformers import AutoModelForCausalLM, SmolLM3Config

    from memcalc.catalog import models
    from memcalc.trace.folding.layers import find
    from memcalc.workload import tasks
    from memcalc.workload.model import build

    source = models.find("configs/suites/models/deep-gemma3.json")
    # Every fourth layer has no rotary embeddings, as its attention alone knows.
    small = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    config = SmolLM3Config(num_hidden_layers=16, num_key_value_heads=2, pad_token_id=0, **small)
    with torch.device("meta"):
        composite = find(build(source, tasks.choose(source, "auto")), 3)
        (told,) = find(AutoModelForCausalLM.from_config(config), 3)
    assert [(s.path, s.period, s.repeats) for s in composite] == [
        ("model.language_model.layers", 6, 3)
    ]
    assert (told.period, told.repeats) == (4, 4)


def test_a_model_that_does_not_run_bare_is_traced_whole():
    import torch

    from memcalc.errors import EstimateError
    from memcalc.trace.folding.fold import trace_folded
    from memcalc.trace.folding.tagged import TaggedTrace

    whole = TaggedTrace(storages=[], storage_tags=[], events=[], event_tags=[], marks=[])

    def run(stacks, repeats, until=()):
        if until:
            raise EstimateError("only quantised weights run")
        return whole

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(16))
    assert trace_folded(model, run) == (whole, False)


def proofs():
    """What comes of work in a copy of this process: done, failed, the copy died, no copy."""
    import os

    from memcalc.children.breadcrumbs import Breadcrumbs
    from memcalc.trace.folding.fold import CannotUnfoldError, _beside

    here, crumbs = os.getpid(), Breadcrumbs()

    def done():
        crumbs.drop("of the copy", "add")
        return str(os.getpid() != here)

    def failed():
        raise ValueError("no such layer")

    def dies():
        if os.getpid() != here:
            os.abort()
        return "here"

    with _beside(done, crumbs) as found:
        answers = [found(), crumbs.where()]
    with _beside(failed, crumbs) as found:
        try:
            found()
        except CannotUnfoldError as error:
            answers.append(str(error))
    with _beside(dies, crumbs) as found:
        answers.append(found())
    with _beside(dies, None) as found:
        answers.append(found())
    with pytest.raises(KeyError), _beside(done, crumbs):
        raise KeyError
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, 0)
    return answers


def test_a_proof_is_made_in_a_copy_which_leaves_nothing_behind(forked):
    from memcalc.children.fork import can_go_beside

    apart = can_go_beside()
    answers = forked(proofs)
    assert answers == [str(apart), "" if apart else " in of the copy, at add", *answers[2:]]
    assert answers[2:] == ["ValueError: no such layer", "here", "here"]
