"""Models that accelerate runs by device maps, on two devices that pretend to be some; a line of JSON for each.

``python -m tests.formats.dispatched`` is a process of its own, since devices are registered for all of a process.
"""

import copy
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference
from placeto.formats.exports import device_map
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.formats.divided import MODELS, WORDS
from tests.formats.pretended import pretend


def hugging_face() -> dict[str, Callable[[], nn.Module]]:
    """Small models of the library, if it is installed."""
    try:
        import transformers as hf
    except ImportError:
        return {}
    sizes: dict[str, Any] = {"vocab_size": 12, "use_cache": False}
    llama = hf.LlamaConfig(
        num_hidden_layers=3, hidden_size=16, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2, **sizes
    )
    t5 = hf.T5Config(num_layers=2, d_model=16, d_ff=32, num_heads=2, d_kv=8, decoder_start_token_id=0, **sizes)
    return {
        "Llama": lambda: hf.LlamaForCausalLM(llama),
        "T5": lambda: hf.T5ForConditionalGeneration(t5),
    }


def checked(name: str, make: Callable[[], nn.Module]) -> dict[str, Any]:
    """What became of a model: problems, and how many of some random placements were on two devices."""
    torch.manual_seed(0)
    model, words = make().eval(), torch.arange(10).reshape(2, 5) % 12
    inputs = {"words": words} if name in WORDS else {"input" if name == "attention" else "x": torch.randn(2, 5, 8)}
    if name in ("Llama", "T5"):
        inputs = {"input_ids": words} | ({"decoder_input_ids": words} if name == "T5" else {})
    problem = PlacementProblem(capture_inference(model, inputs), load_cluster("2xv100"))
    with torch.no_grad():
        if name in MODELS and name != "attention":
            expected = output(model(**inputs))
        else:  # attention has kernels of its own on CPUs
            expected = output(copy.deepcopy(model).to(0)(**{key: value.to(0) for key, value in inputs.items()})).cpu()
    problems, divided = set(), 0
    for seed in range(3):
        random = np.random.default_rng(seed)
        paths = {path: int(random.integers(2)) for path in sorted(set(problem.graph.modules))}
        placement = np.array([paths[path] for path in problem.graph.modules])
        for colour in np.unique(problem.graph.colocation[problem.graph.colocation >= 0]):
            placement[problem.graph.colocation == colour] = placement[problem.graph.colocation == colour][0]
        made = device_map(simulate(problem, placement))
        divided += len(set(made.modules.values())) > 1
        problems |= set(told(model, made.named(), inputs, expected))
    return {"name": name, "problems": sorted(problems), "divided": divided, "map": made.modules}


def told(model: nn.Module, named: dict[str, Any], inputs: dict[str, Tensor], expected: Tensor) -> Iterator[str]:
    """What is wrong with a device map."""
    from accelerate import dispatch_model

    for key, device in named.items():
        if any(other.startswith(f"{key}.") and named[other] != device for other in named):
            yield f"{key} contains modules of another device"
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for path, _ in tensors:
        if sum(path == key or path.startswith(f"{key}.") for key in named) != 1:
            yield f"{path} has no device, or two"
    try:
        dispatched = dispatch_model(copy.deepcopy(model), named)  # has hooks if there are several devices
        hooked = len(set(named.values())) > 1
        if not hooked:
            inputs = {name: tensor.to(next(iter(named.values()))) for name, tensor in inputs.items()}
        for path, part in dispatched.named_modules() if hooked else ():
            at = {tensor.device.index for tensor in (*part.parameters(False), *part.buffers(False))}
            hook = getattr(part, "_hf_hook", None)
            if at and (hook is None or at != {hook.execution_device}):
                yield f"{path}: weights on {at}, inputs are moved to {getattr(hook, 'execution_device', None)}"
        with torch.no_grad():
            if not torch.equal(output(dispatched(**inputs)).cpu(), expected):
                yield "another output"
    except Exception as error:
        yield f"{type(error).__name__}: {error}"


def output(given: Any) -> Tensor:
    """The tensor of interest."""
    return given if isinstance(given, Tensor) else given.logits


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    kept = pretend()
    models = MODELS | hugging_face()
    for name in sys.argv[1:] or models:
        print(json.dumps(checked(name, models[name])), flush=True)
    del kept


if __name__ == "__main__":
    main()
