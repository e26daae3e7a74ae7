"""Files that launchers read: each is answered, or refused in one sentence that names the file."""

import json

import pytest
import yaml

import memcalc
from memcalc.budgets.read import read
from memcalc.catalog.plan import make
from memcalc.dialects import accelerate, trainer
from memcalc.errors import SettingError, UsageError

WRAP = "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"


def planned(tmp_path, text, **settings):
    path = tmp_path / "accelerate.yaml"
    path.write_text(text)
    return make({"model": "gpt2", "accelerate_config": str(path), **settings})


def fsdp(*lines, top="num_processes: 8"):
    below = "".join(f"\n  {line}" for line in (WRAP, *lines))
    return f"distributed_type: FSDP\nmixed_precision: bf16\n{top}\nfsdp_config:{below}\n"


def parallelism(**sizes):
    below = "".join(f"\n  parallelism_config_{key}: {size}" for key, size in sizes.items())
    return fsdp("fsdp_version: 2") + f"parallelism_config:{below}\n"


HALF = {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}
FIRST = {**HALF, "backward_prefetch": "NO_PREFETCH"}
ANSWERED = {
    "one GPU": (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nmixed_precision: no\n",
        {"devices": 1, "precision": "fp32", "parallel": None},
    ),
    "all that accelerate config writes": (
        "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\n"
        "downcast_bf16: 'no'\nenable_cpu_affinity: false\ngpu_ids: all\nmachine_rank: 0\n"
        "main_training_function: main\nmixed_precision: fp16\nnum_machines: 1\nnum_processes: 4\n"
        "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\n"
        "tpu_use_sudo: false\nuse_cpu: false\n",
        {
            "devices": 4,
            "precision": "amp-fp16",
            "parallel": "ddp",
            "loop": "accelerate",
            "unread": (),
        },
    ),
    "two machines": (
        "distributed_type: MULTI_GPU\nnum_machines: 2\nmain_process_ip: '10.0.0.1'\n"
        "main_process_port: 9999\nnum_processes: 16\nrdzv_backend: c10d\n",
        {"devices": 16, "parallel": "ddp"},
    ),
    "compiled": (
        "distributed_type: 'NO'\ndynamo_config:\n  dynamo_backend: INDUCTOR\n",
        {"compile": "default", "unread": ()},
    ),
    "compiled by CUDA graphs, and for any length": (
        "distributed_type: 'NO'\ndynamo_config:\n  dynamo_backend: inductor\n"
        "  dynamo_mode: reduce-overhead\n  dynamo_use_dynamic: true\n",
        {"compile": "reduce-overhead", "unread": ("dynamo_use_dynamic",)},
    ),
    "compiled by kernels that are timed": (
        "distributed_type: 'NO'\ndynamo_config:\n  dynamo_backend: INDUCTOR\n"
        "  dynamo_mode: max-autotune\n",
        {"compile": None, "unread": ("torch.compile (dynamo_mode max-autotune)",)},
    ),
    "compiled by another backend": (
        "distributed_type: 'NO'\ndynamo_backend: AOT_EAGER\n",
        {"compile": None, "unread": ("torch.compile (dynamo_backend AOT_EAGER)",)},
    ),
    "not compiled": (
        "distributed_type: 'NO'\ndynamo_config:\n  dynamo_backend: NO\n",
        {"compile": None, "unread": ()},
    ),
    "the first version": (
        fsdp("fsdp_sharding_strategy: SHARD_GRAD_OP", "fsdp_backward_prefetch: BACKWARD_PRE"),
        {
            "parallel": "fsdp1",
            "parallel_args": {
                **HALF,
                "sharding_strategy": "SHARD_GRAD_OP",
                "backward_prefetch": "BACKWARD_PRE",
            },
            "precision": "amp-bf16",
        },
    ),
    "the first version by number, and offloaded": (
        fsdp("fsdp_sharding_strategy: 3", "fsdp_offload_params: 'true'"),
        {"parallel_args": {**FIRST, "sharding_strategy": "NO_SHARD", "offload": "cpu"}},
    ),
    "copies of shards, one a machine": (
        fsdp(
            "fsdp_sharding_strategy: HYBRID_SHARD_ZERO2", top="num_processes: 16\nnum_machines: 2"
        ),
        {
            "parallel": "fsdp1",
            "parallel_args": {
                **FIRST,
                "sharding_strategy": "HYBRID_SHARD_ZERO2",
                "device_mesh": "2x8",
            },
        },
    ),
    "layers by name, recomputed": (
        fsdp(
            "fsdp_transformer_layer_cls_to_wrap: GPT2Block",
            "fsdp_activation_checkpointing: true",
            "fsdp_use_orig_params: false",
        ),
        {
            "checkpointing": True,
            "parallel_args": {
                **FIRST,
                "transformer_layer_cls_to_wrap": "GPT2Block",
                "use_orig_params": False,
            },
        },
    ),
    "units of a size": (
        fsdp("fsdp_min_num_params: 2000").replace(WRAP, "fsdp_auto_wrap_policy: SIZE_BASED_WRAP"),
        {"parallel_args": {**FIRST, "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 2000}},
    ),
    "the whole model as one": (
        fsdp().replace(WRAP, "fsdp_auto_wrap_policy: NO_WRAP"),
        {"parallel_args": {**FIRST, "auto_wrap_policy": "NO_WRAP"}},
    ),
    "the second version": (
        fsdp("fsdp_version: 2", "fsdp_reshard_after_forward: false"),
        {"parallel": "fsdp2", "parallel_args": {**HALF, "reshard_after_forward": False}},
    ),
    "replicas of shards": (
        parallelism(dp_replicate_size=2, dp_shard_size=4, tp_size=1, cp_size=1),
        {"parallel": "hsdp=2x4", "devices": 8},
    ),
    "tensor parallel and shards": (
        parallelism(dp_shard_size=4, tp_size=2),
        {"parallel": "tp=2,fsdp2=4"},
    ),
    "contexts": (parallelism(cp_size=8), {"parallel": "cp=8"}),
    "four at once": (
        parallelism(dp_replicate_size=2, dp_shard_size=2, tp_size=2, cp_size=2),
        {"parallel": "tp=2,cp=2,hsdp=2x2"},
    ),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_a_file_of_accelerate_stands_for_settings(tmp_path, name):
    text, wanted = ANSWERED[name]
    plan = planned(tmp_path, text)
    for field, value in wanted.items():
        held = getattr(plan, field)
        assert (dict(held) if field == "parallel_args" else held) == value
    assert plan.accelerate_config is None


def test_fp8_of_accelerate_is_float8_by_torchao_and_is_written_so(tmp_path):
    plan = planned(tmp_path, "distributed_type: 'NO'\nmixed_precision: fp8\n")
    assert (plan.precision, plan.float8) == ("amp-bf16", "tensorwise")
    assert accelerate.write(plan)["mixed_precision"] == "fp8"


REFUSED = {
    "megatron": ("distributed_type: MEGATRON_LM\nnum_processes: 8\n", "MEGATRON_LM"),
    "other hardware": ("distributed_type: MULTI_XPU\nnum_processes: 8\n", "MULTI_XPU"),
    "eight bits": (
        "distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n",
        "backend AO",
    ),
    "elsewhere": (
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\nmixed_precision: fp16\n",
        "AMAZON_SAGEMAKER",
    ),
    "a key of nobody": ("distributed_type: 'NO'\ninvalid_key: 3\n", "'invalid_key'"),
    "no type": ("mixed_precision: bf16\n", "no distributed_type"),
    "a list": ("- distributed_type\n", "no table"),
    "no yaml": ("a: [b\n", "not YAML"),
    "a policy of nobody": (
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_auto_wrap_policy: BIG\n",
        "BIG is none of TRANSFORMER_BASED_WRAP",
    ),
    "hybrid": (
        fsdp("fsdp_sharding_strategy: HYBRID_SHARD", top="num_processes: 8\nnum_machines: 3"),
        "each of 3 machines",
    ),
    "a key of tomorrow": (
        fsdp("fsdp_quantum_shards: 7"),
        "fsdp_quantum_shards changes memory",
    ),
    "a version": (fsdp("fsdp_version: 3"), "there are 1 and 2"),
    "sequence parallel": (parallelism(sp_size=8), "sequence parallelism over processes"),
    "no table": ("distributed_type: FSDP\nnum_processes: 2\nfsdp_config: 3\n", "no table"),
    "no number": ("distributed_type: MULTI_GPU\nnum_processes: many\n", "num_processes = 'many'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_memcalc_does_not_answer_is_refused_in_one_sentence(tmp_path, name):
    text, words = REFUSED[name]
    with pytest.raises(SettingError, match=words) as caught:
        planned(tmp_path, text)
    assert caught.value.setting == "accelerate_config"
    assert "accelerate.yaml" in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"devices": 4}, "devices = 4, and .*accelerate.yaml says 8"),
        ({"parallel": "ddp"}, "parallel = ddp, and .* says fsdp1"),
        ({"precision": "bf16"}, "precision = bf16, and .* says amp-bf16"),
        ({"parallel-args": {"param_dtype": "float16"}}, "param_dtype = float16, and .* bfloat16"),
        ({"gpu": "4xh100-sxm"}, "differ"),
    ],
)
def test_what_is_said_beside_a_file_must_agree_with_it(tmp_path, settings, words):
    with pytest.raises(UsageError, match=words):
        planned(tmp_path, fsdp(), **settings)


def test_what_agrees_or_adds_is_taken(tmp_path):
    plan = planned(tmp_path, fsdp(), devices=8, parallel_args={"offload": "cpu"}, preset="qlora")
    assert dict(plan.parallel_args) == {**FIRST, "offload": "cpu"}
    assert (plan.precision, plan.quant) == ("amp-bf16", "nf4-dq")
    unnumbered = fsdp(top="num_processes: -1")
    assert planned(tmp_path, unnumbered, gpu="8xh100-sxm").devices == 8


def test_a_budget_file_names_it_from_its_own_folder(tmp_path):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "fsdp.yaml").write_text(fsdp())
    budget = tmp_path / "ci" / "memcalc.toml"
    budget.write_text(
        "[runs.a]\nmodel = 'gpt2'\naccelerate_config = 'fsdp.yaml'\n"
        "[runs.a.limits]\npeak = '1 GiB'\n"
    )
    (run,) = read(budget).runs
    assert (run.plan.parallel, run.plan.devices) == ("fsdp1", 8)
    (tmp_path / "ci" / "fsdp.yaml").write_text("distributed_type: XLA\n")
    with pytest.raises(UsageError, match=r"memcalc.toml:3: .*XLA"):
        read(budget)


