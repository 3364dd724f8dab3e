"""Drivers that come with bringup, one folder or file each, found by name."""
