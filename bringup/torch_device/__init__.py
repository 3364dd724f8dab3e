"""What PyTorch sees of a device: activation, ``torch.<name>``, and what belongs to it."""
