"""``torch.compile``: the backend, what Dynamo learns of the device, and compiled graphs."""