def test_what_is_not_counted_is_in_the_answer(tmp_path, small_model):
    path = tmp_path / "a.yaml"
    dynamo = "dynamo_config:\n  dynamo_backend: AOT_EAGER\n"
    path.write_text(fsdp("fsdp_version: 2", top="num_processes: 2") + dynamo)
    found = memcalc.estimate(small_model, batch=1, seq=32, accelerate_config=str(path))
    assert "torch.compile (dynamo_backend AOT_EAGER)" in found.uncounted
    assert (found.plan.parallel, found.plan.devices, found.plan.loop) == ("fsdp2", 2, "accelerate")
    assert planned(tmp_path, path.read_text(), loop="trainer").loop == "trainer"


def test_a_layer_that_the_model_has_not_is_named(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(fsdp("fsdp_transformer_layer_cls_to_wrap: BertLayer", top="num_processes: 2"))
    with pytest.raises(UsageError, match="GPT2LMHeadModel has no module of the class BertLayer"):
        memcalc.estimate("gpt2", batch=1, seq=32, accelerate_config=str(path))


def zero(stage=2, **more):
    """A file of DeepSpeed as people have it: much of it ``auto``."""
    keys = {
        "zero_optimization": {"stage": stage, **more.pop("zero", {})},
        "bf16": {"enabled": True},
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
    }
    return {**keys, **more}


def under_deepspeed(tmp_path, data, **settings):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(data))
    return make({"model": "gpt2", "deepspeed": str(path), **settings})


