"""No sink: a policy that never had sink tokens or sink logits, with the same recipe otherwise.

Differs from ``sinkflex-rl`` in attention, base policy included: no position is kept for good, no
logit absorbs attention, and the window is W + S positions wide, so that a query sees as many
positions as there. Supervised steps, RL and data are the same. So the comparison tells what sinks
are worth at an equal budget of visible positions, to a policy that was trained either way; it is
the fair ablation, where ``dropped-sink`` is the harsh one.
"""

from methods.agent import AgentMethod
from methods.config import AttentionConfig, MethodConfig

METHOD = AgentMethod(
    name="no-sink",
    version="1",
    config=MethodConfig(
        attention=AttentionConfig(sink_tokens=False, sink_logits=False, widen_window=True),
        base_attention=AttentionConfig(
            backend="blockwise", sink_tokens=False, sink_logits=False, widen_window=True
        ),
    ),
)
