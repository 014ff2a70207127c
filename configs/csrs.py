"""CSRS (arXiv 2604.03647): softened frequency rewards over retraced re-inferences, no labels."""

from functools import partial

from ml_collections import ConfigDict

from configs import common


def get_config(scale: str = "tiny") -> ConfigDict:
    scales = {
        "tiny": common.embedded,
        "smoke": common.smoke,
        "qwen2_5_vl_7b": partial(table_6, size="7B"),
        "qwen2_5_vl_3b": partial(table_6, size="3B"),
    }
    return common.pick(scale, scales)


def table_6(config: ConfigDict, size: str) -> None:
    """The paper's Table 6, row by row.

    Rows that need nothing set here:

    KL Loss Type, Low-Var KL: the only estimator of objectives/grpo.py.
    Algorithm, GRPO: what this recipe is.
    Remove Padding / Fused Kernels, Enabled: prompts are shared by their responses and shapes come
        from a bucket table; XLA fuses.
    Ref Log-Prob Micro Batch, 4 sequences a GPU: the reference is scored in the same pass as the old
        policy, by the prompt with its 8 responses.
    Rollout Engine, vLLM, and GPU Memory Utilization, 0.6: sampling is part of the program.
    """
    common.released(config, size)  # Base Model, Gradient Checkpointing
    config.batch = 256  # Train Batch Size
    config.data.max_prompt_tokens = 1024  # Max Prompt Length
    config.rollout.max_tokens = 1536  # Max Response Length
    config.data.overlong = "drop"  # Filter Overlong Prompts, so Truncation Strategy never acts
    config.data.image_key = "images"  # Image Key
    config.optimizer.lr = 1e-6  # Optimizer Learning Rate
    config.optimizer.weight_decay = 0.01
    config.grpo.kl = 0.01  # KL Loss Coefficient
    config.grpo.entropy = 0.0  # Entropy Coefficient
    config.grpo.minibatches = 4  # PPO Mini Batch Size 64 = 256 / 4
    config.grpo.micro_batch = 1  # PPO Micro Batch Size 8 a GPU = 1 prompt x 8 responses
    config.rollout.n = 8  # Rollout Group Size and Sampling Group Size
    config.grpo.offload_reference = True  # Param Offload (Ref Model)
    config.retrace.m = 5  # Re-inference Number
    config.retrace.rate = 0.7  # Retracing Rate
    config.data.epochs = 15  # Total Epochs: 15 x (2101 // 256) = 120 steps on Geometry3K
    config.mesh = None  # 8 GPUs a Node, 1 Node: there it is (1, 8, 1)
    config.eval.every_epochs = 5  # Test Frequency
    config.checkpoint.every = 20  # Save Frequency
