"""Ranks as torchrun starts them, but forked of a process that has imported torch: each import takes seconds."""

import os
import runpy
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import connection, get_context
from pathlib import Path

import torch
from torch.distributed import TCPStore

FORKS = get_context("forkserver")
IMPORTED = ["torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor.parallel"]
FORKS.set_forkserver_preload([*IMPORTED, "torch.distributed.pipelining.schedules", "placeto.training.trainer"])
SECONDS = 250.0


def run_ranks(program: str, *arguments: str, ranks: int, folder: Path) -> str:
    """What the ranks print of a program, which is a file or the name of a module; each writes to a file in a folder.

    Raises:
        AssertionError: a rank fails. The others are ended.
    """
    folder.mkdir(exist_ok=True)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    environment |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "CUDA_VISIBLE_DEVICES": ""}
    outputs = [folder / f"output-{rank}.txt" for rank in range(ranks)]
    processes = [
        FORKS.Process(target=_run, args=([program, *arguments], environment, rank, output), daemon=True)
        for rank, output in enumerate(outputs)
    ]
    try:
        for process in processes:
            process.start()
        running = {process.sentinel: process for process in processes}
        while running and (ended := connection.wait(running, SECONDS)):
            codes = [running.pop(sentinel).exitcode for sentinel in ended]  # type: ignore[arg-type]
            if any(codes):
                break
    finally:
        for process in processes:
            process.kill()
            process.join()
    told = "".join(output.read_text() for output in outputs if output.exists())
    assert [process.exitcode for process in processes] == [0] * ranks, told
    return told


def _run(command: list[str], environment: dict[str, str], rank: int, output: Path) -> None:
    os.environ |= environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    sys.argv, (program, *_) = command, command
    with output.open("w", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        try:
            if program.endswith(".py"):
                sys.path.insert(0, str(Path(program).parent))
                runpy.run_path(program, run_name="__main__")
            else:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if end.code:
                print(end.code)
                raise
        except BaseException:
            traceback.print_exc(file=file)
            raise
