"""What earlier releases of transformers did otherwise."""

from memcalc.catalog import releases
from memcalc.records.plan import Plan


def test_the_installed_release_is_as_it_is() -> None:
    assert releases.of(None, "gpt2") == releases.Release()


def test_sdpa_came_to_an_architecture_with_a_release() -> None:
    # Release notes: Llama 4.36, Mistral 4.37, BERT 4.41, OPT 4.46.
    for model_type, before, since in (
        ("llama", "4.35", "4.36.0"),
        ("mistral", "4.36", "4.37"),
        ("bert", "4.40.2", "4.41"),
        ("opt", "4.45", "4.46.1"),
    ):
        assert releases.of(before, model_type).eager
        assert not releases.of(since, model_type).eager


def test_a_loss_changed_within_a_minor_version() -> None:
    # modeling_gpt_bigcode.py of the two: cross-entropy of its own, then loss_function.
    assert releases.of("4.48.1", "gpt_bigcode").loss == "own"
    assert releases.of("4.48.3", "gpt_bigcode").loss == "function-shift"
    assert releases.of("4.48", "gpt_bigcode").loss == "function-shift"


def test_what_is_as_today_is_left_alone() -> None:
    today = releases.of(releases.history().releases[-1], "llama")
    assert (today.eager, today.loss, today.reentrant) == (False, None, False)


def test_releases_and_models_outside_what_was_read_are_said() -> None:
    assert any("outside" in note for note in releases.of("4.2", "gpt2").notes)
    assert any("outside" in note for note in releases.of("99.0", "gpt2").notes)
    assert any("it came with 4.34" in note for note in releases.of("4.30", "mistral").notes)
    assert any("nothing is known" in note for note in releases.of("4.30", "martian").notes)


def test_the_code_of_another_release_is_allowed_for() -> None:
    spread = releases.spread_of(Plan(transformers="4.46"))
    assert spread is not None
    assert spread.least < 0 < spread.most
    assert releases.spread_of(Plan()) is None
    # What was read is training; a model that only runs is weights and its cache.
    assert releases.spread_of(Plan(transformers="4.46", generate=8)) is None
    # Weights, gradients and states are what they are, whatever the code.
    assert spread.ends(10 << 30, 10 << 30) == (0, 0)
    low, high = spread.ends(10 << 30, 8 << 30)
    assert spread.least * (2 << 30) - 1 < low < 0 < high < spread.most * (2 << 30) + 1


def test_the_release_that_runs_needs_no_allowance(monkeypatch) -> None:
    monkeypatch.setattr(releases, "installed", {"transformers": "4.46.3"}.get)
    assert releases.spread_of(Plan(transformers="4.46")) is None
    assert releases.spread_of(Plan(transformers="4.4")) is not None


def test_a_model_kept_tuples_before_it_had_a_cache() -> None:
    # Release notes of 4.36: Cache abstraction, for Llama, Mistral, Phi and others.
    assert releases.of("4.35", "llama").tuples
    assert not releases.of("4.36", "llama").tuples
    assert any("tuples" in note for note in releases.of("4.35", "llama").notes)
    assert not releases.of("4.35", "llama", generates=False).tuples
