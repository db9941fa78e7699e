"""Generation speed against transformers' ``generate``, as ratios: plain decoding and whole episodes.

Two peers with the policy's width, depth, window and number of parameters, random weights, float32:

* ``gpt-oss``: a small gpt-oss (mixture of 4 experts, 2 used a token; eager attention with sink logits).
* ``dense``: a Mistral (dense, ``scaled_dot_product_attention``), the plainest thing to use instead.

Both keep transformers' own sliding-window cache. Everybody has the same batch and one thread; times
are processor time, the least of three rounds in turns.

Decoding: one prompt of 64 tokens a row, then 128 sampled tokens a row. This is the ratio of one
decoding loop to another.

Multi-turn: the policy plays 32 episodes, environment included, and the peer replays the same
episodes turn by turn without an environment. Only sampled tokens count as tokens a second;
observation tokens, which are read and not sampled, are printed beside them. The ratio contains more
than decoding speed:

* ``generate`` starts every turn with an empty cache, so that the peer reads the whole history again
  each turn, where the policy's session reads only what is new (agent loops around ``generate``
  commonly do this; a peer that carried its cache over would be faster);
* histories are left-padded to the longest of the batch;
* every row of a turn samples as many tokens as the turn's longest action;
* the fixed cost of a ``generate`` call is paid each turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from methods.base import ContextBudget, Episode, Grammar
from methods.config import AttentionConfig, PolicyShape
from methods.policy import SmallPolicy
from methods.rollout import generate
from tests.methods.toy import ToySuite

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]  # a busy machine stretches the wall

BATCH, PROMPT, NEW, VOCAB = 32, 64, 128, 400
CONTEXT = ContextBudget(window=40, num_sink_tokens=28)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def best_seconds(actions: dict[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """Least processor time of each action, in turns after one to warm up.

    Processor time of one thread, because a shared machine stretches the clock on the wall.
    """
    seconds = dict.fromkeys(actions, float("inf"))
    for trial in range(rounds + 1):
        for name, action in actions.items():
            start = time.process_time()
            action()
            if trial > 0:
                seconds[name] = min(seconds[name], time.process_time() - start)
    return seconds


def prompts() -> torch.Tensor:
    return torch.randint(1, VOCAB, (BATCH, PROMPT), generator=torch.Generator().manual_seed(0))


def sample_ours(policy: SmallPolicy) -> None:
    """NEW tokens for every row, any token allowed."""
    free = np.ones((2, VOCAB), dtype=np.bool_)
    grammar = Grammar(
        allowed=free, next_state=np.zeros((2, VOCAB), dtype=np.int64), start=0, final=1
    )
    rng, rows, states = np.random.default_rng(0), np.arange(BATCH), np.zeros(BATCH, dtype=np.int64)
    session = policy.session(BATCH, grammar)
    session.extend(prompts().tolist())
    for position in range(NEW):
        tokens, _ = session.sample(states, rng.random(BATCH))
        if position + 1 < NEW:
            session.step(rows, tokens)


def gpt_oss(vocab: int, intermediate: int) -> torch.nn.Module:
    """A mixture of experts with eager attention and sink logits."""
    import transformers

    config = transformers.GptOssConfig(
        **_shared(vocab),
        intermediate_size=intermediate,
        num_local_experts=4,
        num_experts_per_tok=2,
        attn_implementation="eager",
    )
    return transformers.GptOssForCausalLM(config)


def dense(vocab: int, intermediate: int) -> torch.nn.Module:
    """A Mistral: every layer dense and under the window."""
    import transformers

    config = transformers.MistralConfig(
        **_shared(vocab),
        intermediate_size=intermediate,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    return transformers.MistralForCausalLM(config)


def _shared(vocab: int) -> dict[str, Any]:
    shape = PolicyShape()
    return {
        "vocab_size": vocab,
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "sliding_window": CONTEXT.window,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
    }


PEERS: dict[str, Callable[[int, int], torch.nn.Module]] = {"gpt-oss": gpt_oss, "dense": dense}


def peers(policy: SmallPolicy, vocab: int) -> dict[str, torch.nn.Module]:
    """The peers, their feed-forward width chosen so that they have as many parameters."""
    pytest.importorskip("transformers")
    found = {}
    for name, build in PEERS.items():
        small, large = (size(build(vocab, width)) for width in (8, 16))
        width = 8 + round((policy.num_parameters - small) * 8 / (large - small))
        torch.manual_seed(0)  # transformers has no other way to seed its initial weights
        found[name] = build(vocab, width).eval()
        assert size(found[name]) == pytest.approx(policy.num_parameters, rel=0.02)
    return found


def size(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def report(benchmark: Any, title: str, tokens: int, seconds: dict[str, float]) -> dict[str, float]:
    """Print and return the ratios of the peers' seconds to ours."""
    ratios = {name: seconds[name] / seconds["ours"] for name in PEERS}
    benchmark.extra_info.update({f"{name}_over_ours": ratio for name, ratio in ratios.items()})
    print(f"\n  {title} (batch {BATCH}, one thread)")
    print(f"    {'this policy':<24}{tokens / seconds['ours']:>8,.0f} sampled tokens/s")
    for name, ratio in ratios.items():
        rate = tokens / seconds[name]
        print(f"    {name + ', generate':<24}{rate:>8,.0f} sampled tokens/s   ratio {ratio:.1f}x")
    return ratios


