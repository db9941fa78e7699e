"""A plugin: the paper's method, too small to learn anything, for tests of the real machinery."""

from methods.agent import AgentMethod
from methods.config import (
    AttentionConfig,
    GRPOConfig,
    MethodConfig,
    PolicyShape,
    SupervisedConfig,
)

METHODS = [
    AgentMethod(
        name="tiny",
        version="1",
        config=MethodConfig(
            attention=AttentionConfig(),
            shape=PolicyShape(
                d_model=24, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=12, d_ff=48
            ),
            supervised=SupervisedConfig(steps=4, batch_size=2, warmup=1),
            grpo=GRPOConfig(groups=1, group_size=4, micro_batch=2, checkpoint_every=1),
        ),
    )
]
