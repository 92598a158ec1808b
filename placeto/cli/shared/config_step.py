"""The step of a model that a CONFIG makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeto.cli.shared.factory import UserStep
from placeto.errors import CaptureError

if TYPE_CHECKING:
    from placeto.problem.graph import ComputationGraph


class ConfigStep(UserStep):
    """A step that is given token ids alone, also if the model could take images or sounds as well."""

    def capture(self, *args: Any, **more: Any) -> ComputationGraph:
        """As for all steps; the message for a model that can't do with token ids alone says so."""
        try:
            return super().capture(*args, **more)
        except CaptureError as problem:
            taken = getattr(self.module, "input_modalities", "text")
            if taken in ("text", ("text",)):
                raise
            kinds = " and ".join([taken] if isinstance(taken, str) else taken)
            what = f"{type(self.module).__name__} takes {kinds}, and text alone is given"
            raise CaptureError(f"{problem}; {what}: give a FACTORY, which says what its inputs are") from None
