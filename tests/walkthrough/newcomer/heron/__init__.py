"""Heron, a chip that lives in the memory of this process, as a PyTorch device."""
