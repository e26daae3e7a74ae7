"""Recipes of training frameworks: every key is read, changes no memory, or is refused by name."""

import json
import string

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from memcalc import dialects, registry
from memcalc.advice.suggest.snippets import snippet
from memcalc.budgets.read import read as read_budgets
from memcalc.catalog import peft_targets
from memcalc.catalog.plan import make
from memcalc.catalog.rewrite import rewrite
from memcalc.dialects.format import declared_fields
from memcalc.errors import UsageError
from memcalc.records.names import WITH_ACCELERATE
from memcalc.records.values import adapter
from memcalc.workload import layouts

AXOLOTL = """\
base_model: meta-llama/Llama-3.2-1B
load_in_4bit: true   # half the size of 8 bit
datasets:
  - path: x
    type: alpaca
adapter: qlora
lora_r: 32
lora_dropout: 0.05
lora_target_linear: true
lora_model_dir:
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
"""
LLAMAFACTORY = """\
model_name_or_path: meta-llama/Llama-3.2-1B
stage: sft
do_train: true
finetuning_type: lora
dataset: identity
template: llama3
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
TRL = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: stanfordnlp/imdb
learning_rate: 0.0001
use_peft: true
load_in_4bit: true
"""
TORCHTUNE = """\
output_dir: /tmp/out
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
  lora_alpha: 128
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: ${output_dir}/tokenizer.model
  max_seq_len: 4096
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 3e-4
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
batch_size: 4
gradient_accumulation_steps: 8
dtype: bf16
compile: False
enable_activation_checkpointing: False
"""
SWIFT = """\
nproc_per_node=2
CUDA_VISIBLE_DEVICES=0,1 \\
NPROC_PER_NODE=$nproc_per_node \\
swift sft \\
    --model Qwen/Qwen2.5-7B-Instruct \\
    --tuner_type lora \\
    --dataset 'swift/self-cognition#1000' \\
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \\
    --target_modules q_proj v_proj \\
    --max_length 2048 \\
    --model_author swift \\
    --deepspeed zero3
"""
TRAINER = json.dumps(
    {"model_name_or_path": "gpt2", "per_device_train_batch_size": 2, "num_train_epochs": 3,
     "fp16": True, "max_seq_length": 64, "optim_args": "eps=1e-6"}
)  # fmt: skip
RECIPES = {
    "axolotl.yaml": (AXOLOTL, {
        "model": "meta-llama/Llama-3.2-1B", "batch": 2, "grad_accum": 4, "seq": 2048,
        "optim": "adamw_bnb_8bit", "precision": "bf16+amp", "checkpointing": True,
        "quant": "nf4-dq", "lora": "r=32,target=all-linear,dropout=0.05", "padding": False,
        "loop": "trainer"}),
    "llamafactory.yaml": (LLAMAFACTORY, {
        "model": "meta-llama/Llama-3.2-1B", "batch": 1, "grad_accum": 8, "seq": 2048,
        "optim": "adamw_torch_fused", "precision": "bf16+amp", "checkpointing": True,
        "lora": "r=8,target=all-linear", "quant": None, "loop": "trainer"}),
    "trl.yaml": (TRL, {
        "model": "Qwen/Qwen2.5-0.5B", "batch": 8, "seq": 1024, "precision": "amp-bf16",
        "checkpointing": True, "quant": "nf4", "lora": "r=16,target=q_proj+v_proj,dropout=0.05",
        "bnb_4bit_compute_dtype": "float32", "kbit_prepare": True,
        "loop": "trainer"}),
    "torchtune.yaml": (TORCHTUNE, {
        "model": "meta-llama/Llama-3.2-1B", "batch": 4, "grad_accum": 8, "seq": 4096,
        "optim": "torch.optim.AdamW", "optim_args": (("fused", True),), "precision": "bf16",
        "loss_chunks": 8, "loop": "plain", "checkpointing": False, "autocast_adapter_dtype": False,
        "lora": "r=64,target=q_proj+v_proj+o_proj+gate_proj+up_proj+down_proj"}),
    "swift.sh": (SWIFT, {
        "model": "Qwen/Qwen2.5-7B-Instruct", "batch": 1, "grad_accum": 8, "seq": 2048,
        "devices": 2, "parallel": "zero3", "precision": "bf16+amp", "checkpointing": True,
        "lora": "r=8,target=q_proj+v_proj,dropout=0.05", "loop": "trainer"}),
    "trainer.json": (TRAINER, {
        "model": "gpt2", "batch": 2, "seq": 64, "precision": "amp-fp16", "loop": "trainer",
        "optim": "adamw_torch_fused", "optim_args": ()}),
}  # fmt: skip
KEYS = {"axolotl.yaml": "axolotl", "llamafactory.yaml": "LLaMA-Factory", "trl.yaml": "TRL",
        "torchtune.yaml": "torchtune", "trainer.json": "TrainingArguments"}  # fmt: skip


