"""Plans for steps in micro-batches: stages on devices, what they recompute, and the order of their chunks."""

from placeto.heuristics.pipelines.plans import make_plan, ranked_plans, try_all_plans, try_even_plans

__all__ = ["make_plan", "ranked_plans", "try_all_plans", "try_even_plans"]
