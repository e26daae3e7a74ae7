"""The question: which model to train, and how.

A field of ``Plan`` says everything about itself where it stands: its type and range or choices, its
words for help, and how it is typed. The command line, the check of settings, the JSON Schema of
budget files and docs/cli.md are made from that; see ``memcalc.records.fields``.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from memcalc.records.values import (
    NO_LORA,
    USUAL_LORA,
    Cache,
    CompileMode,
    Count,
    Input,
    Lora,
    Pairs,
    Release,
    Text,
    Version,
    about,
    about_pairs,
    untyped,
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to train and how; everything that changes a byte."""

    model: Annotated[
        Annotated[str, Meta(pattern=r"\S|^$", title="the name of a model")],
        about(
            "Arguments",
            "A bundled name, a local folder or config.json, a hub name, or package.module:callable "
            "returning an nn.Module.",
        ),
    ] = ""
    task: Annotated[Text, about("Model", "Head to train.", otherwise="by architecture")] = "auto"
    optim: Annotated[
        Text,
        about(
            "Training",
            "Optimizer; see memcalc list optimizers. The Trainer's own is adamw_torch_fused.",
            typed="Several: a comma list, or all.",
        ),
    ] = "adamw"
    optim_args: Annotated[
        Pairs, about_pairs("Training", "Arguments of the optimizer.", "optim-arg")
    ] = ()
    preset: Annotated[
        Literal["full", "lora", "qlora"] | None,
        about(
            "Training",
            "Settings that are usual together, where they are not given: bf16 (fp16 on GPUs before "
            "Ampere), paged 8-bit AdamW "
            "(fused AdamW where DTensors are trained) and checkpointing (full), with LoRA on all "
            "linear layers (lora), on a base in 4 bit (qlora).",
            otherwise="none",
        ),
    ] = None
    """A plan that was made has the settings in place of their name."""
    precision: Annotated[
        Literal["fp32", "tf32", "amp-fp16", "amp-bf16", "bf16+amp", "bf16", "fp16"],
        about(
            "Training",
            "Type of the weights and of the computation. amp-bf16 keeps fp32 weights under "
            "autocast, or gathers them in bf16 under FSDP, as the Trainer's bf16=True does; "
            "bf16+amp keeps bf16 weights under it, as axolotl and most recipes load them; bf16 "
            "has no autocast.",
        ),
    ] = "fp32"
    batch: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)], about("Training", "Samples in one micro-batch.")
    ] = 8
    seq: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 24)] | None,
        about("Training", "Tokens per sample.", otherwise="512, or the model's longest"),
    ] = None
    grad_accum: Annotated[Count, about("Training", "Micro-batches per optimizer step.")] = 1
    checkpointing: Annotated[bool, about("Training", "Recompute activations in backward.")] = False
    checkpoint_every: Annotated[
        Count, about("Training", "With checkpointing: recompute every n-th layer only.")
    ] = 1
    use_reentrant: Annotated[
        bool | None,
        about(
            "Training",
            "With checkpointing: its older variant, as gradient_checkpointing_kwargs say.",
            otherwise="yes after peft's prepare_model_for_kbit_training, except under the Trainer",
        ),
    ] = None
    loss_chunks: Annotated[
        Count,
        about(
            "Training",
            "Compute a causal language model's loss in this many pieces, each with its own logits.",
        ),
    ] = 1
    liger: Annotated[
        bool,
        about(
            "Model",
            "Replace norms, rotary embeddings, gated layers and the loss by Liger's kernels, as "
            "TrainingArguments(use_liger_kernel=True) does; logits are not kept.",
        ),
    ] = False
    compile: Annotated[
        CompileMode | None,
        about(
            "Model",
            "Compile the model by torch.compile in this mode; Inductor and Triton run for real, "
            "which takes seconds to minutes.",
            otherwise="not compiled",
        ),
    ] = None
    attention: Annotated[
        Literal[
            "auto", "sdpa", "eager", "flash", "efficient", "cudnn", "math", "flash_attention_2"
        ],
        about("Model", "Implementation of attention; flash_attention_2 is the package flash-attn."),
    ] = "auto"
    gpu: Annotated[Text | None, about("GPU", "GPU to fit; see memcalc list gpus.")] = None
    padding: Annotated[
        bool | None,
        about(
            "Loop",
            "Batches are padded, so an attention mask is passed.",
            otherwise="yes, except for causal LM",
        ),
    ] = None
    cudnn_attention: Annotated[
        bool, about("Model", "Let cuDNN attention run where PyTorch prefers it.")
    ] = True
    """False where the run disables it (``torch.backends.cuda.enable_cudnn_sdp``)."""
    freeze: Annotated[
        tuple[Text, ...], about("Model", "Pattern (fnmatch) of parameter names that do not train.")
    ] = ()
    quant: Annotated[
        Literal[
            "nf4", "nf4-dq", "fp4", "int8", "torchao-int8", "torchao-float8", "torchao-int4", "none"
        ]
        | None,
        about(
            "Model",
            "Load the model's linear layers quantized, by bitsandbytes or torchao; nf4-dq "
            "quantizes the scales too. none dequantizes a checkpoint that is quantized.",
            otherwise="none, or the checkpoint's own",
        ),
    ] = None
    bnb_4bit_compute_dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        about(
            "Model",
            "With quant in 4 bit: what its layers compute in; float32 is BitsAndBytesConfig's own.",
            otherwise="the precision's",
        ),
    ] = None
    kbit_prepare: Annotated[
        bool,
        about(
            "Model",
            "With quant: cast what is not quantized to fp32 before training, as peft's "
            "prepare_model_for_kbit_training does.",
        ),
    ] = True
    lora: Annotated[
        Lora | None,
        about(
            "Model",
            "Train adapters instead of the model: 16 or r=16,target=all-linear, or none.",
            otherwise="none; r=16,target=all-linear when --quant is used for training",
        ),
    ] = None
    autocast_adapter_dtype: Annotated[
        bool,
        about(
            "Model",
            "With lora: adapters of 16-bit weights are in fp32, the default of get_peft_model.",
        ),
    ] = True
    loop: Annotated[
        Literal["plain", "accelerate", "trainer"],
        about(
            "Loop",
            "Training loop: plain PyTorch, accelerate's Accelerator or transformers' Trainer.",
        ),
    ] = "plain"
    max_grad_norm: Annotated[
        Annotated[float, Meta(gt=0, le=1e300)] | None,
        about(
            "Training",
            "Clip gradients to this norm.",
            otherwise="1.0 under the Trainer, otherwise none",
        ),
    ] = None
    set_to_none: Annotated[bool, about("Training", "zero_grad frees gradients.")] = True
    keep_outputs: Annotated[
        bool | None,
        about(
            "Loop",
            "Keep the model's outputs until the next forward returns, as outputs = model(**batch) "
            "does.",
            otherwise="yes, except under the Trainer",
        ),
    ] = None
    kv_cache: Annotated[
        bool | None,
        about(
            "Loop",
            "The model returns its KV cache too (config.use_cache).",
            otherwise="the config's value; no under the Trainer",
        ),
    ] = None
    optim_in_backward: Annotated[
        bool,
        about("Training", "Update each parameter inside backward and free its gradient at once."),
    ] = False
    resume: Annotated[
        bool,
        about("Loop", "Resume from a checkpoint: optimizer state exists before the first forward."),
    ] = False
    eval: Annotated[
        Count | None,
        about("Loop", "Evaluate over this many batches after the last step, keeping their logits."),
    ] = None
    inference: Annotated[
        bool, about("Inference", "One forward pass without gradients: nothing is trained.")
    ] = False
    generate: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 24)] | None,
        about(
            "Inference",
            "Generate this many tokens after a prompt of --seq tokens; nothing is trained.",
        ),
    ] = None
    cache: Annotated[Cache, about("Inference", "With generate: how keys and values are kept.")] = (
        "dynamic"
    )
    beams: Annotated[Count, about("Inference", "With generate: beams per sample.")] = 1
    engine: Annotated[
        Literal["vllm", "sglang"] | None,
        about(
            "Inference",
            "With inference or generate: what this serving engine would reserve on the GPU, and "
            "how many sequences would fit.",
            otherwise="none",
        ),
    ] = None
    engine_args: Annotated[
        Pairs, about_pairs("Inference", "Settings of the engine, by its own names.", "engine-arg")
    ] = ()
    vllm: Annotated[
        Release | None,
        about(
            "Inference",
            "With engine vllm: release that starts on the simulated GPU, such as 0.33; fetched "
            "once (5.8 GB on disk).",
            otherwise="the installed one, or the rules of 0.33.0",
        ),
    ] = None
    inputs: Annotated[
        tuple[Input, ...],
        about("Loop", "Input of a callable's model, name=dtype[shape].", option="input"),
    ] = ()
    devices: Annotated[
        Count, about("Several GPUs", "GPUs that train together; figures are for one of them.")
    ] = 1
    parallel: Annotated[
        Text | None,
        about(
            "Several GPUs",
            "Layout over several GPUs: ddp, zero1, zero2, zero3, fsdp1, fsdp2, hsdp=2x4; pp=4, "
            "cp=2, tp=2, ep=8 and such as pp=2,tp=2,fsdp2=4.",
            otherwise="ddp",
        ),
    ] = None
    parallel_args: Annotated[
        Pairs, about_pairs("Several GPUs", "Arguments of the layout's wrapper.", "parallel-arg")
    ] = ()
    rank: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 16) - 1)] | Literal["first", "last", "all"] | None,
        about(
            "Several GPUs",
            "Rank whose memory is shown: its number, first, last, or all.",
            otherwise="the first or the last, whichever needs more, of stages each; of a command "
            "the first",
        ),
    ] = None
    recipe: Annotated[
        Text | None,
        about(
            "Loop",
            "Recipe of a training framework, which settings beside it override: TrainingArguments, "
            "axolotl, LLaMA-Factory, TRL, torchtune or ms-swift. It may stand in place of a model.",
            otherwise="none",
        ),
    ] = None
    """A plan that was made has what the recipe says in place of its name."""
    accelerate_config: Annotated[
        Text | None,
        about(
            "Several GPUs",
            "File of accelerate config (YAML): devices, layout and its arguments, precision.",
            otherwise="none",
        ),
    ] = None
    """A plan that was made has what the file says in place of its name."""
    deepspeed: Annotated[
        Text | None,
        about(
            "Several GPUs",
            "File that configures DeepSpeed (JSON): ZeRO's stage and its buffers, precision, "
            "batches, clipping.",
            otherwise="none",
        ),
    ] = None
    unread: Annotated[
        tuple[Text, ...],
        untyped("What such a file says that changes memory and is not counted."),
    ] = ()
    assumed: Annotated[
        tuple[Text, ...],
        untyped("How a recipe was read, and what it leaves to its framework."),
    ] = ()
    target: Annotated[Literal["cuda", "cpu"], about("GPU", "Where it trains.")] = "cuda"
    torch: Annotated[
        Version | None,
        about("GPU", "PyTorch version that will run.", otherwise="the installed one"),
    ] = None
    transformers: Annotated[
        Release | None,
        about("GPU", "transformers version that will run.", otherwise="the installed one"),
    ] = None
    alloc_conf: Annotated[str, about("GPU", "PYTORCH_ALLOC_CONF of the run.")] = ""
    module_loading: Annotated[
        Literal["lazy", "eager"] | None,
        about(
            "GPU",
            "CUDA_MODULE_LOADING of the run; eager, as it was before PyTorch 1.13 and CUDA 11.7, "
            "loads all kernels of a library at once.",
            otherwise="lazy, if the driver can",
        ),
    ] = None
    cudnn_benchmark: Annotated[
        bool,
        about(
            "GPU",
            "torch.backends.cudnn.benchmark is on: cuDNN's fastest engine runs, instead of its "
            "first choice.",
        ),
    ] = False
    command: Annotated[
        Text | None,
        untyped("A program that trains, as it is typed; it runs as it is on a simulated GPU."),
    ] = None
    steps: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 20)] | None,
        untyped("Of a command: optimizer steps after which it is stopped; 0: never."),
    ] = None
    python: Annotated[Text | None, untyped("Of a command: the Python that runs it.")] = None
    weights: Annotated[bool, untyped("Of a command: real weights are downloaded and read.")] = False

    @property
    def adapters(self) -> str | None:
        """What adapters train instead of the model, as ``lora`` says it; ``None``: there are none.

        On a quantized model that trains there are some unless the plan says none.
        """
        if self.lora is not None:
            return None if self.lora == NO_LORA else self.lora
        return USUAL_LORA if self.scheme is not None and not self.infers else None

    @property
    def scheme(self) -> str | None:
        """How linear layers are quantized; ``None``: they are not."""
        return None if self.quant == "none" else self.quant

    @property
    def name(self) -> str:
        """What people call what is trained: the model, or the command."""
        return self.command or self.model

    @property
    def half_weights(self) -> bool:
        """Weights are kept in 16 bits."""
        return not self.precision.startswith("amp-") and "16" in self.precision

    @property
    def infers(self) -> bool:
        """Nothing is trained: the model runs forward, or generates."""
        return self.inference or self.generate is not None

    @property
    def gathers(self) -> bool:
        """The cache quantizes tokens together, whenever enough of them are there."""
        return self.cache in ("quantized", "quantized-hqq")
