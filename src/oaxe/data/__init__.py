"""Prepared text to batches on the device."""
