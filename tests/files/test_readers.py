"""Every reader takes what a file holds, or refuses it in one sentence; nothing else."""

import gzip
import io
import json
import os
import pickle
import random
import signal
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from memcalc.accuracy.compare import compare
from memcalc.advice.explain import recorded
from memcalc.advice.explain.difference import difference
from memcalc.advice.explain.explain import Chapter, explain
from memcalc.budgets import baseline, detect
from memcalc.budgets.read import read as read_budgets
from memcalc.catalog import architectures, contexts, gpus, models, nccl, plan, positions, quantized
from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, sentence
from memcalc.estimation import lengths
from memcalc.files import artifact, cache, results, shipped, untrusted_values
from memcalc.files.trace_file import MAGIC, DamagedTraceError, pack, unpack
from memcalc.records.levels import Levels
from memcalc.records.measurement import GpuReading, Measurement, Moment, OutOfMemory, PhaseReading
from memcalc.records.prediction import Prediction
from memcalc.records.replay import Replay
from memcalc.report import accuracy, explained, measured, page, predictions, saved
from memcalc.report.blocks import markdown, terminal
from memcalc.workload import tasks
from tests.conftest import ROOT
from tests.mutations import mutations, value_of

SNAPSHOTS = ROOT / "evidence" / "standin" / "allocator" / "snapshots"


def _show(blocks):
    terminal(blocks, width=80).encode()
    markdown(blocks).encode()


def _predictions(path):
    found = results.predictions(artifact.read(path), path)
    _show(predictions.blocks(found))
    predictions.as_json(found)
    predictions.as_csv(found)
    for one in found:
        page.notebook(one)


def _explanation(path):
    found = saved.read(artifact.read(path), path)
    _show(explained.blocks(found, 3))
    saved.as_json(found)
    page.notebook(found)


def _measured(path):
    found = results.load(path)
    _show(measured.blocks(found))
    _show(measured.blocks(found[:1]))
    _show(accuracy.blocks(found))
    for run in found:
        if run.prediction is not None and run.measurement is not None:
            compare(run.prediction, run.measurement)


def _play(calls, cards, wanted):
    """See that calls go together, in place of a replay of each of many thousand files."""
    living = set()
    for call in calls:
        if isinstance(call[0], str):
            assert call[0] in ("used_by", "passed", "empty_cache")
        elif call[1]:
            assert call[0] not in living
            living.add(call[0])
        else:
            living.remove(call[0])
    return [Replay(peaks=NOTHING, end=NOTHING, intervals=(), retries=0) for _ in cards]


NOTHING = Levels(requested=0, allocated=0, active=0, reserved=0)


def _snapshot(path):
    _show(saved.snapshot_blocks(recorded.read(path, _play, [""]), 3))


def _plan(path):
    make(untrusted_values.toml(path))


def _config(path):
    source = models.find(str(path))
    tasks.choose(source, "auto")
    positions.lengths(source.config).refusal(source.name, 64)
    assert quantized.refusal(source.config, source.name, None, (7, 5)) != ""
    quantized.notes(source.config)


def _launched(setting):
    return lambda path: make({"model": "gpt2", "devices": 2, setting: str(path)})


def _differ(path):
    found = results.predictions(artifact.read(path), path)
    first, last = (Chapter(prediction=found[at]) for at in (0, -1))
    _show(list(explained.difference_blocks(difference(first, last), 3)))


def _lengths(path):
    assert all(0 < length <= 10**7 for length in lengths.samples(str(path), 50, None))


def _trace(path):
    try:
        unpack(path.read_bytes())
    except DamagedTraceError as error:
        raise MemcalcError(str(error)) from None


def _shipped(table):
    def read(path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shipped, "configs", lambda: path.parent)
            table.__wrapped__()

    return read


def _cached(path):
    # Under the name that the cache would look for.
    assert cache.load(path.stem, Prediction) is None


