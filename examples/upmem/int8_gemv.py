"""One decode step's product, int8 weights by a vector: BRINGUP_DRIVERS=upmem python examples/upmem/int8_gemv.py"""

import torch

torch.manual_seed(0)
weights = torch.randint(-127, 128, (1024, 256), dtype=torch.int8)
token = torch.randint(-127, 128, (256,), dtype=torch.int8)

resident = weights.to("upmem")  # once: rows are dealt to the DPUs
torch.upmem.reset_report()
sums = (resident.to(torch.int32) * token.to("upmem").to(torch.int32)).sum(1)
assert torch.equal(sums.cpu(), weights.long() @ token.long())
print(torch.upmem.report())
