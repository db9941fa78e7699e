"""SinkFlex-RL: window attention with sink tokens and sink logits, trained by GRPO.

The method under test. A policy attends to the last W positions and to the episode's first S (the
user's request), with one learned logit a head in the softmax denominator, through a kernel whose
extra memory grows linearly with the episode and a cache that does not grow at all. The same
attention is used for the base policy, for sampling and for training.
"""

from methods.agent import AgentMethod
from methods.config import AttentionConfig, MethodConfig

METHOD = AgentMethod(
    name="sinkflex-rl", version="1", config=MethodConfig(attention=AttentionConfig())
)