def _measurements(traced):
    plan = traced.prediction.plan
    phases = tuple(
        PhaseReading(
            step=step, phase=p.phase, requested=p.requested, allocated=p.allocated,
            active=p.allocated, reserved=p.reserved,
        )
        for step in (0, 1)
        for p in traced.prediction.phases
    )  # fmt: skip
    gpu = GpuReading(
        uuid="GPU-1", name="T4", driver="580", total=1 << 34, memory_info="v2", driver_reserved=0,
        source="process", peak_device=1 << 30, peak_process=1 << 29, samples=3, interval=0.02,
        moments=(Moment(name="context", process=1), Moment(name="trained", process=9, reserved=3)),
        warnings=("shared",),
    )  # fmt: skip
    one = Measurement(
        plan=plan, device="T4", head="GPT2", seq=64, parameters=9, weights=9, gradients=9,
        state=None, phases=phases, seconds_per_step=0.5, samples_per_second=9.0, gpu=gpu,
        process_used=1 << 29, peak_rss=1 << 30, retries=2,
    )  # fmt: skip
    failed = OutOfMemory(step=1, phase=phases[0].phase, asked=9, free=3, message="no memory")
    return [
        results.Run(plan=plan, prediction=traced.prediction, measurement=one),
        results.Run(plan=plan, measurement=replace(one, out_of_memory=failed)),
        results.Run(plan=plan, error="it failed"),
    ]


LAUNCH = (
    b"compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
    b"num_processes: 2\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    b"  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n  fsdp_offload_params: false\n"
    b"parallelism_config: {parallelism_config_tp_size: 2}\n"
)
ENGINE = {
    "zero_optimization": {
        "stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8, "allgather_bucket_size": 1e6,
        "stage3_max_live_parameters": 1e9, "offload_optimizer": {"device": "none"},
    },
    "bf16": {"enabled": True}, "fp16": {"enabled": "auto"}, "gradient_clipping": 1.0,
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "train_batch_size": 16,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}},
}  # fmt: skip
BITS = {
    "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"],
}  # fmt: skip
POSITIONS = '{"transformers": "5.23.0", "types": {"bart": {"default": 1024, "padding": 1}}}'
SPAN = '{"low": 1, "likely": 2, "high": 3, "source": "a test", "parts": []}'
RANGES = f'{{"any": {{"context": {SPAN}, "modules": {SPAN}, "total": {SPAN}, "eager": null}}}}'
TYPES = '{"types": {"gpt2": {"config": "GPT2Config", "heads": {"causal-lm": "GPT2LMHeadModel"}}}}'


