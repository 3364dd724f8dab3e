"""k-means, points resident in MRAM: BRINGUP_DRIVERS=upmem python examples/upmem/kmeans.py"""

import torch

torch.manual_seed(0)
centres = torch.tensor([[0.0, 0.0], [5.0, 5.0], [0.0, 5.0]])
here = (centres[:, None] + 0.5 * torch.randn(3, 200, 2)).reshape(-1, 2)
points = here.to("upmem")
guess = here[[0, 200, 400]].to("upmem")
for _ in range(5):
    nearest = (points[:, None] - guess).square().sum(2).argmin(1)
    members = torch.nn.functional.one_hot(nearest, 3).float()
    guess = (members.t() @ points) / members.sum(0)[:, None]
print(guess.cpu())
torch.testing.assert_close(guess.cpu(), centres, atol=0.15, rtol=0)
