"""The kit: what works on a device, and how fast, with evidence."""
