"""Commands that start vLLM: which they are, and what vLLM's own figures become."""

import json
import pathlib
import subprocess
import types

import msgspec
import pytest

from memcalc.__main__ import run as main
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.engine.serving import plugin
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.serving import run
from memcalc.estimation.serving.exact import _options
from memcalc.estimation.serving.run import python_with_vllm
from memcalc.estimation.serving.started import convert_figures
from memcalc.records.engines import EngineFigures, Refused, Started, WorkerFigures
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import Component
from memcalc.report import predictions
from memcalc.report.blocks import terminal
from memcalc.script import serving
from memcalc.script.records import Answer, Ending
from memcalc.script.simulate import make_plan
from memcalc.units import GIB

H100 = gpus.find("H100 SXM")
ENGINE = EngineFigures(
    version="0.33.0", architecture="LlamaForCausalLM", share=0.9, blocks=27632, block=16,
    cache=27632 * (2 << 20), tokens=442112, longest=8192, concurrency=53.96875, sequences=1024,
    batched_tokens=8192,
)  # fmt: skip
"""vLLM 0.33.0 said so of Llama-3-8B on an H100 over the stub driver, as did its log."""
WORKER = WorkerFigures(
    weights=16062686208, parameters=8030261248, consumed=16649289728, activations=1918940672,
    graphs=0, requested=76518536050, available=57950305650,
)  # fmt: skip
PLAN = make({"command": "vllm serve llama", "gpu": "h100"})
STARTED = json.loads(pathlib.Path("evidence/serving/started.json").read_text())


def find_server(words):
    return serving.find_server(make_plan(words))


def test_vllms_commands_are_recognized_however_they_are_typed():
    for words in (
        ["vllm", "serve", "m"],
        ["/opt/bin/vllm", "serve", "m"],
        ["python", "-m", "vllm", "serve", "m"],
        ["python3.12", "-u", "-m", "vllm.entrypoints.cli.main", "serve", "m"],
    ):
        found = find_server(words)
        assert found.module == "vllm.entrypoints.cli.main"
        assert found.arguments[:2] == ("serve", "m")
        assert found.arguments[2:] == ("--port", "0", "--host", "127.0.0.1")
    api = find_server(["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"])
    assert api.module == "vllm.entrypoints.openai.api_server"
    assert api.arguments[:2] == ("--model", "m")
    given = find_server(["VLLM_USE_V1=1", "vllm", "bench", "latency"])
    assert given.arguments == ("bench", "latency")
    assert given.environment == (("VLLM_USE_V1", "1"),)
    assert find_server(["python", "serve.py"]) is None
    assert find_server(["python", "-m", "vllm_tools"]) is None


@pytest.mark.parametrize(
    "words",
    [["vllm"], ["vllm", "chat"], ["vllm", "--version"], ["vllm", "bench", "serve", "--port", "1"]],
)
def test_a_command_of_vllm_without_an_engine_is_refused(words):
    with pytest.raises(UsageError, match="type memcalc simulate --gpu h100 -- vllm serve MODEL"):
        find_server(words)


