"""torch.distributed for every driver: collectives of device tensors through PyTorch's own Gloo, in stream order."""
