"""What is asked: which model to train, and how.

A field of ``Plan`` says everything about itself where it stands: its type and range or choices, its
words for help, and how it is typed. The command line, the check of settings, the JSON Schema of
budget files and docs/cli.md are made from that; see ``memcalc.records.fields``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from memcalc.records.texts import NO_LORA, USUAL_LORA, Input, Lora, Release, Text, Version
from memcalc.records.values import Scalar

Method = Literal["trace", "analytic"]
"""How a plan is answered: its code runs on a simulated GPU, or closed forms stand for it."""
Count = Annotated[int, Meta(ge=1, le=1 << 16)]


def about(words: str, *, otherwise: str = "", option: str | None = "", typed: str = "") -> Meta:
    """What a person is told of a field.

    Args:
        words: what it is, in a sentence.
        otherwise: what holds where the setting is left out, if its default does not say.
        option: its name on the command line, if it is not the field's own; ``None``: a verb of its
            own takes it.
        typed: a sentence on how it is typed there.
    """
    return Meta(description=words, extra={"otherwise": otherwise, "option": option, "typed": typed})


_HALF: dict[str, Scalar] = {"precision": "bf16", "optim": "paged_adamw_8bit", "checkpointing": True}
PRESETS: dict[str, dict[str, Scalar]] = {
    "full": _HALF,
    "lora": {**_HALF, "lora": USUAL_LORA},
    "qlora": {**_HALF, "lora": USUAL_LORA, "quant": "nf4-dq"},
}
"""What people usually mean by a word, as settings of a plan."""
_OF_TRAINING = ("optim", "checkpointing")
ZERO_STAGES = {"deepspeed_zero1": 1, "zero2": 2, "zero3": 3}
"""DeepSpeed's stages by the layouts they are; ``zero1`` is PyTorch's own."""
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""How FSDP's first version shards, by accelerate's names and in its order."""
WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
"""What accelerate calls the ways to choose FSDP's units, the layers of the model first."""


