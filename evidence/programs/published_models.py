"""Models of published readings that are no plain training run of a bundled model.

A plan names them as ``published_models:NAME``, with this folder on ``PYTHONPATH``. Some need a
package that memcalc does not: torchvision, timm, ultralytics, yolov5.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from softmax_of_before import softmax_of_before
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

_ALBERT = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
_BERT_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_GPT2_LARGE = {"n_embd": 1280, "n_layer": 36, "n_head": 20}
_OPT = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "ffn_dim": 4096,
    "word_embed_proj_dim": 512,
    "do_layer_norm_before": False,
}
_PYTHIA = {
    "vocab_size": 50304,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_SUMMED: dict[str, tuple[str, dict[str, Any]]] = {
    "albert_base_v1": ("AlbertForMaskedLM", _ALBERT),
    "bert_base": ("BertForMaskedLM", {}),
    "biogpt": ("BioGptForCausalLM", {}),
    "distilbert": ("DistilBertForMaskedLM", {}),
    "gpt2_large": ("GPT2LMHeadModel", _GPT2_LARGE),
    "opt_350m": ("OPTForCausalLM", _OPT),
    "pythia_410m": ("GPTNeoXForCausalLM", _PYTHIA),
}
"""Measured with the plain sum of their logits as a loss."""


_RELATIVE = {"use_relative_position_bias": True, "use_mean_pooling": True}
_OF_PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "beit_base": ("BeitForImageClassification", {**_RELATIVE, "num_labels": 1000}),
    "data2vec_vision": ("Data2VecVisionForImageClassification", {**_RELATIVE, "num_labels": 2}),
}
"""The same of pictures that are larger than those the model was made for."""


def _qwen(width: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    return {
        "vocab_size": 151936,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
        "tie_word_embeddings": False,
        # Its own code, which no release of transformers has: what changed in Qwen2 is not said.
        "model_type": "qwen",
    }


_POWERLM = {
    "vocab_size": 49152,
    "hidden_size": 2304,
    "num_hidden_layers": 40,
    "num_attention_heads": 36,
    "num_key_value_heads": 36,
    "intermediate_size": 9216,
    "tie_word_embeddings": True,
}
_SANTACODER = {
    "vocab_size": 49280,
    "n_embd": 2048,
    "n_layer": 24,
    "n_head": 16,
    "n_inner": 8192,
    "n_positions": 2048,
}
_PHI_1_5 = {
    "vocab_size": 51200,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "intermediate_size": 8192,
    "partial_rotary_factor": 0.5,
}
_PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "phi_1_5": ("PhiForCausalLM", _PHI_1_5),
    "powerlm_3b": ("GraniteForCausalLM", _POWERLM),
    "qwen_1b8": ("Qwen2ForCausalLM", _qwen(2048, 24, 16, 5504)),
    "qwen_7b": ("Qwen2ForCausalLM", _qwen(4096, 32, 32, 11008)),
    "santacoder": ("GPTBigCodeForCausalLM", _SANTACODER),
}
"""Models that are not bundled."""
_IMAGES = {
    "efficientnet": ("torchvision.models", "efficientnet_b0"),
    "inception": ("torchvision.models", "inception_v3"),
    "mobilenet": ("torchvision.models", "mobilenet_v2"),
    "resnet50": ("torchvision.models", "resnet50"),
    "vgg16": ("torchvision.models", "vgg16"),
    "xception": ("timm.models", "xception"),
}
_ACTIVATIONS = {
    "relu": nn.ReLU,
    "leakyrelu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "swish": nn.SiLU,
    "mish": nn.Mish,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}


class LogitsSum(nn.Module):
    """A text model whose loss is the sum of its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = model.config

    def forward(self, input_ids: torch.Tensor) -> Any:
        """(B, S) token numbers to the model's outputs, ``loss`` among them."""
        outputs = self.model(input_ids=input_ids)
        outputs["loss"] = outputs.logits.sum()
        return outputs


class PicturesSum(nn.Module):
    """A model of pictures of any size whose loss is the sum of its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        """(B, 3, H, W) pictures to the model's outputs, ``loss`` among them."""
        outputs = self.model(pixel_values=x, interpolate_pos_encoding=True)
        outputs["loss"] = outputs.logits.sum()
        return outputs