def refusal(ask):
    """Return why a question is refused; empty: it is not."""
    try:
        ask()
    except UsageError as error:
        return str(error)
    return ""


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, (text, _) in RECIPES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_in_place_of_a_model_is_the_plan_that_its_framework_trains(written, name):
    plan = make({"model": name})
    for field, value in RECIPES[name][1].items():
        assert (field, getattr(plan, field)) == (field, value)
    assert plan.assumed[0].startswith(f"{name} is read as a recipe of ")
    assert plan.recipe is None


def test_what_a_framework_takes_by_default_is_said(written):
    (said,) = make({"model": "llamafactory.yaml"}).assumed
    for words in ("cutoff_len 2048", "lora_rank 8", "lora_target all", "optim adamw_torch_fused"):
        assert words in said
    (said,) = make({"model": "trl.yaml"}).assumed
    assert "max_length 1024" in said


def test_options_beside_a_recipe_override_it(written):
    plan = make({"model": "axolotl.yaml", "batch": 1, "optim": "sgd", "checkpointing": False})
    assert (plan.batch, plan.optim, plan.checkpointing, plan.seq) == (1, "sgd", False, 2048)
    named = make({"model": "gpt2", "recipe": "axolotl.yaml", "lora": "r=4,target=c_attn"})
    assert (named.model, named.lora) == ("gpt2", "r=4,target=c_attn")
    whole = make({"model": "axolotl.yaml", "quant": "none", "lora": "none", "preset": "full"})
    assert (whole.scheme, whole.adapters, whole.optim) == (None, None, "paged_adamw_8bit")
    served = make({"model": "axolotl.yaml", "generate": 8})
    assert (served.loop, served.quant, served.batch) == ("plain", "nf4-dq", 2)
    spread = make({"model": "swift.sh", "devices": 4, "parallel": "fsdp2", "quant": "none"})
    assert (spread.devices, spread.parallel, spread.loop) == (4, "fsdp2", "trainer")


