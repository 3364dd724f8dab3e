"""``bringup.offload``: chosen operators of a model run on a device, the model and its tensors stay on the CPU."""
