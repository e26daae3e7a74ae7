"""Write configs/positions.json: which architectures take no more tokens than their config names.

Run with the newest transformers that memcalc supports; it takes some minutes. Models with rotary or
relative positions take sequences of any length; others look positions up in a table. Which is which
is tried out on small models of every architecture: where one position more makes no tensor larger
and one token more runs, there is no end. Where there is a table, the model runs on the CPU with one
token more, for tables that grow, and with fewer until it runs.
"""

import inspect
import json
import pathlib
import sys
import warnings
from typing import Any

import torch
import transformers

from memcalc.catalog import architectures
from memcalc.catalog.positions import KEYS
from memcalc.workload.model import select_text_part, set_missing_tokens

PATH = pathlib.Path(__file__).parent.parent / "configs" / "positions.json"
FEW = 24
WORDS = 1000
LARGEST = 150_000_000
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
          "decoder_layers", "num_encoder_layers", "num_decoder_layers")  # fmt: skip
TASKS = ("causal-lm", "masked-lm", "seq2seq-lm", "sequence-classification", "contrastive", "base")


class Kind:
    """One model type: its class, and where its config says how many positions there are."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.config = getattr(transformers, row["config"])
        head = next(row["heads"][task] for task in TASKS if task in row["heads"])
        self.model = getattr(transformers, head)
        part = self._part(self.config())
        self.keys = [key for key in KEYS if isinstance(getattr(part, key, None), int)]
        self.default = min((getattr(part, key) for key in self.keys), default=0)
        self.padding = getattr(part, "pad_token_id", None)
        self.takes_tokens = "input_ids" in inspect.signature(self.model.forward).parameters

    @staticmethod
    def _part(config: Any) -> Any:
        return getattr(config, "text_config", None) or config

    def build(self, positions: int) -> torch.nn.Module:
        """A model with so many positions, as small as its config allows."""
        for change in (self._shrink, self._fill, lambda part: None):
            config = self.config()
            part = self._part(config)
            for key in self.keys:
                setattr(part, key, positions)
            try:
                change(part)
                model = self.model(select_text_part(config, self.model)).eval()
            except Exception as error:
                failed = error
                continue
            set_missing_tokens(model)
            return model
        raise failed

    @staticmethod
    def _shrink(part: Any) -> None:
        for key in LAYERS:
            if isinstance(getattr(part, key, None), int):
                setattr(part, key, 1)
        if isinstance(getattr(part, "vocab_size", None), int):
            part.vocab_size = min(part.vocab_size, WORDS)
        for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
            known = getattr(part, key, -1)
            if known is None or known >= WORDS:
                setattr(part, key, 0)

    @staticmethod
    def _fill(part: Any) -> None:
        """Some configs leave these out and have no defaults for them."""
        part.num_key_value_heads = part.num_attention_heads
        part.head_dim = part.hidden_size // part.num_attention_heads


def sizes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors, also of those that are plain attributes."""
    found = {name: tuple(p.shape) for name, p in model.named_parameters()}
    found |= {name: tuple(buffer.shape) for name, buffer in model.named_buffers()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                found[f"{name}.{key}"] = tuple(value.shape)
    return found


def runs(model: torch.nn.Module, length: int, device: str) -> bool:
    tokens = torch.full((1, length), 5, device=device)
    decoded = "decoder_input_ids" in inspect.signature(model.forward).parameters
    try:
        with torch.no_grad():
            model(input_ids=tokens, **({"decoder_input_ids": tokens} if decoded else {}))
    except Exception:
        return False
    return True


def offset(kind: Kind) -> int | None:
    """How many tokens fewer than positions the model takes; ``None``: it takes any number."""
    with torch.device("meta"):
        small, larger = kind.build(FEW), kind.build(FEW + 1)
    if sizes(small) == sizes(larger):
        both = kind.takes_tokens and runs(small, FEW, "meta")
        return 0 if both and not runs(small, FEW + 1, "meta") else None
    if not kind.takes_tokens or sum(p.numel() for p in small.parameters()) > LARGEST:
        return 0
    model = kind.build(FEW)
    if runs(model, FEW + 1, "cpu"):
        return None
    found = next((less for less in range(5) if runs(model, FEW - less, "cpu")), None)
    if found is None:
        print(f"{kind.model.__name__} does not run on tokens alone", file=sys.stderr)
    return found or 0


def told(name: str, row: dict[str, Any]) -> dict[str, Any] | None:
    """What the file says of one type; ``None``: it takes any length, or no tokens."""
    try:
        kind = Kind(row)
    except Exception:
        # No head that takes tokens, or no config without a checkpoint's own.
        return None
    if kind.default < 1:
        return None
    try:
        less = offset(kind)
    except Exception as error:
        # Not tried out: as if it had a table, so that no answer is given for a run that fails.
        print(f"{name}: {' '.join(str(error).split())[:100]}", file=sys.stderr)
        less = 0
    if less is None:
        return None
    after_padding = less and kind.padding is not None and less == kind.padding + 1
    return {"default": kind.default, **({"padding": kind.padding} if after_padding else {})}


def main() -> None:
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    rows = {name: told(name, row) for name, row in architectures.table().items()}
    found = {name: row for name, row in rows.items() if row is not None}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
    head = f'{{"transformers": "{transformers.__version__}", "types": {{\n'
    PATH.write_text(head + ",\n".join(lines) + "\n}}\n")
    print(f"{len(found)} model types -> {PATH}")


if __name__ == "__main__":
    main()
