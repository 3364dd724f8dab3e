"""From a kernel to something a device can launch: rendered, compiled, cached, loaded."""
