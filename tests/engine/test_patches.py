"""Replaced functions of packages: as soon as they are there, and as they were afterwards."""

import fractions
import importlib
import sys

from memcalc.engine.patches import Patches


def test_a_class_that_another_release_lacks_is_left_alone():
    with Patches() as patches:
        patches.wrap_later("fractions", "Fraction.limit_denominator", lambda original, *_: 7)
        patches.wrap_later("fractions", "Unheard.of", lambda original, *_: 7)
        assert fractions.Fraction(1, 3).limit_denominator() == 7
    assert fractions.Fraction(1, 3).limit_denominator() == fractions.Fraction(1, 3)


class Asking:
    """A finder of another package that asks all others, and passes over their errors."""

    def __init__(self):
        self.asked = 0

    def find_spec(self, name, path=None, target=None):
        self.asked += 1
        for finder in sys.meta_path:
            if finder is not self:
                try:
                    if spec := finder.find_spec(name, path, target):
                        return spec
                except Exception:
                    continue
        return None


def test_a_finder_that_asks_all_others_is_asked_once(tmp_path, monkeypatch):
    (tmp_path / "found_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    other = Asking()
    with Patches() as patches:
        patches.when_imported("found_late", lambda module: setattr(module, "value", 7))
        monkeypatch.setattr(sys, "meta_path", [other, *sys.meta_path])
        assert importlib.import_module("found_late").value == 7
    assert other.asked <= 2


def test_a_row_of_a_batch_is_one_sequence_so_no_mask_is_made_for_several(forked):
    assert forked(mask_of_rows) == [True, False]


def mask_of_rows():
    """Tell whether transformers makes no mask for positions of zeros, within and without."""
    import torch
    from transformers import masking_utils

    from memcalc.engine.patches import Patches
    from memcalc.engine.values import library_checks

    positions = torch.zeros(2, 8, dtype=torch.long)
    with Patches() as patches:
        library_checks.skip_packed_sequences(patches)
        within = masking_utils.find_packed_sequence_indices(positions) is None
    return [within, masking_utils.find_packed_sequence_indices(positions) is None]
