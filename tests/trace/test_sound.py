"""Models that hear or speak: a simulated run against PyTorch's CPU allocator in a real one."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.client import trace_all
from memcalc.measure.runs.runner import Request, measure
from memcalc.records.measurement import steady_peaks

SCALARS = 64
"""Bytes of 0-dim tensors that C++ wraps Python numbers in."""
WORDS = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 1000,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip
HEARD = {"d_model": 64, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}
SPOKEN = {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 128}
MODELS = {
    "speech_to_text": {**HEARD, **SPOKEN, "vocab_size": 1000, "conv_channels": 64},
    "seamless_m4t": {"hidden_size": 64, "speech_encoder_layers": 1, "decoder_layers": 1,
                     "encoder_layers": 1, "speech_encoder_attention_heads": 4,
                     "speech_encoder_intermediate_size": 128, "decoder_ffn_dim": 128,
                     "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "vocab_size": 1000,
                     "encoder_attention_heads": 4, "t2u_encoder_layers": 1,
                     "t2u_decoder_layers": 1},
    "speech-encoder-decoder": {
        "encoder": {"model_type": "wav2vec2", "num_hidden_layers": 1, "hidden_size": 64,
                    "intermediate_size": 128, "num_attention_heads": 4,
                    "conv_dim": [32] * 7, "mask_time_prob": 0.0},
        "decoder": {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 64,
                    "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 1000,
                    "is_decoder": True, "add_cross_attention": True}},
    "pop2piano": {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 1,
                  "num_decoder_layers": 1},
    "dia": {"encoder_config": {"model_type": "dia_encoder", "num_hidden_layers": 1,
                               "hidden_size": 64, "intermediate_size": 128, "head_dim": 16,
                               "num_attention_heads": 4, "num_key_value_heads": 4},
            "decoder_config": {"model_type": "dia_decoder", "num_hidden_layers": 1,
                               "hidden_size": 64, "intermediate_size": 128, "head_dim": 16,
                               "num_attention_heads": 4, "num_key_value_heads": 2,
                               "cross_num_attention_heads": 4, "cross_head_dim": 16,
                               "cross_num_key_value_heads": 4, "cross_hidden_size": 64}},
    "kyutai_speech_to_text": {"hidden_size": 128, "num_hidden_layers": 2, "ffn_dim": 256,
                              "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32,
                              "codec_config": {"model_type": "mimi", "num_hidden_layers": 1,
                                               "hidden_size": 64, "intermediate_size": 128,
                                               "upsample_groups": 64}},
    "fun_asr_nano": {"audio_config": {"model_type": "fun_asr_nano_encoder", "hidden_size": 64,
                                      "intermediate_size": 128, "num_attention_heads": 4,
                                      "num_hidden_layers": 2,
                                      "num_timestamp_prediction_layers": 1},
                     "adaptor_config": {"hidden_size": 128, "intermediate_size": 32,
                                        "num_hidden_layers": 1, "num_attention_heads": 4,
                                        "projector_hidden_size": 128},
                     "text_config": {"model_type": "qwen3", **WORDS}, "audio_token_id": 999},
    "qwen3_asr": {"audio_config": {"model_type": "qwen3_asr_encoder", **HEARD, "output_dim": 128,
                                   "downsample_hidden_size": 16},
                  "text_config": {"model_type": "qwen3", **WORDS}, "audio_token_id": 999},
    "voxtral": {"audio_config": {"model_type": "voxtral_encoder", "num_hidden_layers": 1,
                                 "hidden_size": 64, "intermediate_size": 256,
                                 "num_attention_heads": 4},
                "text_config": {"model_type": "llama", **WORDS}, "audio_token_id": 999},
    "voxtral_realtime": {"audio_config": {"model_type": "voxtral_realtime_encoder",
                                          "num_hidden_layers": 1, "hidden_size": 64,
                                          "intermediate_size": 128, "num_attention_heads": 4,
                                          "num_key_value_heads": 4, "head_dim": 16},
                         "text_config": {"model_type": "voxtral_realtime_text", **WORDS}},
}  # fmt: skip
BOUNDS = {"seamless_m4t": 4 << 20, "fun_asr_nano": 4 << 20, "kyutai_speech_to_text": 2 << 20}
"""What the trace cannot see: scratch of oneDNN's convolutions, 2 MiB seen; and a copy of the
gradient that the sum over codebooks expanded, which the backward of an embedding makes, 1 MiB."""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", MODELS)
def test_the_peak_of_a_model_of_sound_is_what_the_cpu_allocator_reports(tmp_path, kind):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **MODELS[kind]}))
    settings = {"task": "speech-seq2seq", "batch": 2, "seq": 32, "optim": "sgd", "target": "cpu"}
    plan = make({"model": str(path), **settings})
    (prediction,) = trace_all([plan])
    measured = steady_peaks(
        measure(Request(plan=plan, device="cpu", steps=2), lambda _: None).phases
    )
    real = max(levels["requested"] for levels in measured.values())
    assert abs(prediction.peak.requested - real) <= BOUNDS.get(kind, SCALARS)
