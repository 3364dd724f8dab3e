"""Chapter 2. Tensors live on the device: made there, moved there, viewed there, and never mixed with the CPU's."""

import pytest
import torch


def test_made_and_moved(device):
    x = torch.arange(6.0, device=device).view(2, 3)
    assert x.device.type == device
    assert x.cpu().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.equal(torch.tensor([1, 2]).to(device).cpu(), torch.tensor([1, 2]))
    assert repr(x).endswith(f"device='{device}:0')")


def test_views_share_memory(device):
    x = torch.zeros(2, 3, device=device)
    x.t()[0] = 7
    assert x.cpu().tolist() == [[7, 0, 0], [7, 0, 0]]


def test_random_numbers_depend_on_the_seed_alone(device):
    torch.manual_seed(3)
    first = torch.randn(1000, device=device)
    torch.manual_seed(3)
    assert torch.equal(torch.randn(10, 100, device=device).view(-1).cpu(), first.cpu())


def test_devices_do_not_mix(device):
    x = torch.ones(2, 2, device=device)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x @ torch.ones(2, 2)
    assert (x + torch.tensor(1.0)).sum().item() == 8  # a single number may come from the CPU
    with pytest.raises(ValueError, match="there is no device"):
        torch.ones(1, device=f"{device}:99")
