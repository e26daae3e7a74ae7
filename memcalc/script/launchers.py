"""Launchers that start one process per GPU: their script, and each process's environment.

The launchers' own parsers read their command lines (torchrun of PyTorch, accelerate, DeepSpeed).
Processes find the variables that torchrun sets (torch/distributed/elastic/agent/
server/local_elastic_agent.py, 2.13); accelerate's and DeepSpeed's launchers set no less.
"""

import contextlib
import functools
import importlib
import importlib.util
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from memcalc.children.child import Speaker
from memcalc.engine.patches import Patches
from memcalc.errors import UsageError
from memcalc.files.artifact import decode, encode
from memcalc.records.plan import Plan

NAMES = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
}
"""Launchers by what is typed, as a command or after ``python -m``."""
OTHERS = ("mpirun", "srun", "horovodrun")
"""Launchers whose number of processes is not in their command line."""
_PORT = 29500


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a launcher."""

    script: str
    """The path or module that each process runs."""
    arguments: tuple[str, ...]
    is_module: bool = False
    local: int = 1
    """Processes on each machine."""
    nodes: int = 1
    """Machines."""
    own: dict[str, str] = {}
    """Variables that the launcher itself sets beside ranks."""
    assumed: str = ""
    """A sentence on a setting that is assumed."""
    names_rank: bool = False
    """The first argument of each process is its number on the machine, too."""

    @property
    def world(self) -> int:
        """The number of processes on all machines."""
        return self.local * self.nodes

    def words(self, rank: int) -> tuple[str, ...]:
        """Return the arguments of the process of this rank."""
        named = (f"--local-rank={rank % self.local}",) if self.names_rank else ()
        return (*named, *self.arguments)

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables that the launcher sets for the process of this rank."""
        names = {
            "RANK": rank,
            "LOCAL_RANK": rank % self.local,
            "WORLD_SIZE": self.world,
            "LOCAL_WORLD_SIZE": self.local,
            "GROUP_RANK": rank // self.local,
            "GROUP_WORLD_SIZE": self.world // self.local,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": self.world,
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": _PORT,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "OMP_NUM_THREADS": 1,
        }
        return {**{name: str(value) for name, value in names.items()}, **self.own}


def parse(launcher: str, words: Sequence[str], plan: Plan) -> Launch:
    """Parse the words after a launcher's name by its own parser, in a fork that has PyTorch.

    Raises:
        UsageError: its own parser refuses them, or the launcher is not installed.
    """
    from memcalc.estimation.engine import engine

    gpus = plan.devices if plan.gpu is not None else None
    request = {"launcher": launcher, "words": list(words), "gpus": gpus}
    return decode(Launch, engine.ask(__name__, f"reader of {launcher}", request, plan))


def warm(*hint: str) -> None:
    """Import PyTorch over the stub driver, as a replay of the run will need it."""
    importlib.import_module("memcalc.engine.replay").warm(*hint)


def answer(request: dict[str, Any], _: Speaker) -> dict[str, Any]:
    """Parse a launcher's words; the entry point of a child process."""
    found: dict[str, Any] = encode(_READERS[request["launcher"]](request["words"], request["gpus"]))
    return found


def _parse_torchrun(words: list[str], gpus: int | None, *, older: bool = False) -> Launch:
    """Parse the words of torchrun, or of ``torch.distributed.launch``, with ``--local-rank``."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    if older:
        # Source: torch/distributed/launch.py, ``parse_args`` (2.13).
        parser.add_argument("--use-env", "--use_env", action="store_true")
    given = _parse_words("torch.distributed.launch" if older else "torchrun", parser, words)
    if given.no_python:
        raise UsageError("torchrun --no-python starts a program that is not Python.")
    return Launch(
        script=given.training_script,
        arguments=tuple(given.training_script_args),
        names_rank=older and not given.use_env,
        is_module=bool(given.module),
        local=_count_processes(given.nproc_per_node, gpus),
        nodes=_count_nodes(str(given.nnodes)),
    )


def _count_processes(text: str, gpus: int | None) -> int:
    """Return the number in torchrun's --nproc-per-node, or ``gpus`` for "auto" and "gpu"."""
    if text in ("auto", "gpu") and gpus is not None:
        return gpus
    if text in ("auto", "gpu", "cpu"):
        raise UsageError(
            f"torchrun --nproc-per-node {text} counts the GPUs of the machine it runs on: say how "
            "many there will be, as in --nproc-per-node 8 or memcalc simulate --gpu 8xh100."
        )
    if not (text.isdecimal() and len(text) < 8 and int(text)):
        raise UsageError(f"torchrun --nproc-per-node {text} is no number of processes.")
    return int(text)