@pytest.fixture(scope="module")
def whole(small_model, settings, cached, traced, tmp_path_factory):
    """One whole file of every kind, and what reads it."""
    folder = tmp_path_factory.mktemp("whole")
    few = replace(traced.prediction, plan=replace(traced.prediction.plan, optim_args=(("a", 1),)))
    why = explain(small_model, remedies=False, **settings)
    why = replace(why, peak=replace(why.peak, groups=why.peak.groups[:4]))
    results.save(folder / "runs.json", _measurements(traced))
    snapshot = gzip.decompress((SNAPSHOTS / "training-torch2.13.pickle.gz").read_bytes())
    known = {
        "plan": {"model": "gpt2"}, "source": "trace", "figures": {"weights": 9}, "parameters": 9,
    }  # fmt: skip
    base = {"schema": 1, "kind": "baseline", "versions": {"torch": "2.13"}, "runs": {"a": known}}
    trainer = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "optim": "sgd"}
    budgets = (ROOT / "configs" / "budgets" / "memcalc.toml").read_bytes()
    accelerate = (
        b"compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: bf16\n"
        b"deepspeed_config: {gradient_accumulation_steps: 2}\nx: &a [1, 2]\ny: *a\n"
    )
    axolotl = (
        b"base_model: gpt2\nmicro_batch_size: 2\nsequence_len: 64\noptimizer: adamw_torch\n"
        b"lora_r: 8\nadapter: lora\nlora_target_modules: [q, v]\nbf16: true\n"
    )
    small = json.loads(Path(small_model).read_bytes())
    suite_text = (ROOT / "configs" / "suites").glob("*.toml")
    cache.store("kept", traced.prediction)
    two = predictions.as_json([few, traced.prediction]).encode()
    quantized_config = json.dumps({**small, "quantization_config": BITS}).encode()
    return {
        "predictions": ("p.json", two, _predictions),
        "an explanation": ("e.json", saved.as_json(why).encode(), _explanation),
        "measurements": ("m.json", (folder / "runs.json").read_bytes(), _measured),
        "a snapshot": ("s.pickle", pickle.dumps(pickle.loads(snapshot)["snapshot"]), _snapshot),
        "a suite": ("s.toml", next(iter(sorted(suite_text))).read_bytes(), plan.load),
        "a plan": ("p.toml", b'model = "gpt2"\nbatch = 8\noptim_args = {lr = 1.0}\n', _plan),
        "budgets": ("memcalc.toml", budgets, read_budgets),
        "a baseline": ("b.json", json.dumps(base).encode(), baseline.read),
        "a config": ("config.json", Path(small_model).read_bytes(), _config),
        "a trace": ("t.trace", pack(traced.trace), _trace),
        "a cached answer": ("kept.json", (cache.folder() / "kept.json").read_bytes(), _cached),
        "TrainingArguments": ("t.json", json.dumps(trainer).encode(), detect.read),
        "accelerate's file": ("a.yaml", accelerate, detect.read),
        "axolotl's file": ("x.yaml", axolotl, detect.read),
        "what accelerate launches": ("l.yaml", LAUNCH, _launched("accelerate_config")),
        "DeepSpeed's file": ("d.json", json.dumps(ENGINE).encode(), _launched("deepspeed")),
        "lengths": ("l.txt", b"12\n7\n512\n100\n", _lengths),
        "answers to compare": ("d.json", two, _differ),
        "a quantized config": ("config.json", quantized_config, _config),
        "the positions": ("positions.json", POSITIONS.encode(), _shipped(positions.table)),
        "the NCCL parts": (
            "nccl.toml", (ROOT / "configs/nccl.toml").read_bytes(), _shipped(nccl.table)
        ),
        "the architectures": (
            "architectures.json", TYPES.encode(), _shipped(architectures.table)
        ),
        "the GPUs": ("gpus.toml", (ROOT / "configs/gpus.toml").read_bytes(), _shipped(gpus.table)),
        "the contexts": (
            "context_ranges.json", RANGES.encode(), _shipped(contexts.table)
        ),
    }  # fmt: skip


KINDS = (
    "predictions", "an explanation", "measurements", "a snapshot", "a suite", "a plan", "budgets",
    "a baseline", "a config", "a trace", "a cached answer", "TrainingArguments",
    "accelerate's file", "axolotl's file", "what accelerate launches", "DeepSpeed's file",
    "lengths", "answers to compare", "a quantized config", "the positions", "the NCCL parts",
    "the architectures", "the GPUs", "the contexts",
)  # fmt: skip


def _attempt(path, data, reader):
    """Read a file; what is refused is refused in one sentence, soon."""
    path.write_bytes(data)
    refusal = ""
    signal.alarm(30)
    try:
        reader(path)
    except MemcalcError as error:
        refusal = sentence(error)
    finally:
        signal.alarm(0)
    assert "Traceback" not in refusal
    assert len(refusal) < 1100


