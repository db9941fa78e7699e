"""Generation speed against transformers' ``generate`` on a gpt-oss-shaped model of the same size.

Same batch, same tokens, one thread; the model there is random, with eager attention and its own
sliding-window cache. Two ratios are printed: plain decoding, and whole multi-turn episodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import gymnasium
import numpy as np
import pytest
import torch

from methods.base import ContextBudget, Episode, Grammar
from methods.config import AttentionConfig, PolicyShape
from methods.policy import SmallPolicy
from methods.rollout import generate
from tests.methods.toy import ToySuite

pytestmark = pytest.mark.bench

BATCH, PROMPT, NEW, VOCAB = 32, 64, 128, 400
CONTEXT = ContextBudget(window=40, num_sink_tokens=28)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def best_seconds(*actions: Callable[[], object], rounds: int = 3) -> list[float]:
    """Least CPU time of each action, in turns after one to warm up.

    CPU time of one thread, because a shared machine stretches the clock on the wall.
    """
    seconds = [float("inf")] * len(actions)
    for trial in range(rounds + 1):
        for number, action in enumerate(actions):
            start = time.process_time()
            action()
            if trial > 0:
                seconds[number] = min(seconds[number], time.process_time() - start)
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


def gpt_oss(parameters: int) -> torch.nn.Module:
    """A random gpt-oss with the policy's width and depth, its experts sized to the same total."""
    transformers = pytest.importorskip("transformers")

    def build(intermediate: int) -> torch.nn.Module:
        config = transformers.GptOssConfig(
            vocab_size=VOCAB,
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=24,
            intermediate_size=intermediate,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=CONTEXT.window,
            attn_implementation="eager",
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
        )
        torch.manual_seed(0)  # transformers has no other way to seed its initial weights
        return transformers.GptOssForCausalLM(config).eval()

    def size(model: torch.nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    small, large = size(build(8)), size(build(16))
    return build(8 + round((parameters - small) * 8 / (large - small)))


def report(
    capsys: pytest.CaptureFixture[str], what: str, tokens: int, seconds: list[float]
) -> None:
    ours, theirs = seconds
    with capsys.disabled():
        print(
            f"\n{what}: {tokens / ours:,.0f} tokens/s, transformers generate "
            f"{tokens / theirs:,.0f} tokens/s, ratio {theirs / ours:.1f}x (batch {BATCH}, one thread)"
        )


def test_decoding_against_transformers_generate(capsys: pytest.CaptureFixture[str]) -> None:
    """One prompt a row, then single steps: sampled tokens a second."""
    policy = SmallPolicy(PolicyShape(), AttentionConfig(), CONTEXT, VOCAB)
    model = gpt_oss(policy.num_parameters)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(
        policy.num_parameters, rel=0.02
    )
    ids = prompts()

    def sample_theirs() -> None:
        out = continue_rows(model, ids, torch.ones_like(ids), NEW)
        assert out.shape == (BATCH, PROMPT + NEW)

    seconds = best_seconds(lambda: sample_ours(policy), sample_theirs)
    report(capsys, "decoding", BATCH * NEW, seconds)


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


def test_rollout_against_transformers_generate(
    benchmark: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    """32 episodes of about 12 turns and 210 tokens, environment included: at least 5 times."""
    suite = ToySuite(window=40, num_sink_tokens=28, pages=(8, 12), patient=True)
    policy = SmallPolicy(PolicyShape(), AttentionConfig(), suite.context, 40)
    model = gpt_oss(policy.num_parameters)
    envs: list[gymnasium.Env[str, str]] = []
    episodes: list[Episode] = []

    def run() -> None:
        generators = [np.random.default_rng(i) for i in range(BATCH)]
        episodes[:] = generate(policy, suite, "train", range(BATCH), generators, envs=envs)

    seconds = best_seconds(run, lambda: replay_with_generate(model, episodes))
    report(capsys, "multi-turn rollout", sum(len(e.tokens) for e in episodes), seconds)
    benchmark(run)
    assert seconds[1] / seconds[0] >= 5.0