@pytest.mark.parametrize("name", KEYS)
def test_a_key_that_nobody_knows_is_named(written, name):
    data = {**yaml.safe_load(RECIPES[name][0]), "no_such_key": 3}
    (written / name).write_text(json.dumps(data) if name.endswith("json") else yaml.dump(data))
    with pytest.raises(UsageError, match=f"Unknown key of {KEYS[name]} 'no_such_key'"):
        make({"model": name})


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("axolotl.yaml", {"rl": "dpo"}, "rl = dpo .training on preferences"),
        ("axolotl.yaml", {"peft_use_dora": True}, "peft_use_dora = True .DoRA. has no place"),
        ("axolotl.yaml", {"lora_target_linear": None, "lora_target_modules": ".*proj"}, "pattern"),
        ("axolotl.yaml", {"liger_rope": True}, "liger_rope = True is one of Liger's kernels"),
        ("axolotl.yaml", {"optimizer": "os.system"}, "optimizer = os.system is no optimizer"),
        ("axolotl.yaml", {"base_model": "os:system"}, "base_model = os:system is no model"),
        ("axolotl.yaml", {"micro_batch_size": "many"}, "micro_batch_size = 'many' is not a whole"),
        ("axolotl.yaml", {"micro_batch_size": 1 << 40}, "axolotl.yaml: batch = "),
        ("axolotl.yaml", {"bnb_config_kwargs": {"blocksize": 128}}, "has blocksize, which may"),
        ("axolotl.yaml", {"deepspeed": "no.json"}, "deepspeed = no.json: there is no such file"),
        ("llamafactory.yaml", {"stage": "dpo"}, "stage = dpo trains on preferences"),
        ("llamafactory.yaml", {"do_train": False}, "trains nothing"),
        ("llamafactory.yaml", {"use_galore": True}, "use_galore = True .GaLore."),
        ("llamafactory.yaml", {"finetuning_type": "oft"}, "finetuning_type = oft"),
        ("llamafactory.yaml", {"quantization_bit": 3}, "quantization_bit = 3 is neither"),
        ("trl.yaml", {"activation_offloading": True}, "host memory"),
        ("trl.yaml", {"model_name_or_path": None}, "names no model"),
        ("trl.yaml", {"num_generations": 8}, "memcalc simulate -- trl grpo --config trl.yaml"),
        ("llamafactory.yaml", {"do_train": None, "do_predict": True}, "trains nothing"),
        ("torchtune.yaml", {"enable_activation_offloading": True}, "host memory"),
        ("torchtune.yaml", {"dtype": "fp16"}, "dtype = fp16"),
        ("torchtune.yaml", {"tokenizer": {"max_seq_len": "x"}}, "tokenizer.max_seq_len = 'x' is"),
        (
            "torchtune.yaml",
            {"model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b", "new": 1}},
            "Unknown key of torchtune 'model.new'",
        ),
        ("torchtune.yaml", {"optimizer": {"_component_": "torch.optim.SGD", "rho": 1}}, "has rho"),
        ("trainer.json", {"label_smoothing_factor": 0.1}, "label_smoothing_factor = 0.1"),
        ("trainer.json", {"optim_args": "rank=3"}, "optim_args = rank=3 has rank"),
        ("trainer.json", {"model_name_or_path": None}, "trainer.json names no model: type MODEL"),
    ],
)
def test_what_a_plan_cannot_express_is_refused_in_one_sentence(written, name, changes, words):
    data = {**yaml.safe_load(RECIPES[name][0]), **changes}
    (written / name).write_text(json.dumps(data) if name.endswith("json") else yaml.dump(data))
    with pytest.raises(UsageError, match=words) as caught:
        make({"model": name})
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "before", "after", "wanted"),
    [
        ("torchtune.yaml", "dtype: bf16", "dtype: bf16\nfsdp_reshard_after_forward: False\n"
         "fsdp_cpu_offload: True",
         {"parallel": "fsdp2",
          "parallel_args": (("offload", "cpu"), ("reshard_after_forward", False))}),
        ("axolotl.yaml", "load_in_4bit: true",
         "load_in_4bit: true\nbnb_config_kwargs:\n  bnb_4bit_use_double_quant: false",
         {"quant": "nf4"}),
        ("swift.sh", "$(expr 16 / $nproc_per_node)", "$((64 / $nproc_per_node / 4))",
         {"grad_accum": 8}),
        ("swift.sh", "    --deepspeed zero3",
         "    --quant_bits 4 --bnb_4bit_compute_dtype float32",
         {"bnb_4bit_compute_dtype": "float32", "quant": "nf4-dq"}),
        ("trl.yaml", "load_in_4bit: true", "max_length: null\nmax_seq_length: 64\n"
         "use_flash_attention_2: true",
         {"seq": 64, "attention": "flash", "lora": "r=16,target=q_proj+v_proj,dropout=0.05"}),
    ],
)  # fmt: skip
def test_a_key_that_changes_memory_is_read(written, name, before, after, wanted):
    text = RECIPES[name][0]
    assert before in text
    (written / name).write_text(text.replace(before, after))
    plan = make({"model": name, "devices": 2})
    assert {key: getattr(plan, key) for key in wanted} == wanted


def test_every_argument_of_the_installed_trainer_is_known(written):
    declared = declared_fields("transformers/training_args.py", "TrainingArguments")
    assert declared
    data = json.loads(TRAINER)
    for key in declared.keys() - data.keys():
        (written / "trainer.json").write_text(json.dumps({**data, key: "any"}))
        told = refusal(lambda: make({"model": "trainer.json"}))
        assert "Unknown key" not in told
        assert "memcalc does not know how" not in told


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 1 << 70), st.floats(),
                   st.text(string.printable, max_size=8), st.lists(st.text(max_size=3), max_size=2),
                   st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))  # fmt: skip


