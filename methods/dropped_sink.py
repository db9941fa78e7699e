"""Dropped sink: ``sinkflex-rl``'s base policy, run by a kernel that ignores its sinks.

The base is trained with sink tokens and sink logits; both are dropped before the first evaluation
and stay dropped through RL, with the window widened by S. This is what happens to a model that has
sinks (gpt-oss, for one) under an attention kernel without support for them. So the comparison
tells how much such a model leans on its sinks and whether RL repairs it. It is no evidence that
sinks are needed in general: for that see ``no-sink``.
"""

from methods.agent import AgentMethod
from methods.config import AttentionConfig, MethodConfig

METHOD = AgentMethod(
    name="dropped-sink",
    version="1",
    config=MethodConfig(
        attention=AttentionConfig(sink_tokens=False, sink_logits=False, widen_window=True)
    ),
)
