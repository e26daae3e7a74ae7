"""What stands for a size that is not known yet."""

from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

__all__ = ["ConstantSource", "DimDynamic", "PythonPrinter", "ShapeEnv"]
