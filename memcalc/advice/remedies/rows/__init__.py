"""The table of remedies, by cost: free, slower, less precise.

A row has the changes, why they cannot be made on a plan, and the cost with its source; the saving
is never in a row, but estimated in full. ``rank`` orders by cost:

====  ===================================================================================
0     same arithmetic, no slower
1     same gradient from smaller pieces
2     products in half precision, weights and update in fp32
3, 4  same arithmetic, part of the forward runs twice, or no accumulation and no clipping
5     optimizer state in 8 bit
6     weights in half precision
7     other parameters train
8     other parameters train, around weights that are rounded to 4 bit
====  ===================================================================================
"""

from typing import Any

from memcalc.advice.remedies.records import Remedy

AMP = "Micikevicius et al. 2018, arXiv:1710.03740: same accuracy in its trials, faster products"
EIGHT_BIT = "Dettmers et al. 2022, arXiv:2110.02861: same accuracy in its trials"
CORRECTED = "docs/optimizers.md and evidence/finetune.json of memcalc"
LORA = "Hu et al. 2021, arXiv:2106.09685: adapters train, the model is frozen"
FOUR_BIT = "Dettmers and Zettlemoyer 2022, arXiv:2212.09720: best of equal bytes in its trials"
QLORA = "Dettmers et al. 2023, arXiv:2305.14314: as good as 16-bit LoRA in its trials"


def row(
    rank: int,
    key: str,
    title: str,
    cost: str,
    source: str,
    *,
    unfit: str | None = None,
    **changes: Any,
) -> Remedy:
    """Return a remedy that changes these fields of the plan."""
    return Remedy(
        rank=rank,
        key=key,
        title=title,
        cost=cost,
        source=source,
        unfit=unfit,
        changes=tuple(changes.items()),
    )
