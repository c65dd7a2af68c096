"""What each of vLLM's processes that run the model on a CPU does before anything else.

vLLM imports this module there, since it adds `WorkerExtension` to its worker. Importing it imports torch.
"""

import torch


class WorkerExtension:
    """Adds nothing: vLLM wants a class."""


# Linux lets a process use the tiles of AMX only after it has asked for them, and ends it with SIGILL otherwise. vLLM's
# attention in bfloat16 uses them without asking. oneDNN asks at the first product of some rows, so a prompt of three
# tokens or fewer would end an engine that has not seen a longer one.
torch.cpu._init_amx()