ADAMW = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
OF_DEEPSPEED = {
    "stage 1": (zero(1), {"parallel": "deepspeed_zero1", "precision": "amp-bf16"}),
    "stage 2 with numbers as floats": (
        zero(zero={"allgather_bucket_size": 2e8, "reduce_bucket_size": "auto",
                   "overlap_comm": True, "stage3_max_live_parameters": 1e9}),
        {
            "parallel": "zero2",
            "parallel_args": {
                "allgather_bucket_size": 200_000_000,
                "reduce_bucket_size": "auto",
                "overlap_comm": True,
            },
        },
    ),
    "stage 3, offloaded": (
        zero(3, zero={"offload_optimizer": {"device": "cpu", "pin_memory": True},
                      "offload_param": {"device": "cpu"}, "sub_group_size": 1e9,
                      "stage3_gather_16bit_weights_on_model_save": True}),
        {
            "parallel": "zero3",
            "parallel_args": {
                "sub_group_size": 10**9, "offload": "cpu", "offload_param": "cpu",
            },
            "unread": (),
        },
    ),
    "an old name": (zero(zero={"cpu_offload": True}), {"parallel_args": {"offload": "cpu"}}),
    "fp16 and an optimizer of PyTorch": (
        zero(bf16={"enabled": False}, fp16={"enabled": True, "loss_scale": 0},
             optimizer={"type": "Adam", "params": {"torch_adam": True}}),
        {"precision": "amp-fp16", "optim": "adamw", "unread": ()},
    ),
    "an optimizer of its own": (
        zero(optimizer=ADAMW),
        {
            "optim": "adamw_torch_fused",
            "unread": ("what DeepSpeed's FusedAdam needs beside PyTorch's fused AdamW",),
        },
    ),
    "batches": (
        zero(train_batch_size=64, train_micro_batch_size_per_gpu=4, gradient_clipping=0.5),
        {"batch": 4, "grad_accum": 2, "max_grad_norm": 0.5},
    ),
    "the whole batch alone": (zero(train_batch_size=64), {"batch": 8, "grad_accum": 1}),
    "no half": (zero(bf16={"enabled": False}), {"precision": "fp32"}),
    "for whoever launches": (
        zero(bf16={"enabled": "auto"}, fp16={"enabled": "auto"}),
        {"precision": "amp-bf16"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_DEEPSPEED)
def test_a_file_of_deepspeed_stands_for_settings(tmp_path, name):
    data, wanted = OF_DEEPSPEED[name]
    plan = under_deepspeed(tmp_path, data, devices=8)
    for field, value in wanted.items():
        held = getattr(plan, field)
        assert (dict(held) if field == "parallel_args" else held) == value
    assert (plan.deepspeed, plan.devices) == (None, 8)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (zero(0), "stage 0 is not supported"),
        ({"train_batch_size": 8}, "stage 0 is not supported"),
        (zero(zero={"zero_quantized_weights": True}), "zero_quantized_weights"),
        (zero(3, zero={"offload_param": {"device": "nvme"}}), "offload_param to nvme"),
        (zero(3, zero={"offload_optimizer": {"device": "cpu", "ratio": 0.3}}), "ratio 0.3"),
        (zero(optimizer={"type": "OneBitAdam"}), "OneBitAdam"),
        (zero(brand_new={"enabled": True}), "brand_new changes memory"),
        (zero(zero={"newer": 3}), "zero_optimization.newer changes memory"),
        (zero(fp16={"enabled": True}), "both enabled"),
        (zero(train_batch_size=7), "train_batch_size 7 is not made of 8 GPUs"),
        (zero(tensor_parallel={"autotp_size": 2}), "tensor parallelism"),
        (zero(zero={"reduce_bucket_size": "big"}), "reduce_bucket_size = 'big'"),
    ],
)
def test_what_deepspeed_alone_knows_is_refused(tmp_path, data, words):
    with pytest.raises(SettingError, match=words) as caught:
        under_deepspeed(tmp_path, data, devices=8)
    assert (caught.value.setting, "ds.json" in str(caught.value)) == ("deepspeed", True)


