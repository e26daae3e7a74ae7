"""The table of remedies, by cost: free, slower, lower precision, adapters."""

from __future__ import annotations

AMP = "Micikevicius et al. 2018, arXiv:1710.03740: same accuracy in its trials, faster products"
EIGHT_BIT = "Dettmers et al. 2022, arXiv:2110.02861: same accuracy in its trials"
CORRECTED = "docs/optimizers.md and evidence/finetune.json of memcalc"
LORA = "Hu et al. 2021, arXiv:2106.09685: adapters train, the model is frozen"
FOUR_BIT = "Dettmers and Zettlemoyer 2022, arXiv:2212.09720: best of equal bytes in its trials"
QLORA = "Dettmers et al. 2023, arXiv:2305.14314: as good as 16-bit LoRA in its trials"
