"""A plugin: sinkflex-rl with a base of 60 supervised steps, to see everything work in a minute.

`make smoke` runs it. It shows how a method of your own is made from an existing one; its scores mean
nothing.
"""

from dataclasses import replace

from methods.agent import AgentMethod
from methods.sinkflex_rl import METHOD

CONFIG = replace(METHOD.config, supervised=replace(METHOD.config.supervised, steps=60))
METHODS = [AgentMethod(name="sinkflex-quick", version="1", config=CONFIG)]
