"""What each curve of a training run shows. A tag has the same meaning for all policies."""

from __future__ import annotations

from collections.abc import Mapping

TAGS: Mapping[str, str] = {
    "makespan/episode_end": "Makespan at the end of an episode, divided by that of the best cheap heuristic of the "
    "same graph: the mean over the iteration's episodes. A placement that a one-shot policy draws is an episode.",
    "makespan/episode_best": "Best makespan met within an episode, divided by that of the best cheap heuristic of the "
    "same graph: the mean over the iteration's episodes. A one-shot policy meets one placement an episode.",
    "makespan/best": "Best makespan met since training began, divided by that of the best single device: the mean "
    "over the training graphs of which a placement was met.",
    "validation/end": "Makespan at the end of the policy's most likely decisions, divided by that of the best single "
    "device: the mean over the validation graphs.",
    "validation/best_met": "Best makespan met on the way there, where the start counts, divided by that of the best "
    "single device: the mean over the validation graphs.",
    "validation/to_heuristic": "The same, divided by the makespan of the best cheap heuristic: the mean over the "
    "validation graphs.",
    "validation/kept": "Least `validation/best_met` so far, of `placeto-paper` least `validation/end`; the parameters "
    "that reached it are what a placer uses.",
    "validation/end/<graph>": "`validation/end` of one validation graph.",
    "validation/end_distribution": "`validation/end` of all validation graphs, as a histogram.",
    "validation/untrained_end": "Control: `validation/end` of the network before training; in fine-tuning, of the "
    "checkpoint's.",
    "validation/untrained_best_met": "Control: `validation/best_met` of the network before training; in "
    "fine-tuning, of the checkpoint's.",
    "validation/random_end": "Control: `validation/end` of decisions that are uniformly random, from the same start.",
    "validation/random_best_met": "Control: `validation/best_met` of decisions that are uniformly random, from the "
    "same start.",
    "validation/heuristic": "Control: makespan of the best cheap heuristic, divided by that of the best single device: "
    "the mean over the validation graphs.",
    "validation/metis": "Control: makespan of METIS, divided by that of the best single device: the mean over the "
    "validation graphs.",
    "validation/multilevel": "Control: makespan of `multilevel`, divided by that of the best single device: the mean "
    "over the validation graphs. It may simulate as often as the cheap heuristics and the policy's moves together.",
    "validation/error": "Standard error of `validation/kept`, which is a mean over the validation graphs; "
    "there is none for a single graph.",
    "schedule/validation": "Schedule of the best placement met of the first validation graph, whenever "
    "`validation/kept` falls: a picture, with times in microseconds.",
    "reward/mean": "Reward, of a move, or of a one-shot policy's placement: the mean over the iteration.",
    "return/mean": "Return, the discounted sum of the rewards from a decision on: the mean over the iteration's "
    "decisions. In a one-shot policy's placement all decisions have the same.",
    "return/std": "Standard deviation of the returns over the iteration's decisions.",
    "baseline/mean": "Reward baseline, what is taken off a return: the mean over the iteration's decisions.",
    "advantage/mean": "Advantage before normalisation: the mean over the iteration's decisions.",
    "advantage/std": "Standard deviation of the advantages before normalisation.",
    "policy/entropy": "Entropy of the policy, in nats a decision: the mean over the iteration's gradient steps.",
    "policy/entropy_weight": "Weight of the entropy bonus in the loss.",
    "policy/kl": "Kullback-Leibler divergence from the policy that decided to the one that is trained, in nats a "
    "decision, estimated from the decisions made: the mean over the iteration's gradient steps. PPO only.",
    "policy/clipped_share": "Share of the decisions whose ratio of probabilities is outside of PPO's clipping range: "
    "the mean over the iteration's gradient steps. PPO only.",
    "loss/policy": "Policy-gradient loss with its entropy bonus: the mean over the iteration's gradient steps.",
    "loss/supervised": "Loss of the supervised stage: weighted Huber loss of predicted changes of the makespan, in "
    "per cent.",
    "loss/ranking": "Loss of the supervised stage: cross-entropy of the odds of a state's moves, in nats a state.",
    "loss/label_error": "Mean absolute error of predicted changes of the makespan, as a share of the makespan.",
    "train/gradient_norm": "Norm of the gradient before clipping: the mean over the iteration's gradient steps.",
    "train/learning_rate": "Learning rate.",
    "placements/simulated": "Placements simulated, or measured, to train the policy since training began; labels of "
    "single moves are among them, validation is not.",
    "seconds/simulation": "Seconds of the iteration spent on simulations and observations.",
    "seconds/network": "Seconds of the iteration spent on the network, gradient steps included.",
    "seconds/other": "Seconds of the iteration spent on anything else.",
    "seconds/elapsed": "Seconds since the first iteration began; validation is among them, preparation is not.",
    "seconds/preparation": "Seconds spent on preparing the graphs and the controls before the first iteration.",
    "tune/measured_us": "`placeto tune`: measured step time of a round's best placement, in microseconds.",
    "tune/simulated_us": "`placeto tune`: its simulated makespan, in microseconds.",
    "tune/of_one_device": "`placeto tune`: its measured step time, divided by that on one device.",
}
"""Tag -> what it shows, with its unit. `<graph>` stands for the name of a validation graph."""


def of_graph(name: str) -> str:
    """Return the tag of the curve of one validation graph, by the graph's name.

    >>> of_graph("nmt:validation:0")
    'validation/end/nmt:validation:0'
    """
    return f"validation/end/{name}"


def tags_table() -> str:
    """Return all tags with what they show, as a table in markdown."""
    return "\n".join(["| tag | what it shows |", "|---|---|", *(f"| `{tag}` | {says} |" for tag, says in TAGS.items())])
