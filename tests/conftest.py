"""One torch thread: tensors here are small, and two threads that wait for each other on a busy machine take minutes."""

import numba
import torch

numba.get_num_threads()  # starts numba's threads, which sets the number that torch uses
torch.set_num_threads(1)
