"""The records of memcalc: questions, facts and answers.

Plan (what to train and how) -> Inventory (every tensor of the model) -> Trace (every storage's
birth and death) -> Prediction; Plan -> Measurement. Records hold unrounded bytes and are never
changed; a value that is not known is ``None`` and its reason stands in ``unknown``.
"""
