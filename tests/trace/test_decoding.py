"""Decoding of many tokens, continued from a few that are traced."""

import json

import pytest

from tests.trace.continued import LLAMA, compared

SLIDING = {**LLAMA, "model_type": "mistral", "sliding_window": 310}
BART = {
    "model_type": "bart",
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 50265,
}
T5 = {
    "model_type": "t5",
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 500,
    "decoder_start_token_id": 0,
}
FEW = {"TRACED": 6, "_WHOLE": 48}
"""Limits under which the decodes here are continued."""
CASES = [
    (LLAMA, {"batch": 16, "seq": 300, "generate": 40}),
    (LLAMA, {"batch": 2, "seq": 30, "generate": 40, "cache": "static", "attention": "eager"}),
    (SLIDING, {"batch": 16, "seq": 300, "generate": 260}),
    (LLAMA, {"batch": 8, "seq": 300, "generate": 60, "beams": 2}),
    (LLAMA, {"batch": 16, "seq": 300, "generate": 40, "cache": "offloaded"}),
    # What a pass was given is held until the next one begins.
    (LLAMA, {"batch": 16, "seq": 300, "generate": 40, "transformers": "4.35"}),
    # It forces its last token, which takes the scores once more.
    (BART, {"batch": 16, "seq": 30, "generate": 40}),
    # Their bias, and their mask, are padded to multiples of 8.
    (T5, {"batch": 16, "seq": 101, "generate": 70}),
    (LLAMA, {"batch": 4, "seq": 101, "generate": 70, "padding": True}),
]


_AT_NIGHT = [pytest.param(*case, marks=pytest.mark.nightly) for case in CASES[1:]]


@pytest.mark.parametrize(("config", "settings"), [CASES[0], *_AT_NIGHT])
def test_passes_that_are_continued_are_those_that_are_traced(tmp_path, forked, config, settings):
    path = tmp_path / f"{config['model_type']}.json"
    path.write_text(json.dumps(config))
    whole, written, curve = forked(compared, str(path), settings, FEW)
    assert written[0] == whole[0]
    assert curve == [whole[0], True]


def real_and_foretold(path, settings):
    """Requested peaks of each phase: of a real run on this CPU, and of its estimate."""
    from memcalc.catalog.plan import make
    from memcalc.estimation.tracing import Desk
    from memcalc.measure.runs.run import Options, measure
    from memcalc.records.measurement import steady_peaks

    plan = make({"model": path, "target": "cpu", **settings})
    real = steady_peaks(measure(plan, Options(device="cpu")).phases)
    found = Desk().estimate(plan)[0]
    return {
        phase.phase.value: [real[phase.phase]["requested"], phase.requested]
        for phase in found.phases
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cache", "package"), [("quantized", "optimum.quanto"), ("quantized-hqq", "hqq")]
)
def test_a_quantised_cache_on_the_cpu_takes_what_is_foretold(tmp_path, forked, cache, package):
    pytest.importorskip(package)
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(LLAMA))
    more = {"batch": 2, "seq": 64, "generate": 140, "cache": cache}
    said, real = (forked(ask, str(path), more) for ask in (foretold, measured))
    assert list(said) == list(real) == ["load", "prefill", "decode"]
    for phase, known in real.items():
        assert said[phase] == pytest.approx(known, rel=0.01), phase


def foretold(path, settings):
    from memcalc.catalog.plan import make
    from memcalc.estimation.tracing import Desk

    found = Desk().estimate(make({"model": path, "target": "cpu", **settings}))[0]
    return {phase.phase.value: phase.requested for phase in found.phases}


def measured(path, settings):
    from memcalc.catalog.plan import make
    from memcalc.measure.runs.run import Options, measure
    from memcalc.records.measurement import steady_peaks

    plan = make({"model": path, "target": "cpu", **settings})
    real = steady_peaks(measure(plan, Options(device="cpu")).phases)
    return {phase.value: rungs["requested"] for phase, rungs in real.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["nf4-dq", "int8"])
def test_a_quantised_base_is_loaded_and_generates_on_the_cpu_as_foretold(tmp_path, forked, scheme):
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(LLAMA))
    more = {"batch": 2, "seq": 64, "generate": 8, "quant": scheme, "precision": "bf16"}
    # In processes of their own: one that traces has an inert library of bitsandbytes.
    said, real = (forked(ask, str(path), more) for ask in (foretold, measured))
    assert list(said) == list(real) == ["load", "prefill", "decode"]
    assert said["load"] == pytest.approx(real["load"], rel=0.001)
    # Kernels of the CPU keep scratch of their own, which no estimate counts.
    assert 0.95 * real["decode"] <= said["decode"] <= real["decode"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        *(
            pytest.param(m, marks=pytest.mark.nightly)
            for m in ({"cache": "static"}, {"cache": "quantized-fp8"}, {"beams": 2})
        ),
    ],
)
def test_generate_on_the_cpu_takes_what_is_foretold(tmp_path, forked, more):
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(LLAMA))
    found = forked(real_and_foretold, str(path), {"batch": 2, "seq": 20, "generate": 8, **more})
    assert list(found) == ["load", "prefill", "decode"]
    for real, foretold in found.values():
        assert foretold == pytest.approx(real, rel=0.0001)
