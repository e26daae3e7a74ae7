"""The records of memcalc: questions, facts and answers.

Plan (the training run) -> Inventory (every tensor of the model) -> Trace (every storage's birth and
death) -> Prediction; Plan -> Measurement. Records hold unrounded bytes and are never changed; an
unknown value is ``None``, with its reason under ``unknown``.
"""
