"""memcalc: what training a model costs in GPU memory, before you rent the GPU."""

try:
    from importlib import import_module
    from typing import TYPE_CHECKING, Any

    from memcalc.records import display
    from memcalc.version import __version__
except Exception as error:
    from memcalc.shadowing import exit_if_command

    exit_if_command(error)
    raise

if TYPE_CHECKING:
    from memcalc.advice.explain.explain import explain
    from memcalc.advice.fit.fit import fit
    from memcalc.advice.suggest.suggest import suggest
    from memcalc.measure.recording.callback import MemoryCallback
    from memcalc.measure.recording.recorder import record
    from memcalc.records.plan import Plan
    from memcalc.script.api import estimate, simulate

__all__ = [
    "MemoryCallback",
    "Plan",
    "__version__",
    "estimate",
    "explain",
    "fit",
    "record",
    "simulate",
    "suggest",
]

_HOMES = {
    "estimate": "memcalc.script.api",
    "simulate": "memcalc.script.api",
    "explain": "memcalc.advice.explain.explain",
    "fit": "memcalc.advice.fit.fit",
    "record": "memcalc.measure.recording.recorder",
    "suggest": "memcalc.advice.suggest.suggest",
    "MemoryCallback": "memcalc.measure.recording.callback",
    "Plan": "memcalc.records.plan",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `memcalc --help` stays light.
    if name not in _HOMES:
        raise AttributeError(f"module 'memcalc' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _render_text(record: Any) -> str:
    from memcalc.report.blocks import terminal
    from memcalc.report.saved import blocks

    return terminal(blocks(record, verbose=False, top=12)).rstrip("\n")


def _render_html(record: Any) -> str:
    from memcalc.report.page import notebook

    return notebook(record)


def _draw_figure(record: Any) -> Any:
    from memcalc.report.plots import optimizers

    return optimizers([record])


def _make_dataframe(record: Any) -> Any:
    from memcalc.report.saved import to_dataframe

    return to_dataframe(record)


display.install(text=_render_text, html=_render_html, figure=_draw_figure, frame=_make_dataframe)
