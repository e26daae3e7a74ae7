"""The question: which model to train, and how.

A field of ``Plan`` declares everything in one place: its type and range or choices, how it is
typed, and its help in the docstring below it. The command line, the check of settings, the JSON
Schema of budget files and docs/cli.md are made from that; see ``memcalc.records.fields``.
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
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A training run or inference: every setting that changes a byte."""

    model: Annotated[
        str, Meta(pattern=r"\S|^$", title="the name of a model"), about("Arguments")
    ] = ""
    """A bundled name, a local folder or config.json, a hub name, or package.module:callable
    returning an nn.Module."""
    task: Annotated[Text, about("Model", otherwise="by architecture")] = "auto"
    """Head to train."""
    optim: Annotated[Text, about("Training", typed="Several: a comma list, or all.")] = "adamw"
    """Optimizer; see memcalc list optimizers. The Trainer's own is adamw_torch_fused."""
    optim_args: Annotated[
        Pairs,
        about("Training", option="optim-arg", typed="Written as key=value."),
    ] = ()
    """Arguments of the optimizer."""
    # A plan that was made has the settings in place of their name.
    preset: Annotated[
        Literal["full", "lora", "qlora"] | None, about("Training", otherwise="none")
    ] = None
    """Settings that are usual together, where they are not given: bf16 (fp16 on GPUs before
    Ampere), paged 8-bit AdamW (fused AdamW where DTensors are trained) and checkpointing (full),
    with LoRA on all linear layers (lora), on a base in 4 bit (qlora)."""
    precision: Annotated[
        Literal["fp32", "tf32", "amp-fp16", "amp-bf16", "bf16+amp", "bf16", "fp16"],
        about("Training"),
    ] = "fp32"
    """Type of the weights and of the computation. amp-bf16 keeps fp32 weights under autocast, or
    gathers them in bf16 under FSDP, as the Trainer's bf16=True does; bf16+amp keeps bf16 weights
    under it, as axolotl and most recipes load them; bf16 has no autocast. With an engine the
    default is bf16, or fp16 on GPUs before Ampere."""
    batch: Annotated[int, Meta(ge=1, le=1 << 20), about("Training")] = 8
    """Samples in one micro-batch."""
    seq: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 24)] | None,
        about("Training", otherwise="512, or the model's longest"),
    ] = None
    """Tokens per sample."""
    grad_accum: Annotated[Count, about("Training")] = 1
    """Micro-batches per optimizer step."""
    checkpointing: Annotated[bool, about("Training")] = False
    """Recompute activations in backward."""
    checkpoint_every: Annotated[Count, about("Training")] = 1
    """With checkpointing: recompute every n-th layer only."""
    use_reentrant: Annotated[
        bool | None,
        about(
            "Training",
            otherwise="yes after peft's prepare_model_for_kbit_training, except under the Trainer",
        ),
    ] = None
    """With checkpointing: its older variant, as gradient_checkpointing_kwargs say."""
    recompute: Annotated[Literal["all", "selective"], about("Training")] = "all"
    """With checkpointing: selective keeps results of attention and of every second product, as
    torchtitan's selective mode does."""
    offload_activations: Annotated[bool, about("Training")] = False
    """Keep what backward needs in pinned host memory (torch.autograd.graph.save_on_cpu)."""
    loss_chunks: Annotated[Count, about("Training")] = 1
    """Compute a causal language model's loss in this many pieces, each with its own logits."""
    liger: Annotated[bool, about("Model")] = False
    """Replace norms, rotary embeddings, gated layers and the loss by Liger's kernels, as
    TrainingArguments(use_liger_kernel=True) does; logits are not kept."""
    float8: Annotated[
        Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] | None,
        about("Training", otherwise="no layer"),
    ] = None
    """Compute linear layers in float8 by this recipe of torchao, as accelerate's mixed_precision
    fp8 does; from compute capability 8.9 (RTX 4090, H100)."""
    compile: Annotated[CompileMode | None, about("Model", otherwise="not compiled")] = None
    """Compile the model by torch.compile in this mode; Inductor and Triton run for real, which
    takes seconds to minutes."""
    attention: Annotated[
        Literal[
            "auto", "sdpa", "eager", "flash", "efficient", "cudnn", "math", "flash_attention_2"
        ],
        about("Model"),
    ] = "auto"
    """Implementation of attention; flash_attention_2 is the package flash-attn."""
    gpu: Annotated[Text | None, about("GPU")] = None
    """GPU to fit; see memcalc list gpus."""
    padding: Annotated[bool | None, about("Loop", otherwise="yes, except for causal LM")] = None
    """Batches are padded, so an attention mask is passed."""
    # False where the run disables it (``torch.backends.cuda.enable_cudnn_sdp``).
    cudnn_attention: Annotated[bool, about("Model")] = True
    """Let cuDNN attention run where PyTorch prefers it."""
    freeze: Annotated[tuple[Text, ...], about("Model")] = ()
    """Pattern (fnmatch) of parameter names that do not train."""
    quant: Annotated[
        Literal[
            "nf4", "nf4-dq", "fp4", "int8", "torchao-int8", "torchao-float8", "torchao-int4", "none"
        ]
        | None,
        about("Model", otherwise="none, or the checkpoint's own"),
    ] = None
    """Load the model's linear layers quantized, by bitsandbytes or torchao; nf4-dq quantizes the
    scales too, and none dequantizes a quantized checkpoint."""
    bnb_4bit_compute_dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        about("Model", otherwise="the precision's"),
    ] = None
    """With quant in 4 bit: what its layers compute in; float32 is BitsAndBytesConfig's own."""
    kbit_prepare: Annotated[bool, about("Model")] = True
    """With quant: cast what is not quantized to fp32 before training, as peft's
    prepare_model_for_kbit_training does."""
    lora: Annotated[
        Lora | None,
        about("Model", otherwise="none; r=16,target=all-linear when --quant is used for training"),
    ] = None
    """Train adapters instead of the model: 16 or r=16,target=all-linear, or none."""
    autocast_adapter_dtype: Annotated[bool, about("Model")] = True
    """With lora: adapters of 16-bit weights are in fp32, the default of get_peft_model."""
    loop: Annotated[Literal["plain", "accelerate", "trainer"], about("Loop")] = "plain"
    """Training loop: plain PyTorch, accelerate's Accelerator or transformers' Trainer."""
    max_grad_norm: Annotated[
        Annotated[float, Meta(gt=0, le=1e300)] | None,
        about("Training", otherwise="1.0 under the Trainer, otherwise none"),
    ] = None
    """Clip gradients to this norm."""
    set_to_none: Annotated[bool, about("Training")] = True
    """zero_grad frees gradients."""
    keep_outputs: Annotated[
        bool | None, about("Loop", otherwise="yes, except under the Trainer")
    ] = None
    """Keep the model's outputs until the next forward returns, as outputs = model(**batch) does."""
    kv_cache: Annotated[
        bool | None, about("Loop", otherwise="the config's value; no under the Trainer")
    ] = None
    """The model returns its KV cache too (config.use_cache)."""
    optim_in_backward: Annotated[bool, about("Training")] = False
    """Update each parameter inside backward and free its gradient at once."""
    resume: Annotated[bool, about("Loop")] = False
    """Resume from a checkpoint: optimizer state exists before the first forward."""
    eval: Annotated[Count | None, about("Loop")] = None
    """Evaluate over this many batches after the last step, keeping their logits."""
    inference: Annotated[bool, about("Inference")] = False
    """One forward pass without gradients: nothing is trained."""
    generate: Annotated[Annotated[int, Meta(ge=1, le=1 << 24)] | None, about("Inference")] = None
    """Generate this many tokens after a prompt of --seq tokens; nothing is trained."""
    cache: Annotated[Cache, about("Inference")] = "dynamic"
    """With generate: how keys and values are kept."""
    beams: Annotated[Count, about("Inference")] = 1
    """With generate: beams per sample."""
    engine: Annotated[Literal["vllm", "sglang"] | None, about("Inference", otherwise="none")] = None
    """With inference or generate: what this serving engine would reserve on the GPU, and how many
    sequences would fit."""
    engine_args: Annotated[
        Pairs,
        about("Inference", option="engine-arg", typed="Written as key=value."),
    ] = ()
    """Settings of the engine, by its own names."""
    vllm: Annotated[
        Release | None, about("Inference", otherwise="the installed one, or the rules of 0.33.0")
    ] = None
    """With engine vllm: release that starts on the simulated GPU, such as 0.33; fetched once (5.8
    GB on disk)."""
    inputs: Annotated[tuple[Input, ...], about("Loop", option="input")] = ()
    """Input of a callable's model, name=dtype[shape]."""
    devices: Annotated[Count, about("Several GPUs")] = 1
    """GPUs that train together; figures are for one of them."""
    parallel: Annotated[Text | None, about("Several GPUs", otherwise="ddp")] = None
    """Layout over several GPUs: ddp, zero1, zero2, zero3, fsdp1, fsdp2, hsdp=2x4; pp=4, cp=2, tp=2,
    ep=8 and such as pp=2,tp=2,fsdp2=4."""
    parallel_args: Annotated[
        Pairs,
        about("Several GPUs", option="parallel-arg", typed="Written as key=value."),
    ] = ()
    """Arguments of the layout's wrapper."""
    rank: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 16) - 1)] | Literal["first", "last", "all"] | None,
        about(
            "Several GPUs",
            otherwise="the first or the last, whichever needs more, of stages each; of a command "
            "the first",
        ),
    ] = None
    """Rank whose memory is shown: its number, first, last, or all."""
    # A plan that was made has what the recipe says in place of its name.
    recipe: Annotated[Text | None, about("Loop", otherwise="none")] = None
    """Recipe of a training framework, which settings beside it override: TrainingArguments,
    axolotl, LLaMA-Factory, TRL, torchtune or ms-swift. It may stand in place of a model."""
    # A plan that was made has what the file says in place of its name.
    accelerate_config: Annotated[Text | None, about("Several GPUs", otherwise="none")] = None
    """File of accelerate config (YAML): devices, layout and its arguments, precision."""
    deepspeed: Annotated[Text | None, about("Several GPUs", otherwise="none")] = None
    """File that configures DeepSpeed (JSON): ZeRO's stage and its buffers, precision, batches,
    clipping."""
    unread: Annotated[tuple[Text, ...], about("", option=None)] = ()
    """What such a file says that changes memory and is not counted."""
    assumed: Annotated[tuple[Text, ...], about("", option=None)] = ()
    """How a recipe was read, and what it leaves to its framework."""
    target: Annotated[Literal["cuda", "cpu"], about("GPU")] = "cuda"
    """Device to train on."""
    torch: Annotated[Version | None, about("GPU", otherwise="the installed one")] = None
    """PyTorch version that will run."""
    transformers: Annotated[Release | None, about("GPU", otherwise="the installed one")] = None
    """transformers version that will run."""
    alloc_conf: Annotated[str, about("GPU")] = ""
    """PYTORCH_ALLOC_CONF of the run."""
    module_loading: Annotated[
        Literal["lazy", "eager"] | None, about("GPU", otherwise="lazy, if the driver can")
    ] = None
    """CUDA_MODULE_LOADING of the run; eager, as it was before PyTorch 1.13 and CUDA 11.7, loads all
    kernels of a library at once."""
    cudnn_benchmark: Annotated[bool, about("GPU")] = False
    """torch.backends.cudnn.benchmark is on: cuDNN's fastest engine runs, instead of its first
    choice."""
    command: Annotated[Text | None, about("", option=None)] = None
    """A program that trains, as it is typed, in place of a model; it runs as it is on a simulated
    GPU."""
    steps: Annotated[Annotated[int, Meta(ge=0, le=1 << 20)] | None, about("", option=None)] = None
    """Of a command: optimizer steps after which it is stopped; 0: never."""
    python: Annotated[Text | None, about("", option=None)] = None
    """Of a command: the Python that runs it."""
    weights: Annotated[bool, about("", option=None)] = False
    """Of a command: real weights are downloaded and read."""

    @property
    def adapters(self) -> str | None:
        """The adapters that train instead of the model, written as ``lora``, or None.

        A quantized model that trains has adapters unless the plan says none.
        """
        if self.lora is not None:
            return None if self.lora == NO_LORA else self.lora
        return USUAL_LORA if self.scheme is not None and not self.infers else None

    @property
    def scheme(self) -> str | None:
        """The scheme that quantizes linear layers, or None."""
        return None if self.quant == "none" else self.quant

    @property
    def name(self) -> str:
        """The name for users: the model, or the command."""
        return self.command or self.model

    @property
    def half_weights(self) -> bool:
        """True if weights are kept in 16 bits."""
        return not self.precision.startswith("amp-") and "16" in self.precision

    @property
    def infers(self) -> bool:
        """True if nothing trains: the model runs forward, or generates."""
        return self.inference or self.generate is not None

    @property
    def gathers(self) -> bool:
        """True if the KV cache collects tokens and quantizes them together."""
        return self.cache in ("quantized", "quantized-hqq")
