"""Whole graphs: traced by PyTorch, lowered to loops, fused, placed in memory, and run without Python in between."""
