"""One torch thread: tensors here are small, and two threads that wait for each other on a busy machine take minutes."""

import torch

torch.set_num_threads(1)
