"""Names to configs: every bundled model has its published size; nonsense gets one sentence."""

import csv
import json
import pathlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memcalc.catalog import architectures, inventory, models
from memcalc.catalog.architectures import validate
from memcalc.errors import MemcalcError, UsageError
from memcalc.workload import tasks
from memcalc.workload.inventory import take
from memcalc.workload.model import build

DATA = pathlib.Path(__file__).parent.parent / "data" / "published_parameters.tsv"
HEADS = {
    "AutoModel": "base",
    "AutoModelForCausalLM": "causal-lm",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForMaskedLM": "masked-lm",
    "AutoModelForPreTraining": "pretraining",
    "AutoModelForSeq2SeqLM": "seq2seq-lm",
    "AutoModelForSequenceClassification": "sequence-classification",
    "AutoModelForSpeechSeq2Seq": "speech-seq2seq",
}


def published():
    with DATA.open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row["model"], marks=pytest.mark.nightly if number % 3 else ())
        for number, row in enumerate(published())
    ],
)
def test_a_bundled_model_is_what_transformers_builds_and_has_its_published_size(row):
    source = models.find(row["model"])
    usual, counted = tasks.choose(source, "auto"), tasks.choose(source, HEADS[row["task head"]])
    with torch.device("meta"):
        built = {
            task.name: take(build(source, task), source.name, task.name)
            for task in {usual.name: usual, counted.name: counted}.values()
        }
    assert inventory.load(source, usual.name) == built[usual.name]
    count = sum(parameter.numel for parameter in built[counted.name].parameters)
    assert count == int(row["parameters computed"])
    if row["verdict"] == "exact":
        assert count == int(row["parameters published"])


def test_the_table_of_published_counts_covers_every_bundled_model():
    assert {row["model"] for row in published()} == set(models.list_bundled_files())


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("gpt2", "openai-community/gpt2"),
        ("openai-community/gpt2", "openai-community/gpt2"),
        ("OpenAI-Community--GPT2", "openai-community/gpt2"),
        ("google-bert/bert-base-cased", "bert-base-cased"),
        ("google-t5/t5-small", "t5-small"),
        ("FacebookAI/roberta-base", "roberta-base"),
        ("distilbert/distilbert-base-cased", "distilbert-base-cased"),
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_a_bundled_model_answers_to_all_its_names(typed, found):
    assert models.find(typed).name == found


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        # Tuned for chat: the sizes are those of the bundled base.
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B"),
        ("meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-hf"),
        ("google/gemma-2-2b-it", "google/gemma-2-2b"),
        ("google/gemma-3-1b-it", "google/gemma-3-1b-pt"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
        # What people type.
        ("bert-base", "bert-base-uncased"),
        ("distilbert", "distilbert-base-uncased"),
        ("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct"),
        ("gemma-3-4b", "google/gemma-3-4b-pt"),
        ("mistral-nemo", "mistralai/Mistral-Nemo-Base-2407"),
        ("unsloth/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("unsloth/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "meta-llama/Llama-3.1-8B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B"),
    ],
)
def test_another_name_is_understood_and_what_was_taken_is_said(typed, found):
    assert models.find(typed).name == found
    (note,) = models.find(typed).notes
    assert found in note
    assert typed in note


def test_a_model_of_the_same_sizes_keeps_what_is_its_own():
    assert models.find("Qwen/Qwen3-4B-Instruct-2507").config["max_position_embeddings"] == 262_144


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("loop.py", "type memcalc simulate -- python loop.py"),
        ("sdxl", "a script that trains its UNet"),
        ("mistral-7b", "did you mean mistralai/Mistral-7B-v0.1 or mistralai/Mistral-7B-v0.3"),
        ("llama3", "meta-llama/Llama-3.1-8B"),
        ("gtp2", "did you mean openai-community/gpt2"),
    ],
)
def test_what_is_no_model_is_answered_by_what_was_meant(typed, said):
    with pytest.raises(UsageError, match=said):
        models.find(typed)


@pytest.mark.parametrize("name", ["mistralai/Mistral-7B-Instruct-v0.4", "a/gpt2-it"])
def test_a_tuned_model_with_another_base_is_not_taken_for_a_bundled_one(name, monkeypatch):
    monkeypatch.setattr(models, "_from_hub", lambda asked: ({"model_type": "gpt2"}, None))
    assert models.find(name).origin == "hub"


