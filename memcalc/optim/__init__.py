"""Optimizers that need less memory than AdamW: 8-bit states, and bf16 with a correction term.

Imports torch and nothing of memcalc.  ``docs/optimizers.md`` states their bytes and algorithms.
"""

from memcalc.optim.adam8bit import Adam8bit, AdamW8bit, embeddings_in_32bit
from memcalc.optim.adamwbf16 import AdamWBF16

__all__ = ["Adam8bit", "AdamW8bit", "AdamWBF16", "embeddings_in_32bit"]
