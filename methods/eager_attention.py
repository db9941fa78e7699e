"""Eager attention: the same mathematics as ``sinkflex-rl`` through the materialised kernel.

Differs from ``sinkflex-rl`` in the kernel (every score of T x T is computed and stored) and in the
cache (every position is kept) alone; the base policy is the very same file. So the comparison
tells what the kernel costs in seconds and memory, and the scores should agree within seed noise:
the two round differently, sample differently sooner or later, and then train on different
trajectories.
"""

from methods.agent import AgentMethod
from methods.config import AttentionConfig, MethodConfig

METHOD = AgentMethod(
    name="eager-attention",
    version="1",
    config=MethodConfig(attention=AttentionConfig(backend="reference", cache="full")),
)
