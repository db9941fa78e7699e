"""Sink-aware sliding-window attention: one validated function, three backends, one cache."""
