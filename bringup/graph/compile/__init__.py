"""``torch.compile``: the backend, what Dynamo is told of the device, and compiled graphs."""
