"""What a launch tells its driver: the kernel's name, a number of its own, and what a target asks for each unit."""

from __future__ import annotations

PROGRAM = """
from dataclasses import dataclass, replace

from bringup import activate
from bringup.drivers.sim import Driver as Sim
from bringup.targets.registry import register_target
from bringup.targets.c.target import CTarget


@register_target
@dataclass(frozen=True)
class Blocks(CTarget):
    language = "blocks"

    def render(self, kernel):
        return replace(super().render(kernel), block=64, local_bytes=512)

    def together(self, sources):
        return None


class Driver(Sim):
    name = "blockchip"
    launches = []
    compiles_together = False

    def target(self):
        return super().target().replace("c;", "blocks;")

    def launch(self, device, kernel, launch):
        self.launches.append(launch)
        return super().launch(device, kernel, launch)

    def memory_info(self, device):
        return 1000, 5000

    def can_access_peer(self, device, peer):
        return (device, peer) == (0, 1)


activate(Driver)
import torch

for _ in range(2):  # the second time from the disk cache of plans and kernels
    x = torch.arange(6.0, device="blockchip")
    assert (x.exp() + x).sum().item() > 0
launches = Driver.launches
assert all(one.block == 64 and one.local_bytes == 512 for one in launches), launches
assert all(one.name.startswith("bringup_") for one in launches), [one.name for one in launches]
assert any("exp" in one.name for one in launches)
numbers = [one.correlation for one in launches]
assert 0 not in numbers and len(set(numbers)) == len(numbers) and numbers == sorted(numbers), numbers

if hasattr(torch.accelerator, "Graph"):
    graph = torch.blockchip.Graph()
    y = torch.ones(4, device="blockchip")
    with torch.blockchip.graph(graph):
        z = y * 3
    before = len(launches)
    graph.replay()
    graph.replay()
    torch.blockchip.synchronize()
    again = launches[before:]
    assert len(again) == 2 and again[0].name == again[1].name and again[0].correlation < again[1].correlation
    assert z.tolist() == [3.0] * 4

assert torch.blockchip.mem_get_info() == (1000, 5000)
assert torch.blockchip.can_device_access_peer(0, 1) and not torch.blockchip.can_device_access_peer(1, 0)
there = torch.ones(5, device="blockchip:1")
assert torch.equal(there.to("blockchip:0").to("blockchip:1"), there)  # one way directly, the other through the host
"""


def test_a_launch_says_what_it_is(run_python) -> None:
    run_python(PROGRAM, env={"BRINGUP_SIM": "devices=2", "BRINGUP_DRIVERS": None})


def test_a_wrong_memory_info_is_named(run_python) -> None:
    code = """
    from bringup import activate
    from bringup.drivers.sim import Driver as Sim

    class Driver(Sim):
        name = "wrongchip"
        def memory_info(self, device):
            return 7

    activate(Driver)
    import torch

    try:
        torch.wrongchip.mem_get_info()
    except ValueError as error:
        assert "memory_info" in str(error) and "must return (free, total), not 7" in str(error), error
    else:
        raise AssertionError("7 was taken")
    """
    run_python(code, env={"BRINGUP_DRIVERS": None})