class Classifier(nn.Module):
    """A model of pictures or numbers with a cross entropy after it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """(B, ...) inputs and (B,) classes to ``logits`` and ``loss``."""
        logits = self.model(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class OutputsSum(nn.Module):
    """A detector whose loss is the sum of its outputs, as ultralytics profiles it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W) pictures to a loss."""
        outputs = self.model(x)
        parts = outputs.values() if isinstance(outputs, dict) else outputs
        return sum(part.sum() for part in parts if torch.is_tensor(part))  # type: ignore[return-value]


def _attention_of_before(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager attention over that softmax: (B, heads, S, width) each to (B, S, heads, width)."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = functional.dropout(softmax_of_before(scores), dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _bert_of_before() -> nn.Module:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    name = "softmax_of_before"
    AttentionInterface.register(name, _attention_of_before)
    AttentionMaskInterface.register(name, eager_mask)
    return _config("BertForSequenceClassification", _BERT_LARGE, name)


def _config(class_name: str, settings: dict[str, Any], attention: str) -> nn.Module:
    import transformers

    cls = getattr(transformers, class_name)
    config = cls.config_class(**{k: v for k, v in settings.items() if k != "model_type"})
    config._attn_implementation = attention
    if "model_type" in settings:
        config.model_type = settings["model_type"]
    return cls(config)  # type: ignore[no-any-return]


def _pictures(name: str, attention: str) -> nn.Module:
    with torch.device("cpu"):  # numbers are read as it is built
        return PicturesSum(_config(*_OF_PICTURES[name], attention))


def _image(module: str, name: str) -> nn.Module:
    import importlib

    options = {"aux_logits": False} if name == "inception_v3" else {}
    return Classifier(getattr(importlib.import_module(module), name)(num_classes=1000, **options))


def _widths(inputs: int, outputs: int, depth: int, shape: str) -> list[int]:
    """Widths of the hidden layers of GPUMemNet's generated perceptrons."""
    widths, last = [], inputs
    for _ in range(depth):
        if shape in ("pyramid", "bottleneck"):
            last = max(last // 2, outputs)
        elif shape == "gradual":
            last = max(last - (inputs - outputs) // depth, outputs)
        widths.append(last)
    if shape == "bottleneck":
        widths.append(max(last // 2, outputs))
    return widths


def _perceptron(text: str) -> nn.Module:
    inputs, outputs, depth, shape, activation, more = text.split("_")
    dropout, norm = (flag == "1" for flag in more)
    layers: list[nn.Module] = []
    last = int(inputs)
    for width in _widths(last, int(outputs), int(depth), shape):
        layers.append(nn.Linear(last, width))
        layers += [nn.BatchNorm1d(width)] if norm else []
        layers.append(_ACTIVATIONS[activation]())
        layers += [nn.Dropout(0.3)] if dropout else []
        last = width
    return Classifier(nn.Sequential(*layers, nn.Linear(last, int(outputs)), nn.Softmax(dim=1)))


def _yolo(name: str) -> nn.Module:
    kind, _, classes = name.partition("_")
    if kind.startswith("yolov5"):
        from pathlib import Path

        import yolov5
        from yolov5.models.yolo import Model

        folder = Path(yolov5.__file__).parent / "models"
        with torch.device("cpu"):  # it runs once as it is built
            return OutputsSum(Model(str(folder / f"{kind}.yaml"), ch=3, nc=80))
    from ultralytics.nn.tasks import DetectionModel

    with torch.device("cpu"):
        return OutputsSum(DetectionModel(f"{kind}.yaml", nc=int(classes or 80), verbose=False))


def __getattr__(name: str) -> Callable[[], nn.Module]:
    if name in _PLAIN:
        return functools.partial(_config, *_PLAIN[name], "sdpa")
    if name in _IMAGES:
        return functools.partial(_image, *_IMAGES[name])
    if name == "bert_large_before_1_11":
        return _bert_of_before
    if name.startswith("mlp_"):
        return functools.partial(_perceptron, name.removeprefix("mlp_"))
    if name.startswith("yolo"):
        return functools.partial(_yolo, name)
    model, _, attention = name.rpartition("_")
    if model in _SUMMED:
        return lambda: LogitsSum(_config(*_SUMMED[model], attention))
    if model in _OF_PICTURES:
        return functools.partial(_pictures, model, attention)
    raise AttributeError(name)
