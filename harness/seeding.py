"""Explicit generators: SHA-256(root seed, role, path) -> a seed. There is no global RNG.

Every random draw of a cell comes from a generator that names what it is for, so that adding a draw
in one place, resuming, or running things in another order cannot change the draws of another.
"""

from __future__ import annotations

import hashlib
import json
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

# Part of every hash. A change of scheme changes all results, so it must change this string too.
_SCHEME = "auto-research seeds 1"


@dataclass(frozen=True)
class HashSeeds:
    """The ``SeedSource`` of ``methods.base``, derived from one root seed.

    Args:
        root: The cell's seed, or a base policy's.

    Raises:
        TypeError: If ``root`` is no integer.
    """

    root: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", operator.index(self.root))

    def integer(self, role: str, *path: int) -> int:
        """A seed in [0, 2**63) for (root seed, role, path).

        Args:
            role: What the draw is for, for example ``"rollout"``.
            path: Which one, for example update, group, member.

        Raises:
            TypeError: If ``role`` is no string or a path element no integer.
            ValueError: If ``role`` is empty.
        """
        if not isinstance(role, str):
            raise TypeError(f"A seed's role is a string, not {type(role).__name__} ({role!r}).")
        if not role:
            raise ValueError("A seed's role is empty; name what the draw is for.")
        # JSON keeps ("a", 1, 12) and ("a", 11, 2) apart, which plain joining would not.
        key = json.dumps([_SCHEME, self.root, role, *map(operator.index, path)])
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1

    def numpy(self, role: str, *path: int) -> np.random.Generator:
        """A NumPy generator (PCG64) seeded with ``integer(role, *path)``."""
        import numpy as np

        return np.random.Generator(np.random.PCG64(self.integer(role, *path)))

    def torch(self, role: str, *path: int) -> torch.Generator:
        """A CPU torch generator seeded with ``integer(role, *path)``."""
        import torch

        return torch.Generator().manual_seed(self.integer(role, *path))
