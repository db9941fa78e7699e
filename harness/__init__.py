"""Runs cells and keeps results; knows nothing of attention or of any one benchmark."""