def _fuzz(whole, kind, folder, monkeypatch, count, seed):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setenv("MEMCALC_CACHE", str(folder))
    name, data, reader = whole[kind]
    path = folder / name
    if kind != "a cached answer":
        _attempt(path, data, reader)
    for number, damaged in enumerate(mutations(data, f"{seed} {kind}", count)):
        if damaged == data:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _attempt(path, damaged, reader)
        except Exception as error:
            raise AssertionError(
                f"mutation {number} of seed {seed} is in {path}: {error!r}"
            ) from error


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(whole, kind, tmp_path, monkeypatch):
    _fuzz(whole, kind, tmp_path, monkeypatch, 40, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_damaged_files_are_read_or_refused(whole, kind, tmp_path, monkeypatch):
    _fuzz(whole, kind, tmp_path, monkeypatch, 3000, seed=2)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_snapshot_of_odd_values_is_read_or_refused(whole, tmp_path, seed):
    name, data, reader = whole["a snapshot"]
    plain_values = pickle.loads(data)
    for part in ("segments", "device_traces"):
        plain_values[part] = plain_values[part][:2]
    chance = random.Random(seed)
    for _ in range(60 if seed == 1 else 2000):
        _attempt(tmp_path / name, pickle.dumps(value_of(plain_values, chance)), reader)


def test_what_is_no_file_is_refused_by_every_reader(whole, tmp_path):
    for kind, (name, _, reader) in whole.items():
        if kind in ("a cached answer", "a trace", "a baseline") or kind.startswith("the "):
            continue
        for path in (tmp_path, tmp_path / "missing" / name, Path("n" * 300 + name)):
            with pytest.raises(MemcalcError):
                reader(path)


def test_a_device_that_never_ends_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(untrusted_values, "MOST", 1 << 20)
    with pytest.raises(MemcalcError, match="larger than 1 MiB"):
        untrusted_values.content(Path("/dev/zero"), 1 << 20)


def test_a_pipe_of_a_shell_is_read_and_one_with_a_name_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MemcalcError, match="it is a pipe, not a file"):
        untrusted_values.content(tmp_path / "pipe")
    reads, writes = os.pipe()
    os.write(writes, b"said")
    os.close(writes)
    assert untrusted_values.content(Path(f"/dev/fd/{reads}")) == b"said"
    os.close(reads)


def _nested(one, count):
    """YAML of which each line names the one before nine times."""
    names = "abcdefghijklmnop"[: count + 1]
    lines = [f"{b}: &{b} {one % ','.join([f'*{a}'] * 9)}\n" for a, b in pairwise(names)]
    return f"a: &a {{k: 1}}\n{''.join(lines)}".encode()


YAML_BOMBS = {
    "aliases of aliases": _nested("[%s]", 12),
    "merges of merges": _nested("{<<: [%s]}", 9),
    "a list in itself": b"base_model: gpt2\nmicro_batch_size: &a [*a]\n",
    "lists in lists": b"base_model: " + b"[" * 20000,
}


@pytest.mark.parametrize("text", YAML_BOMBS.values(), ids=YAML_BOMBS)
def test_yaml_that_stands_for_far_more_than_is_written_is_refused(tmp_path, text):
    (tmp_path / "bomb.yaml").write_bytes(text)
    signal.alarm(30)
    try:
        with pytest.raises(MemcalcError, match="is not understood"):
            detect.read(tmp_path / "bomb.yaml")
    finally:
        signal.alarm(0)


def test_a_trace_that_swells_when_it_is_unpacked_is_refused():
    swollen = io.BytesIO()
    with gzip.GzipFile(fileobj=swollen, mode="wb") as file:
        file.write(MAGIC + b"\xdd\xff\xff\xff\xff" + bytes(1 << 20))
    with pytest.raises(DamagedTraceError):
        unpack(swollen.getvalue())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "is not JSON"),
        ('{"schema": 1, "a": NaN}', "is not JSON"),
        ('{"schema": 1, "a": "\\ud800"}', "is not JSON"),
        ('{"schema": 1, "a": 123456789012345678901234567890}', "larger than any machine"),
        ('{"schema": 1e400}', "is not JSON"),
        ("", "is empty: give a file that memcalc wrote"),
        ("[1]", "is not a result"),
        ('{"schema": 3}', "later memcalc"),
        ('{"schema": "1"}', "no schema"),
        ('{"schema": 0}', "no schema"),
        ('{"schema": -1}', "no schema"),
        ('{"schema": true}', "no schema"),
        ('{"schema": 1, "kind": "prediction", "record": {}}', "missing required field `plan`"),
        ('{"schema": 1, "predictions": []}', "it has none"),
        ('{"schema": 1, "predictions": 3}', "Expected `array`, got `int`"),
    ],
)
def test_a_result_that_is_none_is_refused_with_its_place(tmp_path, text, words):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(MemcalcError) as refusal:
        results.predictions(artifact.read(path), path)
    assert words in str(refusal.value)
    assert str(path) in str(refusal.value)
