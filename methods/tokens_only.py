"""Tokens only: sink tokens are kept, sink logits are not.

Differs from ``sinkflex-rl`` in the missing logit of the softmax denominator, base policy included.
The two mechanisms share a name and little else: the comparison tells what the logit adds, and with
``no-sink`` beside it, what the tokens do.
"""

from methods.agent import AgentMethod
from methods.config import AttentionConfig, MethodConfig

METHOD = AgentMethod(
    name="tokens-only",
    version="1",
    config=MethodConfig(
        attention=AttentionConfig(sink_logits=False),
        base_attention=AttentionConfig(backend="blockwise", sink_logits=False),
    ),
)
