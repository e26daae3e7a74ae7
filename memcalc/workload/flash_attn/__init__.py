"""What programs call of the package flash-attn, where its compiled extension is not there.

Read in flash-attn 2.8.3.
"""

from memcalc.workload.flash_attn.finding import PACKAGE, VERSION, can_run, provide, stood_for

__all__ = ["PACKAGE", "VERSION", "can_run", "provide", "stood_for"]
