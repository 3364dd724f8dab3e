"""``bringup.export`` and ``bringup.load``: a model in a file that holds no code."""
