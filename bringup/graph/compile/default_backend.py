"""``torch.compile(model)`` without a backend: graphs of our device are bringup's, all others stay inductor's.

Around a default backend of its registry torch.compile builds a wrapper that checks no options, forgets ``name`` and has
no configuration to show. What it builds here therefore becomes inductor's own wrapper, with one question more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from bringup.graph.passes import traced_tensors

_InductorWrapper: Any = torch._TorchCompileInductorWrapper  # untyped before torch 2.14


class Router(_InductorWrapper):
    """Inductor's wrapper: its modes, options, name, configuration and reset; graphs of our device go to bringup."""

    def __init__(self, mode: str | None, options: dict[str, Any] | None, *rest: Any) -> None:
        super().__init__(mode, options, *rest)  # refuses what inductor refuses
        self.options = dict(options or {})

    def __eq__(self, other: object) -> bool:
        """Differs from inductor's wrapper, whose code for our device would be an error."""
        return isinstance(other, Router) and bool(super().__eq__(other)) and self.options == other.options

    def __call__(
        self, model_: GraphModule, inputs_: Sequence[Any], *, config_patches: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        """Compiles what Dynamo found: called by it."""
        if not on_our_device(model_, inputs_):
            compiled: Callable[..., Any] = super().__call__(model_, inputs_, config_patches=config_patches)
            return compiled
        options = sorted({*self.options, *(config_patches or {})})
        if options:
            raise RuntimeError(
                f"options of inductor ({', '.join(options)}) do not apply to a graph on "
                f"{torch._C._get_privateuse1_backend_name()}: leave them out, or choose among bringup's own with "
                'torch.compile(model, backend="bringup", options={…})'
            )
        from bringup.graph.compile.backend import Backend

        return Backend()(model_, inputs_)


def on_our_device(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a tensor among the inputs or in the graph, also in the graphs inside it, is on our device.

    One is enough: bringup runs the nodes of other devices as ordinary ops, inductor has no code for ours.
    """
    kind = torch._C._get_privateuse1_backend_name()
    given = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    return any(x.device.type == kind for x in (*given, *traced_tensors(module)))


class DefaultBackend:
    """The object in Dynamo's registry, of which ``torch.compile`` makes a Router for each call."""

    @property
    def __name__(self) -> str:
        """Inductor's name; reading it makes a Router of the wrapper that torch.compile is building.

        torch.compile reads the name in the wrapper's ``__init__``. That is the only moment before the first graph at
        which the wrapper, mode, options and the region's name are in sight, and bad options must raise now.
        """
        frame = sys._getframe(1)
        wrapper: Any = frame.f_locals.get("self")
        if type(wrapper) is torch._TorchCompileWrapper and frame.f_back is not None:
            asked = {**frame.f_back.f_locals, **frame.f_locals}
            made: Any = torch._TorchCompileAOTInductorWrapper if asked.get("use_aoti") else Router
            wrapper.__class__ = made
            made.__init__(wrapper, *(asked.get(word) for word in ("mode", "options", "dynamic", "name")))
        return str(getattr(wrapper, "compiler_name", "inductor"))

    def __call__(self, module: GraphModule, inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
        """The same without a wrapper of torch.compile, as from ``torch._dynamo.optimize``."""
        return Router(settings.get("mode"), settings.get("options"), None)(module, inputs)