def test_a_bundled_model_that_is_itself_tuned_says_nothing():
    assert models.find("TinyLlama/TinyLlama-1.1B-Chat-v1.0").notes == ()


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("bert-base-cased", "sequence-classification"),
        ("gpt2", "causal-lm"),
        ("t5-small", "seq2seq-lm"),
        ("google/vit-base-patch16-224", "image-classification"),
        ("openai/whisper-small", "speech-seq2seq"),
        ("facebook/wav2vec2-base", "ctc"),
        ("openai/clip-vit-base-patch32", "contrastive"),
        ("facebook/bart-base", "seq2seq-lm"),
    ],
)
def test_the_head_follows_the_architecture(name, task):
    assert tasks.choose(models.find(name), "auto").name == task


def test_the_shipped_architectures_are_those_of_the_installed_transformers():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    shipped = architectures.table()
    assert all(CONFIG_MAPPING_NAMES[name] == shipped[name]["config"] for name in shipped)


def config(**changes):
    return {
        **json.loads(models.list_bundled_files()["distilbert-base-cased"].read_text()),
        **changes,
    }


@pytest.mark.parametrize(
    "value", [-1, 0, "768", float("nan"), 1e12, 10**12, True, 7.5, [], {}, "many"]
)
@pytest.mark.parametrize("key", ["n_layers", "dim", "vocab_size", "n_heads"])
def test_a_size_that_makes_no_sense_is_refused_at_once(key, value):
    if value == []:
        pytest.skip("an empty list is no size and is left to transformers")
    with pytest.raises(UsageError, match=key):
        validate(config(**{key: value}), "mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("{}", "no model_type"),
        ('{"model_type": "distilbertt"}', "did you mean distilbert"),
        ('{"model_type": 3}', "no model_type"),
        ('{"model_type": "x", "auto_map": {}}', "defined by code"),
        ("[" * 100_000, "not JSON"),
        (None, r"config\.json"),
    ],
)
def test_a_broken_config_gets_one_sentence(tmp_path, text, words):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        models.find(str(tmp_path))


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match="not that large"):
        models.find(str(path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


SMALL = [
    "distilbert-base-cased",
    "gpt2",
    "t5-small",
    "Qwen3-0.6B",
    "albert-base-v2",
    "google/vit-base-patch16-224",
    "facebook/bart-base",
    "openai/clip-vit-base-patch32",
    "microsoft/resnet-50",
    "facebook/wav2vec2-base",
    "answerdotai/ModernBERT-base",
    "google/gemma-3-1b-pt",
]
odd_sizes = st.sampled_from([-1, 0, 1, 3, 7, 2**20, 2**28, 10**12, 0.5, float("inf"), "12", "", []])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated") / "config.json"


@given(st.data())
def test_a_mutated_config_builds_or_is_refused_in_one_sentence(written, data):
    original = models.find(data.draw(st.sampled_from(SMALL))).config
    keys = data.draw(st.lists(st.sampled_from(sorted(original)), min_size=1, max_size=2))
    changes = {key: data.draw(odd_sizes | json_values) for key in keys}
    gone = data.draw(st.none() | st.sampled_from(sorted(original)))
    mutated = {key: value for key, value in {**original, **changes}.items() if key != gone}
    written.write_text(json.dumps(mutated))
    try:
        source = models.find(str(written))
        with torch.device("meta"):
            model = build(source, tasks.choose(source, "auto"))
        sentence = None
    except MemcalcError as error:
        sentence = str(error)
    if sentence is None:
        assert sum(1 for _ in model.parameters())
    else:
        assert "\n" not in sentence


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("albert-base-v2", "num_hidden_groups"),
        ("albert-base-v2", "inner_group_num"),
        ("google/vit-base-patch16-224", "num_labels"),
        ("gpt2", "n_layer"),
    ],
)
@pytest.mark.parametrize("value", [2**28, 10**12])
def test_a_count_of_modules_or_labels_that_would_take_minutes_is_refused(name, key, value):
    with pytest.raises(UsageError, match=key):
        validate({**models.find(name).config, key: value}, "mine")


def test_a_script_finds_the_config_of_a_bundled_model_without_the_hub(tmp_path, monkeypatch):
    from transformers import AutoConfig

    from memcalc.engine.patches import Patches
    from memcalc.script.packages import transformers

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with Patches() as patches:
        transformers.install(patches)
        assert AutoConfig.from_pretrained("gpt2").n_layer == 12
        with pytest.raises(OSError, match="couldn't connect"):
            AutoConfig.from_pretrained("nobody/none")
    assert [*patches.assumptions] == [
        "the hub cannot be reached: the config of gpt2 is the one memcalc ships"
    ]