def test_a_bundled_model_that_the_hub_does_not_give_starts_with_the_bundled_config(
    monkeypatch, tmp_path
):
    monkeypatch.setenv(plugin.FOLDER, str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = {"revision": None, "load_format": "auto", "tokenizer": None}
    given |= {"served_model_name": None, "skip_tokenizer_init": False}
    draft = {"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 5}
    asked = types.SimpleNamespace(model="gpt2", speculative_config=draft, **given)
    made = plugin._with_dummy_weights(lambda arguments: arguments, asked)
    assert made.load_format == "dummy"
    assert made.skip_tokenizer_init
    assert made.served_model_name == "gpt2"
    for folder, kind in ((made.model, "gpt2"), (made.speculative_config["model"], "llama")):
        assert json.loads(pathlib.Path(folder, "config.json").read_text())["model_type"] == kind
    asked = types.SimpleNamespace(model=made.model, speculative_config=None, **given)
    assert plugin._with_dummy_weights(lambda arguments: arguments, asked).model == made.model
    found = Started(engine=msgspec.structs.replace(ENGINE, bundled=("gpt2",)), workers=(WORKER,))
    said = convert_figures(PLAN, H100, found).assumptions
    assert "the hub does not give gpt2: its config is the one that memcalc ships" in said


def test_sglang_is_answered_by_its_rules():
    with pytest.raises(UsageError, match="memcalc estimate Q/q --engine sglang --gpu h100"):
        find_server(["python", "-m", "sglang.launch_server", "--model-path", "Q/q", "--tp", "2"])


@pytest.mark.parametrize(
    ("options", "said"), [([], "name the GPU"), (["--gpu", "h100"], "--vllm 0.33")]
)
def test_without_gpu_or_vllm_the_user_is_told_what_to_type(
    options, said, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    assert main(["simulate", *options, "--", "vllm", "serve", "m"]) == 2
    assert said in capsys.readouterr().err
    page = ["simulate", *options, "--output", "found.html", "--", "vllm", "serve", "m"]
    assert main(page) == 2
    assert "no timeline for html" in capsys.readouterr().err


def test_the_python_of_the_command_vllm_is_found(monkeypatch, tmp_path):
    command = tmp_path / "vllm"
    command.write_text("#!/opt/venv/bin/python3.12\nfrom vllm import main\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_with_vllm() == "/opt/venv/bin/python3.12"
    assert python_with_vllm("/other/python") == "/other/python"


def test_vllms_own_figures_are_the_answer_less_what_the_stub_does_not_charge():
    found = convert_figures(PLAN, H100, Started(engine=ENGINE, workers=(WORKER,)))
    serving = found.serving
    assert (serving.most.blocks, serving.most.tokens) == (27632, 442112)
    assert serving.most.running == 53
    kernels = next(one for one in serving.taken if one.name == "kernels, libraries")
    assert kernels.low == 0 < kernels.high
    assert serving.least.bytes == WORKER.available - kernels.high
    assert serving.least.blocks == serving.least.bytes // (2 << 20)
    assert sum(one.low for one in serving.taken) + serving.most.bytes == WORKER.requested
    assert found.components[Component.KV_CACHE] == serving.least.bytes
    text = terminal(predictions.blocks([found], verbose=False))
    assert "fits: vLLM on H100 SXM serves 53 sequences of 8,192 tokens at once" in text
    assert "vLLM 0.33.0 itself started here" in text
    assert json.loads(predictions.as_json([found]))["serving"]["ran"] is True


@pytest.mark.parametrize(
    "start", [one for one in STARTED if one["engine"] == "vllm"], ids=lambda one: one["command"]
)
def test_figures_of_a_recorded_start_are_those_of_its_log(start):
    plan = make({"command": start["command"], "gpu": start["gpu"]})
    started = msgspec.convert(start["started"], Started)
    serving = convert_figures(plan, gpus.find(start["gpu"]), started).serving
    log = start["log"]
    assert serving.most.tokens == log["tokens"]
    assert round(serving.most.bytes / GIB, 2) == log["kv_gib"]
    assert round(serving.taken[0].low / GIB, 2) == log["weights_gib"]
    assert serving.version == start["version"]


def test_a_length_that_was_asked_for_is_counted_by_vllm():
    engine = msgspec.structs.replace(ENGINE, length=2048, concurrency_at_length=215.875)
    found = convert_figures(PLAN, H100, Started(engine=engine, workers=(WORKER,)))
    assert (found.serving.length, found.serving.most.running) == (2048, 215)
    longer = msgspec.structs.replace(ENGINE, length=9000, concurrency_at_length=40.0)
    with pytest.raises(UsageError, match="takes sequences of 8,192 tokens"):
        convert_figures(PLAN, H100, Started(engine=longer, workers=(WORKER,)))


def test_where_one_sequence_fits_only_at_best_it_is_tight():
    engine = msgspec.structs.replace(
        ENGINE, blocks=513, cache=513 * (2 << 20), tokens=8208, concurrency=1.002
    )
    worker = msgspec.structs.replace(WORKER, available=513 * (2 << 20))
    found = convert_figures(PLAN, H100, Started(engine=engine, workers=(worker,)))
    assert found.fit.verdict is FitVerdict.TIGHT
    assert (found.serving.least.running, found.serving.most.running) == (0, 1)


def test_the_driver_part_of_cuda_graphs_and_buffers_of_nccl_are_ranges():
    engine = msgspec.structs.replace(ENGINE, world=2)
    graphs = msgspec.structs.replace(WORKER, graphs=GIB // 2, captured=GIB // 4)
    fuller = msgspec.structs.replace(graphs, rank=1, available=WORKER.available - GIB)
    found = convert_figures(PLAN, H100, Started(engine=engine, workers=(graphs, fuller)))
    taken = {one.name: one for one in found.serving.taken}
    assert taken["CUDA graphs"].low == taken["CUDA graphs"].high == GIB // 2
    assert "256.0 MiB when captured" in taken["CUDA graphs"].source
    assert taken["driver's part of graphs"].low == 0 < taken["driver's part of graphs"].high
    assert taken["buffers of NCCL"].low == 0 < taken["buffers of NCCL"].high
    assert "workspaces of FlashInfer's all-reduce" in found.uncounted
    # The fullest GPU decides.
    assert found.serving.most.bytes == fuller.available
    assert "2 x H100 SXM" in terminal(predictions.blocks([found], verbose=False))


def test_a_budget_holds_a_server_to_its_own_figures(tmp_path, monkeypatch, capsys):
    started = Started(engine=ENGINE, workers=(WORKER,))
    monkeypatch.setattr(serving, "start_vllm", lambda *words, **how: started)
    file = tmp_path / "memcalc.toml"
    lines = '[runs.serve]\ncommand = "vllm serve m"\ngpu = "h100"\npython = "python3"\n'
    for limit, code in (("15 GiB", 0), ("14 GiB", 1)):
        file.write_text(f'{lines}[runs.serve.limits]\nfits = true\nweights = "{limit}"\n')
        assert main(["check", str(file)]) == code
    assert "weights" in capsys.readouterr().out


def test_a_refusal_is_in_vllms_words():
    words = "To serve at least one request with the model's max seq len (131072), 16 GiB is needed"
    refused = Started(workers=(WORKER,), refused=Refused(kind="ValueError", text=words))
    with pytest.raises(UsageError) as caught:
        convert_figures(PLAN, H100, refused)
    assert words in str(caught.value)
    assert "weights 15.0 GiB" in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "refused", "served"),
    [
        (Ending(code=0), False, True),
        (Ending(code=0, trains=True), False, False),
        (Ending(code=1), False, False),
        (Ending(code=0), True, False),
    ],
)
def test_a_script_that_fails_or_goes_on_is_not_answered_by_its_engine(ending, refused, served):
    started = Started(engine=ENGINE, workers=(WORKER,))
    if refused:
        started = Started(refused=Refused(kind="ValueError", text="too small"))
    answer = Answer(ending=ending, started=started, traces={}, state=None)
    found = serving.predict_served(answer, PLAN, H100)
    assert (found is not None) is served


@pytest.mark.parametrize("kind", ["RuntimeError", "AttributeError", "ImportError"])
def test_what_cannot_run_here_is_no_refusal(kind):
    died = Started(refused=Refused(kind=kind, text="cancelled"))
    with pytest.raises(EstimateError, match=f"could not run .* It says: {kind}: cancelled"):
        convert_figures(PLAN, H100, died)


def test_a_release_that_says_less_is_named():
    bare = EngineFigures(version="0.9.0", longest=8192)
    with pytest.raises(EstimateError, match=r"vLLM 0\.9\.0 .* does not say its blocks and cache"):
        convert_figures(PLAN, H100, Started(engine=bare, workers=(WORKER,)))
    with pytest.raises(EstimateError, match="keeps no KV cache, so vLLM profiles"):
        convert_figures(PLAN, H100, Started(engine=bare))
    with pytest.raises(EstimateError, match="does not say how it divided memory"):
        convert_figures(PLAN, H100, Started(engine=ENGINE))


def test_a_plan_is_spelled_as_vllm_serve_takes_it():
    arguments = {"max_model_len": 4096, "enforce_eager": True, "enable_prefix_caching": False}
    plan = make(
        {"model": "gpt2", "engine": "vllm", "gpu": "h100", "precision": "bf16", "devices": 2}
        | {"engine_args": arguments, "seq": 512}
    )
    assert plan.generate == 256
    assert " ".join(_options(plan)) == (
        "--dtype bfloat16 --tensor-parallel-size 2 --max-model-len 4096 --enforce-eager "
        "--no-enable-prefix-caching"
    )


# ---- with vLLM

NEEDS_VLLM = pytest.mark.skipif(python_with_vllm() is None, reason="needs vLLM")
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return str(folder)


@pytest.mark.nightly
@NEEDS_VLLM
def test_the_rules_hold_what_vllm_itself_says(llama, monkeypatch):
    from memcalc.estimation.estimate import estimate
    from memcalc.estimation.serving import exact

    settings = {"engine": "vllm", "gpu": "h100", "precision": "bf16", "seq": 7936}
    settings["engine_args"] = {"enforce_eager": True}
    itself = estimate(llama, use_cache=False, **settings)
    monkeypatch.setattr(exact, "answer", lambda question: None)
    rules = estimate(llama, use_cache=False, **settings)
    assert itself.serving.ran
    assert not rules.serving.ran
    assert rules.serving.least.blocks <= itself.serving.most.blocks <= rules.serving.most.blocks
    assert rules.components[Component.WEIGHTS] == pytest.approx(
        itself.components[Component.WEIGHTS], rel=0.003
    )


@pytest.mark.nightly
@NEEDS_VLLM
def test_a_script_with_an_engine_is_stopped_as_it_asks(llama, capfd, tmp_path):
    script = tmp_path / "ask.py"
    script.write_text(
        "from vllm import LLM\n"
        "if __name__ == '__main__':\n"
        f"    llm = LLM({llama!r}, enforce_eager=True, skip_tokenizer_init=True)\n"
        "    llm.generate({'prompt_token_ids': [1, 2]})\n"
        "    raise SystemExit('it went on')\n"
    )
    python = python_with_vllm()
    words = ["--gpu", "h100", "--python", python, "--", "python", str(script)]
    code = main(["simulate", *words])
    said = capfd.readouterr()
    assert code == 0, said.err[-2000:]
    assert "sequences of 8,192 tokens at once" in said.out


@pytest.mark.nightly
@NEEDS_VLLM
def test_training_beside_an_engine_goes_on_and_both_are_shown(tmp_path, capfd):
    (tmp_path / "model").mkdir()
    small = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4}
    small |= {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1024}
    (tmp_path / "model" / "config.json").write_text(json.dumps({**LLAMA, **small}))
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from vllm import LLM, SamplingParams\n"
        "if __name__ == '__main__':\n"
        "    layers = [torch.nn.Linear(4096, 4096) for _ in range(8)]\n"
        "    model = torch.nn.Sequential(*layers).cuda()\n"
        "    optimizer = torch.optim.AdamW(model.parameters())\n"
        f"    llm = LLM({str(tmp_path / 'model')!r}, enforce_eager=True,\n"
        "              skip_tokenizer_init=True, gpu_memory_utilization=0.3)\n"
        "    for _ in range(3):\n"
        "        llm.generate({'prompt_token_ids': [3, 4]},\n"
        "                     SamplingParams(max_tokens=2, detokenize=False))\n"
        "        model(torch.randn(64, 4096, device='cuda')).sum().backward()\n"
        "        optimizer.step()\n"
    )
    words = ["--gpu", "h100", "--python", python_with_vllm(), "--format", "json"]
    code = main(["simulate", *words, "--", "python", str(script)])
    said = capfd.readouterr()
    assert code == 0, said.err[-2000:]
    components = json.loads(said.out)["components"]
    assert components["kv_cache"] > 20 * GIB
    assert components["optimizer_state"] > 0


GRPO = """
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

prompts = [" ".join(f"w{3 + (i + j) % 190}" for j in range(64)) for i in range(64)]
args = GRPOConfig(
    output_dir="out", per_device_train_batch_size=4, num_generations=4, max_completion_length=32,
    use_vllm=True, vllm_mode="colocate", vllm_enable_sleep_mode=%s, bf16=True, max_steps=2,
    vllm_max_model_length=96, report_to=[], save_strategy="no",
)
trainer = GRPOTrainer(
    model="model", reward_funcs=lambda completions, **_: [float(len(c)) for c in completions],
    args=args, train_dataset=Dataset.from_dict({"prompt": prompts}),
)
trainer.train()
"""
QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
    "vocab_size": 1024, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def has_trl():
    python = python_with_vllm()
    return python is not None and not subprocess.run([python, "-c", "import trl"]).returncode


@pytest.mark.nightly
@pytest.mark.parametrize("sleeps", [False, True], ids=["awake", "sleeps"])
def test_grpo_beside_its_own_engine_is_followed(sleeps, tmp_path, capfd, monkeypatch):
    if not has_trl():
        pytest.skip("needs TRL beside vLLM")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<s>": 0, "</s>": 1, "<unk>": 2, **{f"w{i}": i for i in range(3, 200)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokens["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(tokens))
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "grpo.py").write_text(GRPO % sleeps)
    monkeypatch.chdir(tmp_path)
    words = ["--gpu", "h100", "--python", python_with_vllm(), "--format", "json"]
    code = main(["simulate", *words, "--", "python", "grpo.py"])
    said = capfd.readouterr()
    assert code == 0, said.err[-2000:]
    found = json.loads(said.out)
    peaks = {one["phase"]: one["reserved"] for one in found["phases"]}
    # A share of 0.3 is the engine's, with its KV cache; asleep, it leaves the GPU to backward.
    assert max(peaks.values()) > 20 * GIB
    assert (peaks["backward"] < 10 * GIB) is sleeps