@settings(max_examples=150)
@given(st.sampled_from(sorted(KEYS)), st.data())
def test_whatever_stands_in_a_recipe_it_is_read_or_refused(name, data):
    known = yaml.safe_load(RECIPES[name][0])
    key = data.draw(st.sampled_from(sorted(known)))
    changed = {**known, key: data.draw(VALUES)}
    one = dialects.recognise(changed)
    if one is None:
        return
    assert "\n" not in refusal(lambda: one.read(changed, name, {}))


@pytest.mark.parametrize("text", [
    "!!python/object/apply:os.system ['touch ran']", "&a [*a]", "a: [b", "base_model: x", "[]", "",
])  # fmt: skip
def test_what_is_no_recipe_is_refused_and_never_run(written, text):
    (written / "bad.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"bad.yaml"):
        make({"model": "bad.yaml"})
    assert not (written / "ran").exists()


def test_a_value_that_only_the_running_script_knows_is_refused(written):
    (written / "swift.sh").write_text(SWIFT.replace("2048", "$(nproc)"))
    with pytest.raises(UsageError, match=r"--max_length \$\(nproc\) is known once the script runs"):
        make({"model": "swift.sh"})
    (written / "swift.sh").write_text("echo swift infer --model x")
    with pytest.raises(UsageError, match="starts no training"):
        make({"model": "swift.sh"})


LAUNCHED = """\
# deepspeed with ZeRO \\
ARGS="--num_gpus 4 --master_port=9901"
python prepare.py --input x.json
deepspeed $ARGS src/train_bash.py \\
    --model_name_or_path ${MODEL:-gpt2} \\
    --finetuning_type lora --template qwen --stage sft --do_train \\
    --per_device_train_batch_size 4 --cutoff_len 64
"""


def test_a_script_that_a_launcher_starts_is_read_with_its_gpus(written):
    (written / "run.sh").write_text(LAUNCHED)
    plan = make({"model": "run.sh"})
    assert (plan.model, plan.devices, plan.batch, plan.seq) == ("gpt2", 4, 4, 64)
    assert rewrite("run.sh", make({"model": "run.sh", "batch": 1})) == LAUNCHED.replace(
        "batch_size 4", "batch_size 1"
    )
    torchrun = LAUNCHED.replace("deepspeed $ARGS", "torchrun --nnodes=2 --nproc-per-node=4")
    (written / "run.sh").write_text(torchrun)
    assert make({"model": "run.sh"}).devices == 8
    (written / "two.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\nnum_processes: 2\n"
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}"
    )
    launch = "accelerate launch --config_file two.yaml"
    (written / "run.sh").write_text(LAUNCHED.replace("deepspeed $ARGS", launch))
    plan = make({"model": "run.sh"})
    assert (plan.devices, plan.parallel, plan.loop) == (2, "fsdp2", "trainer")
    (written / "run.sh").write_text(SWIFT.replace("NPROC_PER_NODE=$nproc_per_node", "A=1"))
    assert "0,1 are more GPUs than processes" in refusal(lambda: make({"model": "run.sh"}))
    for command in ("swift sft a/sft.yaml", "trl sft --config a/sft.yaml",
                    "accelerate launch -m axolotl.cli.train a/sft.yaml"):  # fmt: skip
        (written / "run.sh").write_text(command)
        with pytest.raises(UsageError, match=r"runs the recipe a/sft.yaml: name"):
            make({"model": "run.sh"})


def test_a_comment_of_a_script_and_a_key_without_a_value_stay(written):
    text = "# --max_length 9 is too short\n" + SWIFT
    (written / "swift.sh").write_text(text)
    changed = rewrite("swift.sh", make({"model": "swift.sh", "seq": 512}))
    assert changed == text.replace("--max_length 2048", "--max_length 512")
    text = AXOLOTL.replace("gradient_checkpointing: true\n", "") + "special_tokens:\n"
    (written / "axolotl.yaml").write_text(text)
    changed = rewrite("axolotl.yaml", make({"model": "axolotl.yaml", "checkpointing": True}))
    assert changed == text.rstrip() + "\ngradient_checkpointing: true\n"


