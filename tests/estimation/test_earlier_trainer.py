"""The Trainer of earlier releases prepares the model in place, and is followed as well."""

from memcalc.catalog.plan import make
from memcalc.estimation.tracing import Desk

PREPARES = "_prepare_for_training"


def prepared_in_place(trainer):
    """Give a Trainer the form of releases before 5.0: the method has no name of its own."""
    prepare = getattr(trainer, PREPARES)

    def in_place(self, steps, loader, checkpoint):
        prepared = prepare(self, steps, loader, checkpoint)
        self._load_optimizer_and_scheduler(checkpoint)
        return prepared

    trainer.prepares = in_place
    loop = trainer._inner_training_loop
    names = ("prepares" if name == PREPARES else name for name in loop.__code__.co_names)
    loop.__code__ = loop.__code__.replace(co_names=tuple(names))
    delattr(trainer, PREPARES)


def both_forms_say_the_same(folder):
    from transformers import BertConfig, Trainer

    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertConfig(**small, architectures=["BertForMaskedLM"]).save_pretrained(folder)
    plans = [
        make({"model": folder, "loop": "trainer", **more})
        for more in ({"batch": 2, "seq": 16}, {"batch": 1, "seq": 16, "resume": True})
    ]
    before = [Desk().estimate(plan)[0] for plan in plans]
    prepared_in_place(Trainer)
    after = [Desk().estimate(plan)[0] for plan in plans]
    assert [found.phases for found in after] == [found.phases for found in before]
    assert [found.components for found in after] == [found.components for found in before]


def test_an_earlier_trainer_is_followed_from_phase_to_phase(forked, tmp_path):
    forked(both_forms_say_the_same, str(tmp_path))
