from importlib.resources import files
from pathlib import Path

import pytest

from placeto.errors import CostsError
from placeto.problem.costs import EFFICIENCY, ROOFLINE, load_costs


def test_costs_by_name_and_by_file(tmp_path: Path) -> None:
    assert load_costs("roofline") == ROOFLINE
    assert load_costs("efficiency") is EFFICIENCY
    table = Path(str(files("placeto.problem.costs").joinpath("efficiency.json")))
    assert load_costs(table) == EFFICIENCY
    with pytest.raises(CostsError, match=r"unknown costs 'fast': .*, or name a \.json file"):
        load_costs("fast")
    for content in ('{"format": "placeto.graph/1"}', "[]", '{"format": ["placeto.efficiency/1"]}'):
        (tmp_path / "costs.json").write_text(content)
        with pytest.raises(CostsError, match=r'costs\.json: not a file of costs: "format" must be one of placeto\.eff'):
            load_costs(tmp_path / "costs.json")
    with pytest.raises(CostsError, match="there is no such file; by name there are efficiency, roofline"):
        load_costs(tmp_path / "none.json")