def test_a_factor_that_changes_memory_a_little_is_said_unless_it_is_0(written):
    for factor in (0.001, 0):
        (written / "llamafactory.yaml").write_text(f"{LLAMAFACTORY}moe_aux_loss_coef: {factor}\n")
        said = " ".join(make({"model": "llamafactory.yaml"}).unread)
        assert ("router logits" in said) == (factor > 0)


def test_what_depends_on_a_setting_goes_with_it(written):
    assert make({"model": "llamafactory.yaml", "checkpointing": False}).use_reentrant is None
    assert make({"model": "torchtune.yaml", "lora": "none"}).autocast_adapter_dtype
    assert make({"model": "trl.yaml", "quant": "none"}).bnb_4bit_compute_dtype is None


CHANGED = {
    "axolotl.yaml": {"micro_batch_size: 2": "micro_batch_size: 1",
                     "optimizer: adamw_bnb_8bit": "optimizer: paged_adamw_8bit"},
    "llamafactory.yaml": {"bf16: true": "bf16: true\noptim: paged_adamw_8bit"},
    "torchtune.yaml": {"batch_size: 4": "batch_size: 1", "max_seq_len: 4096": "max_seq_len: 512",
                       "torch.optim.AdamW": "bitsandbytes.optim.PagedAdamW8bit"},
    "swift.sh": {"--max_length 2048": "--max_length 512",
                 "swift sft": "swift sft --optim paged_adamw_8bit"},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_a_recipe_is_written_back_with_the_changed_keys_alone(written, name):
    changes = {"batch": 1, "optim": "paged_adamw_8bit"}
    if name in ("torchtune.yaml", "swift.sh"):
        changes["seq"] = 512
    wanted = RECIPES[name][0]
    for before, after in CHANGED[name].items():
        assert before in wanted
        wanted = wanted.replace(before, after)
    plan = make({"model": name, **changes})
    assert rewrite(name, plan).rstrip("\n") == "".join(
        line for line in wanted.splitlines(True) if "fused" not in line or name != "torchtune.yaml"
    ).rstrip("\n")
    assert rewrite(name, make({"model": name})) == RECIPES[name][0]


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "meta-llama/Llama-3.2-1B", "precision": "bf16", "seq": 512},
        {"model": "Qwen/Qwen2.5-7B", "precision": "bf16", "lora": "r=8", "loss_chunks": 8},
        {"model": "google/gemma-2-2b", "precision": "bf16", "quant": "nf4-dq",
         "lora": "r=4,target=q_proj+o_proj", "batch": 2, "checkpointing": True},
        {"model": "microsoft/Phi-3-mini-4k-instruct", "precision": "fp32", "grad_accum": 4},
    ],
)  # fmt: skip
def test_a_plan_as_a_recipe_of_torchtune_is_read_back(tmp_path, asked):
    plan = make({"loss_chunks": 1, **asked})
    (tmp_path / "tune.yaml").write_text(snippet(plan, "torchtune"))
    again = make({"model": str(tmp_path / "tune.yaml")})
    kept = ("model", "batch", "seq", "grad_accum", "precision", "checkpointing", "scheme",
            "loss_chunks")  # fmt: skip
    assert [getattr(again, one) for one in kept] == [getattr(plan, one) for one in kept]
    assert registry.of(again).row == registry.of(plan).row
    if plan.adapters is None:
        assert again.adapters is None
    elif "target" in plan.adapters:
        assert adapter(again.adapters).target == adapter(plan.adapters).target
    else:
        assert len(adapter(again.adapters).target) == 7


