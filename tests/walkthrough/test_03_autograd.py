"""Chapter 3. Gradients and training need nothing more from a driver."""

import torch


def test_the_gradient_is_the_cpus(device):
    x = torch.randn(4, 4)
    gradients = []
    for where in ("cpu", device):
        leaf = x.detach().to(where).requires_grad_()
        (leaf @ leaf).softmax(-1).square().sum().backward()
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_a_small_model_learns(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x = torch.randn(64, 2, device=device)
    target = x[:, :1] * x[:, 1:]
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_autocast(device):
    x = torch.randn(3, 3, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16  # matrix products in the narrow type
        assert x.softmax(-1).dtype == torch.float32  # what needs precision keeps it