def with_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what their preset stands for; what they say themselves is left as it is."""
    name = settings.get("preset")
    stands_for = PRESETS.get(name, {}) if isinstance(name, str) else {}
    said = {str(key).replace("-", "_"): value for key, value in settings.items()}
    if said.get("generate") is not None or said.get("inference"):
        # Once it is trained it is as it was loaded, and nothing of training is left.
        stands_for = {key: one for key, one in stands_for.items() if key not in _OF_TRAINING}
    return {**settings, **{key: one for key, one in stands_for.items() if key not in said}}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to train and how; everything that changes a byte."""

    model: Annotated[
        Annotated[str, Meta(pattern=r"\S|^$", title="the name of a model")],
        about(
            "A bundled name, a local folder or config.json, a hub name, or package.module:callable "
            "returning an nn.Module."
        ),
    ] = ""
    task: Annotated[Text, about("Head to train.", otherwise="by architecture")] = "auto"
    optim: Annotated[
        Text,
        about(
            "Optimizer; see memcalc list optimizers. The Trainer's own is adamw_torch_fused.",
            typed="Several: a comma list, or all.",
        ),
    ] = "adamw"
    optim_args: Annotated[
        tuple[tuple[str, Scalar], ...],
        about("Arguments of the optimizer.", option="optim-arg", typed="One is key=value."),
    ] = ()
    preset: Annotated[
        Literal["full", "lora", "qlora"] | None,
        about(
            "Settings that are usual together, where they are not given: bf16, paged 8-bit AdamW "
            "and checkpointing (full), with LoRA on all linear layers (lora), on a base in 4 bit "
            "(qlora).",
            otherwise="none",
        ),
    ] = None
    """A plan that was made has the settings in place of their name."""
    precision: Annotated[
        Literal["fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp16"],
        about("What weights are kept and computed in."),
    ] = "fp32"
    batch: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)], about("Samples in one micro-batch.")
    ] = 8
    seq: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 24)] | None,
        about("Tokens per sample.", otherwise="512, or the model's longest"),
    ] = None
    grad_accum: Annotated[Count, about("Micro-batches per optimizer step.")] = 1
    checkpointing: Annotated[bool, about("Recompute activations in backward.")] = False
    checkpoint_every: Annotated[
        Count, about("With checkpointing: recompute every n-th layer, and keep what others saved.")
    ] = 1
    loss_chunks: Annotated[
        Count,
        about(
            "Make a causal language model's loss in so many pieces; each one's logits live alone."
        ),
    ] = 1
    liger: Annotated[
        bool,
        about(
            "Replace norms, rotary embeddings, gated layers and the loss by Liger's kernels, as "
            "TrainingArguments(use_liger_kernel=True) does; it makes no logits."
        ),
    ] = False
    attention: Annotated[
        Literal["auto", "sdpa", "eager", "flash", "efficient", "cudnn", "math"],
        about("Implementation of attention."),
    ] = "auto"
    gpu: Annotated[Text | None, about("GPU to fit; see memcalc list gpus.")] = None
    padding: Annotated[
        bool | None,
        about(
            "Batches hold padding, so an attention mask is passed.", otherwise="yes, but causal-lm"
        ),
    ] = None
    cudnn_attention: Annotated[bool, about("Let cuDNN attention run where PyTorch prefers it.")] = (
        True
    )
    """False where the run disables it (``torch.backends.cuda.enable_cudnn_sdp``)."""
    freeze: Annotated[
        tuple[Text, ...], about("Pattern (fnmatch) of parameter names that do not train.")
    ] = ()
    quant: Annotated[
        Literal[
            "nf4", "nf4-dq", "fp4", "int8", "torchao-int8", "torchao-float8", "torchao-int4", "none"
        ]
        | None,
        about(
            "Load the model's linear layers quantised, by bitsandbytes or torchao; nf4-dq "
            "quantises the constants again. None turns a checkpoint back that is quantised "
            "already.",
            otherwise="not, or as the checkpoint is",
        ),
    ] = None
    kbit_prepare: Annotated[
        bool,
        about(
            "With quant: cast what is not quantised to fp32 before training, as peft's "
            "prepare_model_for_kbit_training does."
        ),
    ] = True
    lora: Annotated[
        Lora | None,
        about(
            "Train adapters instead of the model: r=16,target=all-linear, or none.",
            otherwise="none, and r=16,target=all-linear where quant is trained on",
        ),
    ] = None
    loop: Annotated[
        Literal["plain", "accelerate", "trainer"],
        about(
            "Who drives: a script around the bare optimizer (plain) or around accelerate's "
            "Accelerator, or transformers' Trainer."
        ),
    ] = "plain"
    max_grad_norm: Annotated[
        Annotated[float, Meta(gt=0, le=1e300)] | None,
        about("Clip gradients to this norm.", otherwise="1.0 under the Trainer, else not"),
    ] = None
    set_to_none: Annotated[bool, about("zero_grad frees gradients.")] = True
    keep_outputs: Annotated[
        bool | None,
        about(
            "The loop keeps what the model returned until the next forward has made new outputs, "
            "as outputs = model(**batch) does.",
            otherwise="yes, but for the Trainer, which drops them",
        ),
    ] = None
    kv_cache: Annotated[
        bool | None,
        about(
            "The model returns its keys and values too (config.use_cache).",
            otherwise="as its config says, and no under the Trainer",
        ),
    ] = None
    optim_in_backward: Annotated[
        bool, about("Update each parameter inside backward and free its gradient at once.")
    ] = False
    resume: Annotated[
        bool, about("Continue a checkpoint: optimizer state is there before the first forward.")
    ] = False
    eval: Annotated[
        Count | None,
        about("Evaluate over this many batches after the last step, keeping their logits."),
    ] = None
    inference: Annotated[bool, about("One forward pass without gradients: nothing is trained.")] = (
        False
    )
    generate: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 24)] | None,
        about(
            "Generate this many tokens after the prompt, which --seq is the length of; nothing is "
            "trained."
        ),
    ] = None
    cache: Annotated[
        Literal[
            "dynamic",
            "static",
            "sliding",
            "offloaded",
            "offloaded-static",
            "quantized",
            "quantized-hqq",
            "quantized-fp8",
        ],
        about("With generate: how keys and values are kept."),
    ] = "dynamic"
    beams: Annotated[Count, about("With generate: beams of a search, for each sample.")] = 1
    engine: Annotated[
        Literal["vllm", "sglang"] | None,
        about(
            "With inference or generate: what a serving engine would reserve of the GPU, and how "
            "many such sequences fit, by its rules over traced figures.",
            otherwise="none",
        ),
    ] = None
    engine_args: Annotated[
        tuple[tuple[str, Scalar], ...],
        about(
            "Settings of the engine, by its own names.",
            option="engine-arg",
            typed="One is key=value.",
        ),
    ] = ()
    inputs: Annotated[
        tuple[Input, ...],
        about("Input of a callable's model, name=dtype[shape].", option="input"),
    ] = ()
    devices: Annotated[Count, about("GPUs that train together; what is said is of one.")] = 1
    parallel: Annotated[
        Text | None,
        about(
            "Layout over several GPUs: ddp, zero1, zero2, zero3, fsdp1, fsdp2, hsdp=2x4, tp=2, "
            "tp=2,fsdp2=4.",
            otherwise="ddp",
        ),
    ] = None
    parallel_args: Annotated[
        tuple[tuple[str, Scalar], ...],
        about(
            "Arguments of the layout's wrapper.", option="parallel-arg", typed="One is key=value."
        ),
    ] = ()
    rank: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 16) - 1)] | None,
        about("Which of the processes.", otherwise="the one of the first and last that needs more"),
    ] = None
    accelerate_config: Annotated[
        Text | None,
        about(
            "File of accelerate config (YAML): devices, layout and its arguments, precision.",
            otherwise="none",
        ),
    ] = None
    """A plan that was made has what the file says in place of its name."""
    deepspeed: Annotated[
        Text | None,
        about(
            "File that configures DeepSpeed (JSON): ZeRO's stage and its buffers, precision, "
            "batches, clipping.",
            otherwise="none",
        ),
    ] = None
    unread: Annotated[
        tuple[Text, ...],
        about("What such a file says that changes memory and is not counted.", option=None),
    ] = ()
    target: Annotated[Literal["cuda", "cpu"], about("Where it trains.")] = "cuda"
    torch: Annotated[
        Version | None, about("PyTorch version that will run.", otherwise="the installed one")
    ] = None
    transformers: Annotated[
        Release | None,
        about(
            "transformers version that will run: what its attention, its loss and its "
            "checkpointing did otherwise.",
            otherwise="the installed one",
        ),
    ] = None
    alloc_conf: Annotated[str, about("PYTORCH_ALLOC_CONF of the run.")] = ""
    module_loading: Annotated[
        Literal["lazy", "eager"] | None,
        about(
            "CUDA_MODULE_LOADING of the run; eager, as it was before PyTorch 1.13 and CUDA 11.7, "
            "loads all kernels of a library at once.",
            otherwise="lazy, if the driver can",
        ),
    ] = None
    cudnn_benchmark: Annotated[
        bool,
        about(
            "torch.backends.cudnn.benchmark is on: the fastest of cuDNN's engines runs, not the "
            "one that it would choose."
        ),
    ] = False
    command: Annotated[
        Text | None,
        about(
            "A program that trains, as it is typed, in place of a model; it runs as it is on a "
            "simulated GPU.",
            option=None,
        ),
    ] = None
    steps: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 20)] | None,
        about("Of a command: optimizer steps after which it is stopped; 0: never.", option=None),
    ] = None

    @property
    def adapters(self) -> str | None:
        """What adapters train instead of the model, as ``lora`` says it; ``None``: there are none.

        On a quantised model that trains there are some unless the plan says none.
        """
        if self.lora is not None:
            return None if self.lora == NO_LORA else self.lora
        return USUAL_LORA if self.scheme is not None and not self.infers else None

    @property
    def scheme(self) -> str | None:
        """How linear layers are quantised; ``None``: they are not."""
        return None if self.quant == "none" else self.quant

    @property
    def name(self) -> str:
        """What people call what is trained: the model, or the command."""
        return self.command or self.model

    @property
    def program(self) -> "Plan":
        """What plans have in common that run the same model and loop on other sizes and GPUs."""
        return replace(self, batch=1, seq=None, gpu=None, alloc_conf="")

    @property
    def infers(self) -> bool:
        """Nothing is trained: the model runs forward, or generates."""
        return self.inference or self.generate is not None

    @property
    def gathers(self) -> bool:
        """The cache quantises tokens together, whenever enough of them are there."""
        return self.cache in ("quantized", "quantized-hqq")

    @property
    def disagreement(self) -> str | None:
        """Why PyTorch itself cannot run these settings together; ``None``: it can."""
        if self.inputs and (self.seq is not None or self.padding is not None):
            name = "seq" if self.seq is not None else "padding"
            return (
                f"{name} is of batches that memcalc makes, and input describes them: leave one out."
            )
        if self.infers:
            return self._without_training()
        if self.engine is not None or self.engine_args:
            return "engine needs generate: say how many tokens, such as --generate 256."
        if self.scheme is not None and self.lora == NO_LORA:
            return (
                f"on a base in {self.scheme} adapters alone train: leave out lora none, or quant."
            )
        if self.cache != "dynamic" or self.beams > 1:
            name = "cache" if self.cache != "dynamic" else "beams"
            return f"{name} needs generate: say how many tokens, such as --generate 256."
        if self.scheme is None and self.kbit_prepare is False:
            return "kbit_prepare is of quantised bases: add quant, or leave it out."
        if self.checkpoint_every > 1 and not self.checkpointing:
            return "checkpoint_every needs checkpointing: add --checkpointing."
        if self.liger and self.loss_chunks > 1:
            return "liger makes the loss in pieces of its own: leave out loss_chunks, or liger."
        if self.liger and self.target == "cpu":
            return "Liger's kernels are for GPUs: leave out liger, or target cpu."
        if self.gpu is not None and self.target == "cpu":
            return f"target cpu runs on no GPU: leave out gpu {self.gpu}, or target cpu."
        against = {
            "grad_accum above 1": self.grad_accum > 1,
            "max_grad_norm": self.max_grad_norm is not None,
            "precision amp-fp16": self.precision == "amp-fp16",
        }
        named = next((name for name, given in against.items() if given), None)
        if named is None or not self.optim_in_backward:
            return None
        return (
            f"optim_in_backward does not go with {named}: gradients are used and freed one by "
            "one, before all of them are known."
        )

    def _without_training(self) -> str | None:
        """What of a plan that infers is about training, or about another kind of inference."""
        asked = "generate" if self.generate is not None else "inference"
        if self.inference and self.generate is not None:
            return "generate is inference already: leave inference out."
        if self.inference and (self.cache != "dynamic" or self.beams > 1):
            return "inference is one forward pass without a cache: type --generate N for one."
        training = {
            "grad_accum": self.grad_accum > 1,
            "checkpointing": self.checkpointing,
            "loss_chunks": self.loss_chunks > 1,
            "liger": self.liger,
            "max_grad_norm": self.max_grad_norm is not None,
            "optim_in_backward": self.optim_in_backward,
            "resume": self.resume,
            "eval": self.eval is not None,
            "freeze": bool(self.freeze),
            "kbit_prepare": not self.kbit_prepare,
            "keep_outputs": self.keep_outputs is not None,
            "kv_cache": self.kv_cache is not None,
            "optim_args": bool(self.optim_args),
            f"loop {self.loop}": self.loop != "plain",
        }
        named = next((name for name, given in training.items() if given), None)
        if named is not None:
            return f"{asked} trains nothing: leave out {named}, or {asked}."
        if self.devices > 1 or self.parallel is not None:
            return f"{asked} is answered for one GPU so far: leave out devices and parallel."
        if self.generate is not None and self.inputs:
            return "generate makes its prompts itself: leave out input."
        return self._about_engines() or self._about_devices()

    def _about_engines(self) -> str | None:
        if self.engine is None:
            return "engine_args needs engine: name vllm or sglang." if self.engine_args else None
        if self.gpu is None:
            return "an engine reserves a share of a GPU: name it, such as --gpu a100-80gb."
        if self.precision.startswith("amp-"):
            return f"engines have no {self.precision}: type --precision {self.precision[4:]}."
        if self.scheme is not None:
            return "engines are answered with weights as they are so far: leave quant out."
        if self.cache != "dynamic" or self.beams > 1:
            return "engine keeps a cache of its own, and no beams: leave out cache and beams."
        return None

    def _about_devices(self) -> str | None:
        if self.gpu is not None and self.target == "cpu":
            return f"target cpu runs on no GPU: leave out gpu {self.gpu}, or target cpu."
        return None
