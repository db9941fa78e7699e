"""A plugin: the paper's method, too small to learn anything, for tests of the real machinery.

TINY_HOLD="rl:2" in the environment makes it wait after the second update, to be stopped or killed.
"""

import dataclasses
import os
import time

from methods.agent import AgentMethod
from methods.config import (
    AttentionConfig,
    GRPOConfig,
    MethodConfig,
    PolicyShape,
    SupervisedConfig,
)

PHASE, _, COUNT = os.environ.get("TINY_HOLD", "none:0").partition(":")


class TinyMethod(AgentMethod):
    """The paper's method at a toy's size."""

    def run_agent(self, suite, context):
        def report(event):
            context.report(event)
            if event.get("phase") == PHASE and event.get("done") == int(COUNT):
                context.report({"event": "held"})
                deadline = time.monotonic() + 120
                while time.monotonic() < deadline and not context.should_stop():
                    time.sleep(0.02)

        return super().run_agent(suite, dataclasses.replace(context, report=report))


METHODS = [
    TinyMethod(
        name="tiny",
        version="1",
        config=MethodConfig(
            attention=AttentionConfig(),
            shape=PolicyShape(
                d_model=24, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=12, d_ff=48
            ),
            supervised=SupervisedConfig(steps=4, batch_size=2, warmup=1),
            grpo=GRPOConfig(
                groups=1, group_size=4, minibatches=1, micro_batch=2, checkpoint_every=1
            ),
        ),
    )
]