def test_what_a_recipe_has_no_word_for_is_a_comment(written):
    plan = make({"model": "axolotl.yaml", "alloc_conf": "expandable_segments:True"})
    first, rest = rewrite("axolotl.yaml", plan).split("\n", 1)
    assert first == "# not in this recipe: alloc_conf = expandable_segments:True"
    assert rest == AXOLOTL
    text = rewrite("axolotl.yaml", make({"model": "axolotl.yaml", "quant": "none", "lora": "none",
                                         "precision": "fp32"}))  # fmt: skip
    assert "not in this recipe" not in text
    assert "bf16: false" in text
    fused = {"optim": "adamw_torch", "optim_args": {"fused": True}, "keep_outputs": False}
    text = rewrite("axolotl.yaml", make({"model": "axolotl.yaml", **fused}))
    assert text == AXOLOTL.replace("adamw_bnb_8bit", "adamw_torch_fused")
    larger = {"optim": "adamw_torch", "optim_args": {"amsgrad": True}}
    text = rewrite("axolotl.yaml", make({"model": "axolotl.yaml", **larger}))
    assert text.startswith("# not in this recipe: optim_args = amsgrad=True\n")
    # The Trainer's loop has no KV cache, unless the recipe asks for one.
    (written / "cached.yaml").write_text(f"{LLAMAFACTORY}use_cache: true\n")
    text = rewrite("cached.yaml", make({"model": "cached.yaml", "kv_cache": False}))
    assert text.startswith("# not in this recipe: kv_cache = false\n")


def test_a_budget_file_names_a_recipe_from_its_own_folder(written):
    (written / "ci").mkdir()
    (written / "ci" / "a.yaml").write_text(AXOLOTL)
    budget = written / "ci" / "memcalc.toml"
    budget.write_text("[runs.a]\nmodel = 'a.yaml'\nbatch = 1\n[runs.a.limits]\npeak = '9 GiB'\n")
    (run,) = read_budgets(budget).runs
    assert (run.plan.model, run.plan.batch) == ("meta-llama/Llama-3.2-1B", 1)
    (written / "ci" / "a.yaml").write_text(AXOLOTL + "rl: dpo\n")
    with pytest.raises(UsageError, match=r"memcalc.toml:2: .*rl = dpo"):
        read_budgets(budget)


def test_a_recipe_and_a_launchers_file_go_together(written):
    (written / "acc.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: 'no'\nnum_processes: 4\n"
        "fsdp_config:\n  fsdp_version: 2\n"
    )
    plan = make({"model": "llamafactory.yaml", "accelerate_config": "acc.yaml"})
    assert (plan.parallel, plan.devices, plan.precision) == ("fsdp2", 4, "bf16+amp")
    with pytest.raises(UsageError, match=r"acc\.yaml names no model"):
        make({"model": "acc.yaml"})


def test_layouts_that_accelerate_wraps_by_are_those_that_loops_drive():
    assert sorted(WITH_ACCELERATE) == sorted(layouts.driven())


def test_adapters_of_pefts_default_are_those_of_the_installed_peft(forked):
    own, read = forked(default_targets)
    assert own == read


def default_targets():
    """Return peft's own table, and what is read of it."""
    from peft.utils import constants

    table = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    return [
        {k: list(v) for k, v in table.items()},
        {k: list(peft_targets.default_targets(k)) for k in table},
    ]


def test_estimate_reads_a_recipe_and_writes_it_with_the_options(memcalc, written):
    (written / "small.json").write_text(TRAINER)
    done = memcalc("estimate", "trainer.json", "--method", "analytic", "--format", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert any("trainer.json is read as a recipe" in one for one in told["assumptions"])
    recipe = yaml.dump({**json.loads(TRAINER), "fp16": False})
    (written / "args.yaml").write_text(recipe)
    done = memcalc("estimate", "args.yaml", "--method", "analytic", "--batch", "3", "-o", "b.yaml")
    assert done.returncode == 0, done.stderr
    changed = recipe.replace("batch_size: 2", "batch_size: 3")
    assert (written / "b.yaml").read_text() == changed


@pytest.mark.nightly
def test_a_recipe_of_flash_attn_is_answered_without_it(memcalc, written):
    recipe = AXOLOTL.replace("meta-llama/Llama-3.2-1B", "HuggingFaceTB/SmolLM2-135M")
    (written / "axolotl.yaml").write_text(recipe + "flash_attention: true\n")
    done = memcalc("estimate", "axolotl.yaml", "--seq", "512", "--format", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["plan"]["attention"] == "flash"
    assert "how flash-attn differs from PyTorch's own build of it" in told["uncounted"]
    # 512 x 512 scores of 9 heads in 30 layers would be saved in fp32 if no kernel of flash took it.
    assert told["peak"]["requested"] < 3 << 30
