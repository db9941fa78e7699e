"""Sink-aware sliding-window attention: one validated function, three backends, one cache."""

from methods.attention.api import (
    BACKENDS,
    AttentionPath,
    record_paths,
    resolve_backend,
    sink_attention,
)

__all__ = ["BACKENDS", "AttentionPath", "record_paths", "resolve_backend", "sink_attention"]
