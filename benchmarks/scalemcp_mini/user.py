"""Dual control: the agent and a scripted user act on one shared state (as in tau2-bench).

The agent can only ask; consent comes from the user's own action on the state. The user never ends
an episode, so that an agent cannot be cut off between a grant and the call that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.scalemcp_mini.catalog import Pair


@dataclass
class SharedState:
    """What both sides of an episode act on.

    Args:
        consents: Tools that the user lets the agent use.
        ledger: (company, metric) -> last value obtained, in the order obtained.
        user_actions: What the user did, in order.
    """

    consents: set[Pair] = field(default_factory=set)
    ledger: dict[Pair, int] = field(default_factory=dict)
    user_actions: list[tuple[str, Pair]] = field(default_factory=list)

    def record(self, pair: Pair, value: int) -> None:
        """Put a value at the ledger's end; an earlier value of the same tool goes."""
        self.ledger.pop(pair, None)
        self.ledger[pair] = value


class ScriptedUser:
    """Asks for some values and consents to their tools, and to no others.

    Args:
        wanted: The (company, metric) pairs of the user's own request.
    """

    def __init__(self, wanted: Iterable[Pair]) -> None:
        self._wanted = frozenset(wanted)

    def asked_about(self, state: SharedState, pair: Pair) -> bool:
        """Answer the agent's question about a tool by acting on the state; True if granted."""
        if pair not in self._wanted:
            state.user_actions.append(("refuse", pair))
            return False
        state.consents.add(pair)
        state.user_actions.append(("grant", pair))
        return True
