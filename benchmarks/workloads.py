"""The lists of workloads that benchmarks/compile.py asks for by name."""

from __future__ import annotations

from frozen_networks import FROZEN
from graph_models import MEMORY_BOUND, NETWORKS
from network_families import FAMILIES

#: What is measured by default, and may be tuned for.
WORKLOADS = {work.name: work for work in (*NETWORKS, *FAMILIES, *MEMORY_BOUND)}
#: The same with the frozen list, which may not.
EVERYTHING = {**WORKLOADS, **{work.name: work for work in FROZEN}}

__all__ = ["EVERYTHING", "FROZEN", "WORKLOADS"]
