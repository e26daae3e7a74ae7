"""Record what decoding takes with PyTorch's CUDA code; writes one compact JSON file.

Run it with a Python whose torch is a CUDA build, on a machine with a GPU or over the stub driver.
memcalc is not used: the models are transformers' own, and so is ``generate``, which is ended by
count; runs named ``greedy`` decode in a loop written out here, those named ``forward`` are one
pass. Which runs: those of an earlier recording. Quantized models are written to files and read from
there. Runs of caches need optimum-quanto and hqq.

    python benchmarks/record_decode.py evidence/standin/decode-torch2.13-cc90.json NEW.json
"""

import argparse
import gc
import json
import os
import pathlib
import sys
import tempfile
import time

import torch
import transformers

SCHEMES = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-dq": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}
TORCHAO = {"torchao-int8": "Int8WeightOnlyConfig", "torchao-float8": "Float8WeightOnlyConfig"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Meter:
    """Peaks by phase; a decode pass begins where the model is called again."""

    def __init__(self, model):
        self.peaks = {}
        self._phase = "load"
        self._calls = 0
        model.register_forward_pre_hook(self._called, prepend=True)

    def turn(self, phase):
        """End the phase that runs."""
        stats = torch.cuda.memory_stats()
        self.peaks[self._phase] = [
            stats[f"{rung}_bytes.all.peak"] for rung in ("requested", "allocated", "reserved")
        ]
        torch.cuda.reset_peak_memory_stats()
        self._phase = phase

    def _called(self, *_):
        self._calls += 1
        if self._calls == 2:
            self.turn("decode")


def greedy(model, ids, mask, plan):
    """Greedy decoding as ``generate`` does it: token by token, scores in fp32."""
    config = model.config
    if plan.get("cache") == "static":
        places = plan["seq"] + plan["generate"] - 1
        cache = transformers.StaticCache(config=config, max_cache_len=places)
    else:
        cache = transformers.DynamicCache(config=config)
    unfinished = torch.ones(ids.shape[0], dtype=torch.long, device="cuda")
    tokens = ids
    for made in range(plan["generate"]):
        given = tokens if not made else tokens[:, -1:]
        positions = (mask.cumsum(-1) - 1)[:, -given.shape[1] :]
        named = {} if config.model_type in ("opt",) else {"position_ids": positions}
        out = model(given.clone(), past_key_values=cache, use_cache=True, logits_to_keep=1, **named)
        scores = out.logits[:, -1].to(copy=True, dtype=torch.float32)
        chosen = scores.argmax(-1) * unfinished
        tokens = torch.cat([tokens, chosen[:, None]], dim=-1)
        mask = torch.cat([mask, mask.new_ones((mask.shape[0], 1))], dim=-1)
        del out
    return tokens


def ended_by_count(count):
    """What ``generate`` asks before every token: is there one to make?"""
    left = iter([True] * count + [False])
    return lambda *_, **__: next(left)


def without_triton():
    """Let cuBLAS make products of a single column.

    PyTorch's own Triton kernel for them takes nothing beside its output, and needs a real driver.
    """
    native = getattr(torch, "_native", None)
    if native is not None:
        native.triton_utils.deregister_op_overrides()


def without_compiling():
    """Let optimum-quanto's extension do what its host code does: it allocates what it returns.

    Its kernels need CUDA's headers to be compiled, and a real driver to run.
    """
    import optimum.quanto  # noqa: F401
    from optimum.quanto.library.extensions.extension import get_extension

    class Host:
        @staticmethod
        def unpack(packed, bits):
            return packed.new_empty((packed.shape[0] * (8 // bits), *packed.shape[1:]))

    get_extension("quanto_cuda")._lib = Host


def quantisation(scheme, dtype):
    """What ``from_pretrained`` is told."""
    if scheme in TORCHAO:
        import torchao.quantization

        return transformers.TorchAoConfig(getattr(torchao.quantization, TORCHAO[scheme])())
    settings = dict(SCHEMES[scheme])
    if "load_in_4bit" in settings:
        settings["bnb_4bit_compute_dtype"] = dtype
    return transformers.BitsAndBytesConfig(**settings)


def placed(one):
    """The model of a run on the GPU, as a script loads it."""
    plan = one["plan"]
    config = transformers.AutoConfig.for_model(**one["config"])
    auto = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    attention, dtype = plan.get("attention"), DTYPES[plan["precision"]]
    model = auto.from_config(config, attn_implementation=attention).to(dtype)
    if "quant" not in plan:
        return model.to("cuda").eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del model
        return auto.from_pretrained(
            folder,
            quantization_config=quantisation(plan["quant"], dtype),
            device_map={"": 0},
            dtype=dtype,
        ).eval()


def kept_in(cache):
    """What ``generate`` is told of its cache."""
    if cache in ("dynamic", "sliding"):
        return {}
    name, _, backend = cache.partition("-")
    if name != "quantized":
        return {"cache_implementation": cache.replace("-", "_")}
    settings = {"cache_config": {"backend": backend}} if backend else {}
    return {"cache_implementation": name, **settings}


def record(one):
    """Peaks of one run by phase."""
    plan = one["plan"]
    model = placed(one)
    meter = Meter(model)
    meter.turn("forward" if one["loop"] == "forward" else "prefill")
    with torch.no_grad():
        ids = torch.ones(plan["batch"], plan["seq"], dtype=torch.long, device="cuda")
        mask = None if one["loop"] == "forward" else torch.ones_like(ids)
        if mask is None:
            out = model(ids)
        elif one["loop"] == "greedy":
            out = greedy(model, ids, mask, plan)
        else:
            model._has_unfinished_sequences = ended_by_count(plan["generate"])
            out = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=plan["generate"],
                do_sample=False,
                num_beams=plan.get("beams", 1),
                disable_compile=True,
                **({"pad_token_id": 0} if model.generation_config.pad_token_id is None else {}),
                **kept_in(plan.get("cache", "dynamic")),
            )
    meter.turn("end")
    del out, model
    return meter.peaks


def write(output, runs):
    """The whole file, after every run."""
    environment = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    lines = ",\n".join(json.dumps(one) for one in runs)
    head = json.dumps({"environment": environment})[:-1]
    output.write_text(f'{head}, "runs": [\n{lines}\n]}}\n')


def wanted(recording):
    """The runs of an earlier recording, without what it read."""
    every = json.loads(recording.read_text())["runs"]
    return [{key: run[key] for key in ("config", "loop", "plan")} for run in every]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=pathlib.Path, help="whose runs are recorded again")
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    output, chosen = arguments.output, wanted(arguments.recording)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    without_triton()
    if any(one["plan"].get("cache", "").startswith("quantized") for one in chosen):
        without_compiling()
    known = {}
    if output.exists():
        kept = json.loads(output.read_text())["runs"]
        known = {
            json.dumps({k: r[k] for k in ("config", "loop", "plan")}): r["peaks"] for r in kept
        }
    runs = []
    for one in chosen:
        started = time.monotonic()
        peaks = known.get(json.dumps(one))
        if peaks is None:
            peaks = record(one)
            gc.collect()
            if "bitsandbytes.functional" in sys.modules:
                # Tables of codes on the GPU, which a fresh process makes anew.
                sys.modules["bitsandbytes.functional"].name2qmap.clear()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            seconds = time.monotonic() - started
            print(one["config"]["model_type"], one["plan"], f"{seconds:.1f} s", flush=True)
        runs.append({**one, "peaks": peaks})
        write(output, runs)
    os._exit(0)


if __name__ == "__main__":
    main()
