"""Programs of real libraries on the device: ``make integrations``; ``python -m tests.integrations --record``."""
