"""The Hugging Face sides on an accelerator: bfloat16, and every run waited for."""

from typing import Any

import torch

from speed import hugging_face, torch_update


class Rollout(hugging_face.Rollout):
    """Responses by `generate` on a device."""

    def __init__(self, device: str, **arguments: Any) -> None:
        torch.set_default_device(device)
        super().__init__(**arguments)

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        return super().run(seed) | waited()


class Update(torch_update.Update):
    """One update: float32 weights, computed in bfloat16 on a GPU."""

    def __init__(self, device: str, **arguments: Any) -> None:
        torch.set_default_device(device)
        self.device = device
        super().__init__(**arguments)

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        half = self.device != "cpu"
        with torch.autocast(self.device, torch.bfloat16, enabled=half):
            return super().run(seed) | waited()


def waited() -> dict[str, Any]:
    """Nothing, once the device has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return {}
