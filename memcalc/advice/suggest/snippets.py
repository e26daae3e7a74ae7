"""A plan as settings of the program that will train it, to copy.

A setting that the program lacks is a comment, so that nothing of the plan is dropped.
"""

from typing import NamedTuple

from msgspec.structs import replace

from memcalc import dialects, registry
from memcalc.catalog import models
from memcalc.catalog.quantized import BITSANDBYTES, TORCHAO, find_bnb_settings
from memcalc.catalog.rewrite import UNWRITTEN_FIELDS
from memcalc.dialects import accelerate, edit, trainer
from memcalc.errors import UsageError, unknown
from memcalc.files import templates
from memcalc.records.fields import FIELDS
from memcalc.records.names import WEIGHT_DTYPES, ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import adapter, format_setting


class Program(NamedTuple):
    """A program that trains, whose settings have the recipe format of its name."""

    layouts: tuple[str, ...]
    """Layouts over several GPUs that its settings express."""
    command: str = ""
    schemes: tuple[str, ...] = tuple(BITSANDBYTES)
    """Quantized bases that its settings express."""
    precisions: tuple[str, ...] = ()
    """Precisions that its settings express; empty: all."""


PROGRAMS = {
    "trainer": Program(("ddp", "fsdp1", "fsdp2")),
    "accelerate": Program(("ddp", "fsdp1", "fsdp2", *ZERO_STAGES)),
    "axolotl": Program(
        ("ddp", "fsdp2", *ZERO_STAGES),
        "axolotl train this.yaml",
        schemes=("nf4", "nf4-dq", "int8"),
    ),
    "llamafactory": Program(("ddp", *ZERO_STAGES), "llamafactory-cli train this.yaml"),
    "trl": Program(("ddp", "fsdp1", "fsdp2"), "trl sft --config this.yaml"),
    "swift": Program(("ddp", *ZERO_STAGES), "swift sft --config this.yaml"),
    "torchtune": Program(
        ("fsdp2",),
        "tune run RECIPE --config this.yaml",
        schemes=("nf4-dq",),
        precisions=("bf16", "fp32", "tf32"),
    ),
}


_ELSEWHERE = frozenset((*UNWRITTEN_FIELDS, "model", "task", "steps", "weights", "loop"))
"""Fields of a plan that its program is told elsewhere, or need not be."""
_OPTIMIZER_KEYS = {"optim", "optimizer", "optimizer._component_"}


def lora_config(adapters: str) -> str:
    """Return Python code of a ``peft.LoraConfig`` call for an adapters setting."""
    found = adapter(adapters)
    named = f'"{found.target}"' if isinstance(found.target, str) else repr(list(found.target))
    dropout = f"lora_dropout={found.dropout:g}, " if found.dropout else ""
    return f"LoraConfig(r={found.r}, lora_alpha={found.alpha:g}, {dropout}target_modules={named})"


def quantized_loading(plan: Plan) -> list[str]:
    """Return the arguments of ``from_pretrained`` that quantize a base, as Python code."""
    if plan.scheme is None:
        return []
    settings = ", ".join(bitsandbytes_arguments(plan))
    return [f"quantization_config=BitsAndBytesConfig({settings})", 'device_map={"": 0}']


def bitsandbytes_arguments(plan: Plan) -> list[str]:
    """Return the keyword arguments of ``BitsAndBytesConfig`` as Python code."""
    found = [f"{name}={value!r}" for name, value in BITSANDBYTES[plan.scheme or ""].items()]
    if "load_in_4bit=True" in found:
        default = WEIGHT_DTYPES.get(plan.precision.removeprefix("amp-"), "float32")
        found.append(f"bnb_4bit_compute_dtype=torch.{plan.bnb_4bit_compute_dtype or default}")
    return [one.replace("'", '"') for one in found]


def is_written_for(program: str, file: str) -> bool:
    """Return True if a recipe file has the settings format of a program."""
    path = dialects.find(file)
    if path is None or program not in PROGRAMS:
        return False
    return dialects.recognise(dialects.load(path)) is dialects.room(program)


def snippet(plan: Plan, program: str) -> str:
    """Return the plan as a settings file or Python code of one of ``PROGRAMS``, to copy.

    A setting that changes nothing in the text is a comment at its end.

    Raises:
        UsageError: there is no such program.
    """
    if program not in PROGRAMS:
        raise unknown("program", program, list(PROGRAMS), hint="see memcalc suggest --help.")
    text, usual = _render(plan, program), Plan()
    off = () if program == "accelerate" else trainer.OFF
    silent = (
        name
        for name in FIELDS
        if name not in _ELSEWHERE
        and not (name in off and not getattr(plan, name))
        and getattr(plan, name) != getattr(usual, name)
        and _render(replace(plan, **{name: getattr(usual, name)}), program) == text
    )
    return text + "".join(f"# {name}: {format_setting(getattr(plan, name))}\n" for name in silent)


def _render(plan: Plan, program: str) -> str:
    known = PROGRAMS[program]
    settings = dialects.room(program).write(plan)
    # A checkpoint that is quantized says itself how.
    quantized = find_bnb_settings(models.find(plan.model).config) is not None
    by_bitsandbytes = plan.scheme in BITSANDBYTES
    variant = None if plan.use_reentrant is None else {"use_reentrant": plan.use_reentrant}
    return templates.render(
        "snippet.j2",
        {"literal": lambda value: repr(value).replace("'", '"'), "repr": repr},
        program=program,
        command=known.command,
        plan=plan,
        settings=settings,
        yaml="" if program == "trainer" else edit.dump(settings),
        lora=lora_config(plan.lora) if plan.lora is not None else "",
        torchao=TORCHAO.get(plan.scheme or ""),
        bitsandbytes=bitsandbytes_arguments(plan) if by_bitsandbytes and not quantized else [],
        loading=_list_loading_arguments(plan, quantized),
        prepares=by_bitsandbytes and plan.kbit_prepare,
        variant=variant,
        knows_scheme=plan.scheme in (None, *known.schemes),
        knows_precision=not known.precisions or plan.precision in known.precisions,
        knows_layout=accelerate.name_layout(plan) in ("", *known.layouts),
        names_optimizer=not _OPTIMIZER_KEYS.isdisjoint(settings),
        optimizer=_name_optimizer(plan),
    )


def _list_loading_arguments(plan: Plan, quantized: bool) -> list[str]:
    """Return the keyword arguments of ``from_pretrained`` as Python code."""
    found = (
        [f"dtype=torch.{WEIGHT_DTYPES[plan.precision]}"] if plan.precision in WEIGHT_DTYPES else []
    )
    if plan.scheme in TORCHAO or plan.scheme in BITSANDBYTES:
        own = 'int(os.environ["LOCAL_RANK"])' if plan.devices > 1 else "0"
        found += [] if quantized else ["quantization_config=quantization_config"]
        found.append(f'device_map={{"": {own}}}')
    return found


def _name_optimizer(plan: Plan) -> str:
    """Return the optimizer's full class name, or its name in the plan if unknown."""
    try:
        return registry.find(plan.optim, {}).row.implementation
    except UsageError:
        return plan.optim