def test_an_optimizer_that_is_handed_over_wins_as_in_deepspeed(tmp_path):
    plan = under_deepspeed(tmp_path, zero(optimizer=ADAMW), optim="adam8bit", parallel="zero2")
    assert (plan.optim, plan.unread) == ("adam8bit", ())
    assert under_deepspeed(tmp_path, zero(1), parallel="zero1").parallel == "deepspeed_zero1"
    with pytest.raises(UsageError, match=r"parallel = ddp, and .*ds.json says zero2"):
        under_deepspeed(tmp_path, zero(), parallel="ddp")


def test_accelerate_hands_on_a_file_of_deepspeed_or_says_it_itself(tmp_path):
    (tmp_path / "zero.json").write_text(
        json.dumps(zero(3, bf16={"enabled": "auto"}, fp16={"enabled": "auto"}))
    )
    top = "distributed_type: DEEPSPEED\nmixed_precision: fp16\nnum_processes: 4\n"
    plan = planned(tmp_path, f"{top}deepspeed_config:\n  deepspeed_config_file: zero.json\n")
    assert (plan.parallel, plan.precision, plan.devices) == ("zero3", "amp-fp16", 4)
    few = "  zero_stage: 2\n  offload_optimizer_device: cpu\n  gradient_accumulation_steps: 2\n"
    plan = planned(tmp_path, f"{top}deepspeed_config:\n{few}  zero3_init_flag: false\n")
    assert (plan.parallel, plan.precision, plan.grad_accum) == ("zero2", "amp-fp16", 2)
    assert dict(plan.parallel_args) == {"offload": "cpu"}


@pytest.mark.parametrize("parallel", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("room", [accelerate, trainer])
def test_a_layout_that_is_written_is_read_back(parallel, room):
    told = {"offload": "cpu", "reshard_after_forward": False}
    told |= {"sharding_strategy": "SHARD_GRAD_OP"} if parallel == "fsdp1" else {}
    if parallel == "fsdp1":
        del told["reshard_after_forward"]
    asked = {"devices": 4, "parallel": parallel, "parallel_args": told, "precision": "amp-bf16"}
    plan = make({"model": "gpt2", **asked})
    written = yaml.safe_load(yaml.safe_dump(room.write(plan)))
    found = room.read(written, "x.yaml", {"devices": 4}).settings
    assert found["parallel"] == parallel
    assert told.items() <= found["parallel_args"].items()
