"""Models with names. Every sparse one activates 1/32 of its expert parameters.

The two that train for no more than a few thousand steps balance their routers three times as fast.
"""

from __future__ import annotations

from isthmus.errors import ConfigError
from isthmus.model.config import ModelConfig

_NANO = ModelConfig(
    d_model=64,
    num_layers=3,
    num_heads=2,
    num_kv_heads=2,
    head_dim=32,
    expert_hidden=32,
    shared_hidden=64,
    max_seq_len=256,
    balance_rate=3e-3,
)

PRESETS: dict[str, ModelConfig] = {
    "micro": ModelConfig(
        d_model=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=2,
        head_dim=32,
        expert_hidden=16,
        shared_hidden=48,
        max_seq_len=256,
        balance_rate=3e-3,
    ),
    "nano": _NANO,
    "dense": _NANO.dense_twin(),
    "small": ModelConfig(
        d_model=256,
        num_layers=6,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        expert_hidden=128,
        shared_hidden=256,
        max_seq_len=1024,
    ),
    "32b": ModelConfig(
        vocab_size=131_072,
        d_model=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        num_experts=64,
        top_k=2,
        expert_hidden=1152,
        shared_hidden=2304,
        max_seq_len=8192,
        tie_embeddings=False,
        rope_theta=500_000.0,
    ),
}
"""``micro`` for the lab, ``nano`` for the demo, ``dense`` the dense twin of ``nano``, ``small``, and ``32b``."""


def preset(name: str) -> ModelConfig:
    """The model of that name.

    Raises:
        ConfigError: There is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError("unknown model preset", got=repr(name), wanted=f"one of {', '.join(PRESETS)}")
    return PRESETS[name]