def _count_nodes(text: str) -> int:
    """Return the number of machines, the largest of an elastic range."""
    try:
        return max(int(part) for part in text.split(":"))
    except ValueError:
        raise UsageError(f"torchrun --nnodes {text} is no number of machines.") from None


def _parse_accelerate(words: list[str], gpus: int | None) -> Launch:
    if words[:1] == ["launch"]:
        words = words[1:]
    launch = _import_launcher("accelerate.commands.launch", "accelerate")
    given = _parse_words("accelerate launch", launch.launch_command_parser(), words)
    unsaid = given.num_processes is None
    # Its own reading of defaults and of --config_file.
    with contextlib.redirect_stdout(io.StringIO()), _report_gpus(gpus or 1):
        given, defaults, from_file = launch._validate_launch_command(given)
    nodes = given.num_machines or 1
    total = given.num_processes or 1
    before = dict(os.environ)
    if given.use_deepspeed and not given.cpu:
        own = _deepspeed_variables(given, defaults, from_file)
    else:
        utils = importlib.import_module("accelerate.utils.launch")
        several, alone = utils.prepare_multi_gpu_env, utils.prepare_simple_launcher_cmd_env
        own = several(given) if total > 1 else alone(given)[1]
    return Launch(
        script=given.training_script,
        arguments=tuple(given.training_script_args),
        is_module=bool(given.module),
        local=max(1, total // nodes),
        nodes=nodes,
        own={name: value for name, value in own.items() if before.get(name) != value},
        assumed=_ONE if unsaid and gpus is None and defaults is None else "",
    )


_ONE = (
    "accelerate launch starts a process for each GPU that it finds: one is assumed (name them, as "
    "in --gpu 8xh100, or say --num_processes)"
)


@contextlib.contextmanager
def _report_gpus(gpus: int) -> Iterator[None]:
    """Patch torch.cuda in this context to report this number of GPUs."""
    import torch

    with Patches() as patches:
        patches.set(torch.cuda, "device_count", lambda: gpus)
        patches.set(torch.cuda, "is_available", lambda: True)
        yield


def _deepspeed_variables(given: Any, defaults: Any, precision_of_file: bool) -> Any:
    """Return the variables that ``launch_command`` of accelerate 1.15 sets for DeepSpeed."""
    if importlib.util.find_spec("deepspeed") is None:
        raise _package_error("deepspeed", "the config asks for it")
    fields = [*defaults.deepspeed_config] if defaults else []
    fields += ["mixed_precision"] * bool(precision_of_file)
    given.deepspeed_fields_from_accelerate_config = ",".join(fields)
    return importlib.import_module("accelerate.utils.launch").prepare_deepspeed_cmd_env(given)[1]


def _parse_deepspeed(words: list[str], gpus: int | None) -> Launch:
    with Patches() as patches:
        # It asks what GPU there is as it is imported, and the simulated one comes later.
        patches.environment("DS_ACCELERATOR", os.environ.get("DS_ACCELERATOR", "cuda"))
        runner = _import_launcher("deepspeed.launcher.runner", "deepspeed")
    given = _parse_words("deepspeed", runner, words)
    local = given.num_gpus if given.num_gpus > 0 else gpus
    if local is None:
        raise UsageError(
            "deepspeed counts the GPUs of the machine it runs on: say how many there will be, as "
            "in deepspeed --num_gpus 8 train.py or memcalc simulate --gpu 8xh100."
        )
    return Launch(
        script=given.user_script,
        arguments=tuple(given.user_args),
        is_module=bool(given.module),
        local=local,
        nodes=max(1, given.num_nodes),
    )


def _import_launcher(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise _package_error(package, "its own parser reads its command line") from None


def _package_error(package: str, why: str) -> UsageError:
    return UsageError(
        f"{package} is not installed here, and {why}: type pip install {package}, or name the "
        "script with torchrun."
    )


def _parse_words(name: str, parser: Any, words: list[str]) -> Any:
    """Parse words by the launcher's argparse parser; raise its error as one sentence."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            return parser.parse_args(words)
    except SystemExit:
        lines = [line for line in output.getvalue().splitlines() if line.strip()]
        why = lines[-1].split("error: ")[-1] if lines else "no script is named"
        raise UsageError(f"{name} does not take this: {why}") from None


_READERS: dict[str, Callable[[list[str], int | None], Launch]] = {
    "torchrun": _parse_torchrun,
    "torch.distributed.launch": functools.partial(_parse_torchrun, older=True),
    "accelerate": _parse_accelerate,
    "deepspeed": _parse_deepspeed,
}
