"""Liger's kernels on the simulated device: they are there for one plan, and for no other."""

import json
import sys

import pytest

from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.errors import SettingError, UsageError
from memcalc.estimation.understand import check
from tests.trace.test_quantised import SMALL


def config(folder, name="Qwen/Qwen2.5-0.5B", **changed):
    found = {**models.find(name).config, **SMALL, **changed}
    found.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(found))
    return str(folder / "config.json")


def made_and_left(path):
    """Plans one after another in one process: bytes made, and what is left behind after each."""
    from memcalc.estimation.tracing import Desk

    desk, found = Desk(), []
    for liger, gpu in ((False, "A100-80GB"), (True, "A100-80GB"), (True, "T4"), (False, "T4")):
        plan = make({"model": path, "batch": 2, "seq": 32, "liger": liger, "gpu": gpu})
        _, trace = desk.estimate(plan)
        loss = sys.modules["torch.nn.functional"].cross_entropy.__module__
        models = sys.modules["transformers.models.qwen2.modeling_qwen2"]
        left = (
            [name for name in sys.modules if name.startswith("liger")],
            loss,
            models.apply_rotary_pos_emb.__module__,
            models.Qwen2RMSNorm.__module__,
        )
        found.append((sum(storage.bytes for storage in trace.storages), left))
    # The same again, once the package has been read.
    _, again = desk.estimate(make({"model": path, "batch": 2, "seq": 32, "liger": True}))
    return found, sum(storage.bytes for storage in again.storages)


def said(path, **settings):
    """How a plan is refused."""
    from memcalc.estimation.tracing import Desk

    try:
        Desk().estimate(make({"model": path, "batch": 1, "seq": 16, "liger": True, **settings}))
    except UsageError as error:
        return str(error)
    return ""


def test_a_plan_with_liger_leaves_nothing_behind_for_those_after_it(forked, tmp_path):
    pytest.importorskip("liger_kernel")
    found, again = forked(made_and_left, config(tmp_path, vocab_size=20000))
    (plain, _), (fused, _), (on_t4, _), (plain_on_t4, _) = found
    assert fused != plain
    assert again == fused
    # Norms sum their gradients by multiprocessor, and few are in a T4.
    assert on_t4 != fused
    assert plain_on_t4 != on_t4
    for _, left in found:
        home = "transformers.models.qwen2.modeling_qwen2"
        assert left == [[], "torch.nn.functional", home, home]


def test_what_liger_has_no_kernels_for_is_refused_in_its_own_words(forked, tmp_path):
    pytest.importorskip("liger_kernel")
    path = config(tmp_path, "openai-community/gpt2", n_layer=1, n_embd=64, n_head=2)
    assert "no Liger kernels supported for model type: gpt2" in forked(said, path)


def test_it_is_offered_for_what_liger_has_kernels_for():
    pytest.importorskip("liger_kernel")
    from memcalc.workload.liger import knows

    assert [knows(name) for name in ("llama", "qwen3", "gpt2", None)] == [True, True, False, False]


def test_a_model_without_an_output_head_is_refused(forked, tmp_path):
    pytest.importorskip("liger_kernel")
    refused = forked(_said_of_a_classifier, config(tmp_path))
    assert "Qwen2ForSequenceClassification" in refused
    assert "no output head" in refused


def _said_of_a_classifier(path):
    return said(path, task="sequence-classification")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_chunks": 4}, "leave out loss_chunks"),
        ({"target": "cpu"}, "for GPUs"),
        ({"generate": 4}, "leave out liger"),
    ],
)
def test_settings_that_do_not_go_with_liger_are_named(settings, words):
    with pytest.raises(UsageError, match=words):
        make({"model": "smollm2-135m", "liger": True, **settings})


def test_without_the_package_one_sentence_says_what_to_type(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install 'torch-memcalc\[liger\]'"):
        check(make({"model": "smollm2-135m", "liger": True}))
