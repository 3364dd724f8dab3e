"""The public names and where each lives: the one list, for type checkers and for ``bringup/__init__.py``."""

from bringup import jit as jit
from bringup import lowering as lowering
from bringup.driver import CallSpec as CallSpec
from bringup.driver import ClockPair as ClockPair
from bringup.driver import CopyKind as CopyKind
from bringup.driver import DeviceLost as DeviceLost
from bringup.driver import DeviceSpec as DeviceSpec
from bringup.driver import Driver as Driver
from bringup.driver import DriverAbsent as DriverAbsent
from bringup.driver import EventFlags as EventFlags
from bringup.driver import HostFlags as HostFlags
from bringup.driver import Launch as Launch
from bringup.driver import LibraryOp as LibraryOp
from bringup.driver import Placement as Placement
from bringup.driver import PlacementKind as PlacementKind
from bringup.driver import Tensor as Tensor
from bringup.driver import TraceKind as TraceKind
from bringup.driver import TraceRecord as TraceRecord
from bringup.driver.abi import CDriver as CDriver
from bringup.driver.in_use import activation_error as activation_error
from bringup.driver.in_use import active_drivers as active_drivers
from bringup.graph.compile.backend import Backend as Backend
from bringup.graph.export.artifact import ArtifactError as ArtifactError
from bringup.graph.export.export import export as export
from bringup.graph.export.load import load as load
from bringup.graph.export.trace import ExportError as ExportError
from bringup.graph.passes import graph_pass as graph_pass
from bringup.graph.passes import remove_graph_pass as remove_graph_pass
from bringup.graph.quantize.quantizer import quantize as quantize
from bringup.lowering import formulas as formulas
from bringup.lowering.custom_ops import pointwise as pointwise
from bringup.offloading.offload import offload as offload
from bringup.torch_device.activation import activate as activate
from bringup.torch_device.activation import device as device
from bringup.torch_device.ledger import fallback_policy as fallback_policy
from bringup.torch_device.ledger import fallbacks as fallbacks
from bringup.torch_device.ledger import reset_fallbacks as reset_fallbacks

__version__: str
