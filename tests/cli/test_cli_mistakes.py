"""Mistakes on the command line: exit status 2, one line that says what is wrong, and no file is written.

The messages are those of the units that find the mistake; here it is shown that they reach the user.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from placeto.problem.cluster import load_cluster, save_cluster
from placeto.problem.graph import ComputationGraph, save_graph
from tests.cli.test_cli_cluster import MACHINE
from tests.command_line import OPS, run

NET = """
import torch
from torch import nn

def net(width=8):
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 4)), [torch.empty(16, width)], lambda y: y.sum()

def bare():
    return nn.Linear(8, 4), [torch.empty(16, 8)]

def broken():
    class Broken(nn.Linear):
        def forward(self, x):
            raise ValueError("no such luck")
    return Broken(2, 2), [torch.randn(2)], lambda y: y.sum()

def deep(depth: int):
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(depth)]), [torch.empty(2, 4)]

def text():
    return "neither a module nor inputs"
"""
ON = "--cluster 2xv100"
PLACED = f"{ON} --placement p.json"
MODEL = f"net.py:net {ON} --placer heft"
TRAIN = f"train g.json {ON} --out run"
LOCAL = "--devices cpu:0,cpu:1"
STREAM = f"place g.json {ON} --objective throughput"

MISTAKES = [
    # the command line as such
    ("plaice", "commands: train, plan, fits, place"),
    ("--plaice", "unknown option '--plaice'; commands: train, plan, fits, place"),
    ("list everything", "families"),
    ("place", "Missing from placeto place: GRAPH"),
    ("place g.json", "--cluster"),
    (f"place g.json {ON} --nonsense 1", "Unrecognized options: --nonsense"),
    (f"plan net.py:net {ON} --inference", "Unrecognized options: --inference"),
    ("fits net.py:net --memory 1GB --tensor-parallel 2", "`placeto plan` tries groups of 2, 4 and 8 boards"),
    ("plan net.py:net --cluster 4xv100 --memory 24GB", "`placeto cluster 4xv100 -o mine.json`"),
    (f"place g.json {ON} --dispatch first", "of 1f1b, earlier-0.02, earlier-0.05, earlier-0.2, fifo, list, priority. "),
    (f"plan net.py:net {ON} --runnable-by tensorflow", "Expected one of megatron, torch, torchtitan. "),
    ("capture net.py:net -o a.json --precision fp8", "--precision"),
    # values by their types
    (f"place g.json {ON} --seed q", "Error parsing --seed: 'q' is no whole number"),
    (f"place g.json {ON} --simulations 1.5e0", "'1.5e0' is no whole number"),
    (f"place g.json {ON} --seed -1", "--seed must be >= 0, not -1"),
    (f"place g.json {ON} --seed {2**63}", f"--seed must be <= {2**63 - 1}, not {2**63}"),
    (f"place g.json {ON} --seconds nan", "--seconds must be a finite number, not nan"),
    (f"place g.json {ON} --patience 30", "--patience must be < 1, not 30"),
    (f"place {MODEL} --micro-batches 0", "--micro-batches must be >= 1 or 'auto', not 0"),
    (f"compare g.json {ON} --simulations -1", "--simulations must be >= 0, not -1"),
    (f"evaluate g.json {ON} --placers single --seeds 0", "--seeds must be >= 1, not 0"),
    (f"tune net.py:net {LOCAL} --minutes 0", "--minutes must be > 0, not 0.0"),
    ("fits config.json --memory 1GB --length 0", "--length must be >= 1, not 0"),
    # outputs
    (f"place {MODEL} -o a.txt", "--out a.txt: must end in .json or .json.gz"),
    (f"place {MODEL} -o .", "--out .: is a directory, give the name of a file in it"),
    (f"place {MODEL} -o no/such/p.json", "--out no/such/p.json: the directory no/such doesn't exist"),
    (f"place {MODEL} --plot p.bmp", "--plot p.bmp: a picture's name must end in .png, .svg, .pdf"),
    (f"place {MODEL} --plot p.png --curve ./p.png", "--plot and --curve: both would be written to p.png; give two"),
    (f"plan net.py:net {ON} --report p.pdf", "--report p.pdf: a page's name must end in .html"),
    ("profile net.py:net -o a.json --cluster-out mine.txt", "--cluster-out mine.txt: must end in .json"),
    ("profile net.py:net -o a.json --cluster-out a.json", "--out and --cluster-out: both would be written to a.json"),
    (f"report g.json {PLACED} -o page.pdf", "--out page.pdf: a page's name must end in .html"),
    (f"export g.json {PLACED} --format torch-pipeline -o g.json", "--out g.json: is a file, and torch-pipeline needs"),
    (f"train g.json {ON} --out g.json", "--out g.json: must be a directory"),
    # clusters and costs
    ("place net.py:net --cluster 4", "unknown cluster '4': presets are 2xk80, "),
    ("place net.py:net --cluster nope.json", "cluster 'nope.json': there is no such file; presets are 2xk80, "),
    ("place net.py:net --cluster machine.txt", "(`placeto cluster` makes one of what nvidia-smi prints)"),
    ("compare g.json --cluster ,", "--clusters names no cluster: give some"),
    ("compare g.json --clusters one/mine.json,other/mine.json", "2 clusters are called 'mine'; their names"),
    ("evaluate g.json --placers single --cluster 2xv100,nothing", "nothing"),
    ("cluster 2xv100 --kind t4 -o a.json", "--kind is for what nvidia-smi prints; 2xv100 says what its devices are"),
    ("cluster 3xq100 -o a.json", "'3xq100' is no preset and no file; presets are 2xk80"),
    ("cluster machine.txt -o a.json", "no numbers for GPU 0, 'Tesla T5': give the kind that is nearest (--kind)"),
    ("cluster net.py -o a.json", "connections, as nvidia-smi topo -m prints it"),
    (f"place {MODEL} --costs nothing.json", "costs 'nothing.json': there is no such file; by name there are"),
    *(
        (f"{command} --costs fast", "unknown costs 'fast': known are efficiency, roofline")
        for command in (f"simulate g.json {PLACED}", f"evaluate g.json {ON} --placers single", TRAIN)
    ),
    # placers and budgets
    (f"place g.json {ON} --placer nonsense", "placers: single"),
    (f"place g.json {ON} --placer gdp", "give a checkpoint"),
    (f"place g.json {ON} --checkpoint nothing.pt", "nothing.pt: no such file"),
    (f"place g.json {ON} --checkpoint g.json", "g.json: not a checkpoint"),
    (f"report g.json {PLACED} -o page.html --against eft", "no placer and no checkpoint is called 'eft'"),
    (f"{STREAM} --placer etf", "the objective throughput has the placers free and contiguous, not 'etf'"),
    (f"{STREAM} --simulations 10", "--simulations isn't for --objective throughput, which searches for --seconds"),
    (f"{STREAM} --checkpoint runs", "--checkpoint isn't for --objective throughput"),
    (f"{STREAM} --patience .3", "--patience isn't for --objective throughput"),
    (f"{STREAM} --micro-batches 4", "leave --micro-batches at 1"),
    (f"evaluate {ON} --placers single", "give graphs (files or family:split:index) or --family NAME"),
    (f"evaluate g.json {ON} --placers ,", "--placers names no placer"),
    (f"evaluate g.json {ON} --placers single,single", "share one label"),
    (f"evaluate g.json {ON} --placers mine@pass=placeto", "belongs behind the placer; write mine=placeto@pass"),
    (f"evaluate g.json {ON} --placers single --checkpoint pretrained", "pretrained: holds the placer 'placeto', which"),
    (f"evaluate {ON} --placers single --family nofamily", "unknown graph family"),
    (f"evaluate g.json {ON} --placers single --count 3", "--count is for the graphs of a --family"),
    (f"evaluate g.json {ON} --placers single --split train", "--split is for the graphs of a --family"),
    # captures
    ("capture .captures:mlp -o a.json", "a relative name; write the whole of it"),
    ("capture :model -o a.json", "must be package.module:function"),
    ("capture net.py:deep -o a.json", "missing a required argument: 'depth'; it is deep(depth: int"),
    ("capture net.py:deep(2) -o a.json", "deep(2): the loss must be a scalar tensor"),
    ("capture tests.command_line:OPS -o a.json", "is not a function"),
    (f"place {MODEL} --micro-batches 3", "a batch of 16 can't be split into 3 micro-batches"),
    (f"place {MODEL} --loss mse", "--loss 'mse': must be sum, mean, file.py:function, or one of binary_cross_"),
    (f"place {MODEL} --loss net.py:nothing", "net.py has no function 'nothing'"),
    (f"place {MODEL} --loss mean --inference", "--loss is part of a training step, not of --inference"),
    (f"place {MODEL} --dim batch=4", "--dim is for ONNX files; a factory says how large its inputs are"),
    (f"place {MODEL} --whole third", "has no module 'third'; there are 0, 1"),
    *(
        (f"place g.json {ON} {option}", f"{option.split()[0]} is for modules, given as file.py:function; g.json is")
        for option in ("--micro-batches 2", "--precision bf16", "--loss mean", "--run", "--inference")
    ),
    (f"place modl.onnx {ON} --dim batch=4", "no such file; there is model.onnx"),
    *(
        (
            f"{command} --micro-batches auto",
            "is for `placeto place`, `placeto plan`, `placeto fits` and `placeto compare`, which print",
        )
        for command in (
            "capture net.py:net -o a.json",
            f"evaluate net.py:net {ON} --placers etf",
            f"export net.py:net {PLACED} --format dot -o a.dot",
            "profile net.py:net -o a.json",
            f"report net.py:net {PLACED} -o page.html",
            f"run net.py:net {LOCAL} --placement p.json",
            f"simulate net.py:net {PLACED}",
            f"tune net.py:net {LOCAL}",
        )
    ),
    ("profile -o a.json", "FACTORY"),
    ("profile net.py:net(3,4) -o a.json", "too many positional arguments"),
    ("profile net.py:text -o a.json", "must return (module, inputs)"),
    ("tune net.py:net --devices cpu:0", "--devices: at least two are needed"),
    # plans
    (f"plan cifar10:test:0 {ON}", "a model is needed, whose step is split"),
    (f"plan g.json {ON}", "a model is needed, whose step is split"),
    (f"plan nothing.json {ON}", "'nothing.json': no such file or folder; needed is file.py:function"),
    (f"fits meta-llama/Llama-3.2-1B {ON}", "config.json, from https://huggingface.co/meta-llama/Llama-3.2-1B"),
    (f"fits https://huggingface.co/a/b {ON}", "nothing is downloaded: give the model's config.json, as a file"),
    (f"fits cut.json {ON}", "'cut.json': not valid JSON: "),
    (f"plan untyped.json {ON}", "'untyped.json': has no model_type, as a config.json"),
    ("simulate g.json --placement p.json --cluster 4xRTX3090", "unknown cluster '4xRTX3090'; did you mean 4xrtx3090? "),
    (f"fits / {ON}", "'/': is a folder without a config.json that says its model_type"),
    ("fits net.py:net --memory 24G", "'24G' must be a size such as 1GB or 512MB; did you mean 24GB? "),
    ("fits net.py:net --memory 24GiB", "did you mean 25.7698GB? "),
    (
        "fits net.py:net --memory 1GB --optimizer adamw8bit",
        "States of 8 bits aren't modelled: adam is an upper bound. ",
    ),
    ("fits net.py:net --memory 1GB --precision bfloat16", "Did you mean bf16? "),
    (f"plan net.py:net {ON} --headroom much", "'much' must be a size such as 1GB"),
    (f"plan net.py:net {ON} --headroom 1", "--headroom: 1 means 1 bytes; did you mean 1GB? Write 1B for bytes"),
    (f"plan net.py:net {ON} --headroom 99GB", "a headroom of 99.0 GB leaves no memory"),
    ("fits net.py:net", "give either --cluster or --memory"),
    (f"fits net.py:net {ON} --memory 1GB", "give either --cluster or --memory"),
    (
        "fits net.py:net --memory 1GB --headroom 2GB",
        "a headroom of 2.00 GB leaves no memory: a device of one has 1.00 GB",
    ),
    (f"fits net.py:net {ON} --headroom 20GB", "leaves no memory: a device of 2xv100 has 16.0"),
    ("fits net.py:net --memory 1GB --micro-batches 3", "can't be split into 3"),
    ("fits net.py:net --memory 1GB --batch 3", "--batch is for a config.json"),
    ("fits config.json --memory 1GB --loss mean", "--loss is for a FACTORY; a model by its config.json has its own"),
    # placements that are run or exported
    (f"run net.py:net {LOCAL}", "give one of --placement and --plan"),
    ("run net.py:net --placement p.json --devices cpu:0,cpu:99", "device 'cpu:99': this machine has cpu:0"),
    (f"run net.py:broken {LOCAL} --placement p.json", "ValueError: no such luck"),
    (f"run net.py:net {LOCAL} --plan p.json --placement p.json", "give one of --placement and --plan"),
    *(
        (f"run net.py:net {LOCAL} --placement p.json {option}", f"{option.split()[0]} goes with --plan")
        for option in ("--check", "--cluster 2xv100", "--costs roofline")
    ),
    (f"export g.json {PLACED} --format dot -o a.dot --names 0,1", "--names goes with --format device-map"),
    (f"export g.json {PLACED} --format device-map -o a.json --names cpu", "the cluster has 2 devices, 1 names are"),
    (f"export g.json {PLACED} --format device-map -o a.json --whole third", "has no module 'third'"),
    (f"export g.json {PLACED} --format png -o a.png", "invalid choice"),
    (f"export g.json {PLACED} --format torchtitan -o g.json", "--out g.json: is a file, and torchtitan needs a folder"),
    (f"export g.json {PLACED} --format stages -o a.json", "there is no such format any more"),
    # trainings
    ("train g.json", "--out STR"),
    ("train g.json --out run", "--cluster is needed"),
    ("train --family cifar --out x --cluster 2xv100", "known: cifar10, ptb, nmt"),
    (f"train {ON} --family . --out run", "graph family '.': is a directory; give its files as graphs (./*.json)"),
    (f"{TRAIN} --placer foo", "learned placers: placeto, placeto-paper, seq2seq"),
    (f"{TRAIN} --recipe others", "--recipe"),
    (f"{TRAIN} --placer placeto --recipe paper", "recipe paper: placer 'placeto' has none; seq2seq, grouper, gdp, mlp"),
    (f"{TRAIN} --checkpoint pretrained --recipe paper", "--recipe paper: with --checkpoint, the settings are those of"),
    (f"{TRAIN} --checkpoint pretrained --placer mlp", "holds the placer 'placeto', not 'mlp'"),
    (f"{TRAIN} --learning.lr nan", "learning.lr must be a finite number, not nan"),
    (f"{TRAIN} --threads {10**9}", "threads must be <= 1024, not 1000000000"),
    (f"{TRAIN} --set depth=3", "--set is for factories, and no GRAPH is one; leave it out"),
    (f"{TRAIN} --train-graphs 3", "--train-graphs is for the graphs of a --family; leave it out, or give one"),
    (f"train {ON} --family cifar10 --out run --train-graphs 0", "--train-graphs"),
    (f"{TRAIN} --devices cpu:0", "--devices is for --reward measured"),
    ("train net.py:net --out run --reward measured", "give --devices of this machine"),
    (f"train net.py:net --out run --reward measured {LOCAL}", "add --learning.reinforcement 1"),
    (f"{TRAIN} --reward measured --devices cpu:0", "and no --cluster"),
    (f"train --family ptb --out run --reward measured {LOCAL} --placer mlp", "needs factories"),
    (f"train nothing --out run --reward measured {LOCAL} --placer mlp", "must be package.module:function"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "net", raising=False)  # of another test in this process
    Path("net.py").write_text(NET)
    Path("machine.txt").write_text(MACHINE.replace("T4", "T5"))
    Path("model.onnx").touch()
    Path("config.json").write_text('{"model_type": "llama"}')
    Path("cut.json").write_text("{")
    Path("untyped.json").write_text("{}")
    save_graph(ComputationGraph.from_ops("fork", OPS), "g.json")
    placement = {"format": "placeto.placement/1", "placement": dict.fromkeys("abcd", "gpu:0")}
    Path("p.json").write_text(json.dumps(placement))
    for name in ("one", "other"):
        Path(name).mkdir()
        save_cluster(replace(load_cluster("2xp100"), name="mine"), Path(name) / "mine.json")


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_told_in_one_line(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path().rglob("*"))
    assert run(*words.split()) == 2
    out, err = capsys.readouterr()
    (error,) = [line for line in err.splitlines() if line.startswith("error: ")]  # progress may be told before it
    assert (out, says in error) == ("", True), error
    assert sorted(Path().rglob("*")) == before
