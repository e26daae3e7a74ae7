"""One GPU: the model as it is."""

from memcalc.workload.layouts import Layout

LAYOUT = Layout(name="single", wrap=lambda model: model)