def test_decoding_against_transformers_generate(benchmark: Any) -> None:
    """One prompt a row, then single steps."""
    policy = SmallPolicy(PolicyShape(), AttentionConfig(), CONTEXT, VOCAB)
    ids = prompts()

    def sample(model: torch.nn.Module) -> None:
        out = continue_rows(model, ids, torch.ones_like(ids), NEW)
        assert out.shape == (BATCH, PROMPT + NEW)

    actions: dict[str, Callable[[], object]] = {"ours": lambda: sample_ours(policy)}
    actions |= {name: partial(sample, model) for name, model in peers(policy, VOCAB).items()}
    seconds = best_seconds(actions)
    benchmark.pedantic(actions["ours"], rounds=3)
    ratios = report(benchmark, f"decoding, {PROMPT} + {NEW} tokens a row", BATCH * NEW, seconds)
    assert min(ratios.values()) > 1


def continue_rows(
    model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, new: int
) -> torch.Tensor:
    out: torch.Tensor = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=mask,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=True,
        top_k=0,
    )
    return out


def replay_with_generate(model: torch.nn.Module, episodes: list[Episode]) -> None:
    """The same episodes turn by turn: ``generate`` from the history, left-padded, as is usual."""
    for turn in range(1, max(len(e.turns) for e in episodes), 2):
        spans = [(e.tokens, e.turns[turn]) for e in episodes if len(e.turns) > turn]
        width = max(start for _, (start, _, _) in spans)
        ids = torch.tensor([[0] * (width - i) + tokens[:i] for tokens, (i, _, _) in spans])
        mask = torch.tensor([[0] * (width - i) + [1] * i for _, (i, _, _) in spans])
        continue_rows(model, ids, mask, max(stop - start for _, (start, stop, _) in spans))


def test_rollout_against_transformers_generate(benchmark: Any) -> None:
    """32 episodes of about 12 turns and 210 tokens; see above for what the ratio contains."""
    suite = ToySuite(window=CONTEXT.window, num_sink_tokens=28, pages=(8, 12), patient=True)
    policy = SmallPolicy(PolicyShape(), AttentionConfig(), suite.context, 40)
    envs: list[gymnasium.Env[str, str]] = []
    episodes: list[Episode] = []

    def run() -> None:
        generators = [np.random.default_rng(i) for i in range(BATCH)]
        episodes[:] = generate(policy, suite, "train", range(BATCH), generators, envs=envs)

    actions: dict[str, Callable[[], object]] = {"ours": run}
    for name, model in peers(policy, 40).items():
        actions[name] = partial(replay_with_generate, model, episodes)
    seconds = best_seconds(actions)
    benchmark.pedantic(run, rounds=3)
    sampled = sum(sum(e.action_mask) for e in episodes)
    observed = sum(len(e.tokens) for e in episodes) - sampled
    title = f"multi-turn, {sampled} sampled and {observed} observation tokens"
    ratios = report(benchmark, title, sampled, seconds)
    assert min(ratios.values()) > 2
